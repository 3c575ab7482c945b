"""The SimPy model: workers, queue, trainer and the version clock.

A rollout is a callback on a `Timeout`; only the trainer, which also publishes weights and evaluates, is a process:
a generator per rollout costs three times as much and says nothing more. The order of things that happen at the same
simulated moment is fixed: the trainer first, then rollouts in the order in which they started. Free workers get the
next tasks in the order in which they became free.

>>> from labs.pipeline.model import simulate
>>> from labs.pipeline.rules import Rules
>>> run = simulate(Rules(workers=2, batch_size=2, training_seconds=1.0), [1.0, 2.0, 3.0, 4.0])
>>> run.seconds, [t.lag for t in run.trajectories]
(7.0, [0, 0, 1, 1])
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

from simpy import Environment, Event
from simpy.events import URGENT

from labs.errors import InputError
from labs.pipeline.accounting import ConservationError, Run
from labs.pipeline.buffer import Buffer, Unit
from labs.pipeline.hazards import hazards
from labs.pipeline.meter import Meter
from labs.pipeline.records import ACCEPTED, REJECTED, Exit, Group, Learner, Progress, Trajectory
from labs.pipeline.rules import Rules
from labs.pipeline.servers import Workers
from labs.pipeline.stream import Stream
from labs.pipeline.workload import Workload


class DeadlockError(InputError):
    """Nothing can happen any more and the run is not over; the message says who waits for what."""


def simulate(
    rules: Rules,
    work: Sequence[float] | Workload,
    learner: Learner | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run a system until every task has left the pipeline.

    Args:
        rules: the system.
        work: the tasks, or just the seconds of every rollout.
        learner: what samples episodes and trains; without one only time passes.
        progress: called at every new version and at the end.

    Returns:
        The run, checked against the conservation laws.

    Raises:
        InputError: durations that are no durations, or a filter without rewards.
        DeadlockError: everybody waits for somebody.
        StarvationError: a task is made again and again and never trained.
    """
    if not isinstance(work, Workload):
        work = Workload(work, group_size=rules.group_size)
    if work.group_size != rules.group_size:
        raise InputError(f"the workload has groups of {work.group_size}; allowed: group_size = {rules.group_size}")
    if rules.filter != "none" and learner is None and work.success is None:
        raise InputError(f"filter is {rules.filter}, but there are no rewards; allowed: a learner, or success rates")
    # Every record of a run stays alive and no rollout makes a cycle: scanning them again and again finds nothing. A
    # learner may make cycles, so with one the collector stays on.
    pausing = learner is None and gc.isenabled()
    if pausing:
        gc.disable()
    try:
        return Model(rules, work, learner, progress).run()
    finally:
        if pausing:
            gc.enable()


def is_plain(rules: Rules, work: Workload, learner: Learner | None) -> bool:
    """True if a unit is a trajectory and nothing stops one, so that the short path through `Workers` will do."""
    return (
        rules.group_size == 1
        and not rules.pools
        and learner is None
        and work.success is None
        and rules.in_flight == "finish"
        and rules.concurrency_batches is None
        and rules.requeue == "none"
        and rules.ingestion != "wait"
        and not rules.sweep
        and rules.version_unit == "sync"
        and rules.mean_time_to_failure is None
        and (rules.on_full == "block" or rules.queue_batches is None)
    )


class Model:
    """The state of one run. Use `simulate`.

    Attributes:
        version: the trainer's version clock; `published`: the version that a rollout starting now gets.
        oldest: start versions below it are too old now.
        steps, taken: training steps finished, batches taken.
        waiting_area, waiting_since: integral of the queue's length, kept apart from the meter because it changes at
            every rollout.
    """

    # With more than thirty attributes an object without slots is looked up in a slower way.
    __slots__ = (
        "_call", "_done", "buffer", "doing", "env", "exits", "lag_at_bumps", "lag_at_starts", "learner", "left",
        "meter", "oldest", "plain", "progress", "published", "published_at", "published_steps",
        "published_versions", "quiet", "rules", "samples", "steps", "stream", "taken", "trainer", "trainer_free",
        "trajectories", "version", "waiting_area", "waiting_since", "work", "workers",
    )  # fmt: skip

    def __init__(
        self, rules: Rules, work: Workload, learner: Learner | None = None, progress: Progress | None = None,
        plain: bool | None = None,
    ) -> None:  # fmt: skip
        self.rules, self.work, self.learner, self.progress = rules, work, learner, progress
        self.plain = is_plain(rules, work, learner) if plain is None else plain
        self.env = Environment()
        self.version = self.published = self.oldest = 0
        self.steps = self.published_steps = self.taken = self.left = 0
        self.published_at: list[float] = []
        self.published_versions: list[int] = []
        self.trajectories: list[Trajectory] = []
        self.exits: list[Exit] = []
        self.lag_at_bumps = self.lag_at_starts = 0
        self.waiting_area = self.waiting_since = 0.0
        by_version = rules.ingestion == "reject" or rules.on_full == "drop_stalest"
        self.buffer = Buffer(rules.order, by_version)
        self.stream = Stream(rules, work.tasks)
        sizes = [size for size, _ in rules.pools] or [rules.workers]
        #: the pools of workers, then the trainer, then the trajectories
        self.meter = Meter(self.env, [(size, "task") for size in sizes] + [(1, "data"), (0, "waiting")])
        self.trainer, self.samples = len(sizes), len(sizes) + 1
        self.trainer_free = True
        self.doing = "data"
        self.quiet: Event | None = None
        self._call = Event(self.env)
        self._done = Event(self.env)
        self.workers = Workers(self, self.plain)

    def run(self) -> Run:
        """Run until the last trajectory has left."""
        self.env.process(self._train())
        self.workers.feed()
        try:
            self.env.run(until=self._done)
        except RuntimeError as error:
            if self._done.triggered:
                raise
            raise DeadlockError(self.who_waits()) from error
        self.meter.advance()
        self._waited()
        self._count()
        self._report()
        *workers, trainer, samples = (dict(area) for area in self.meter.areas)
        # In the plain path the meter does not follow the queue: who waits there is in it, or held by a blocked worker.
        waiting = self.waiting_area + workers[0].get("queue full", 0.0) if self.plain else samples.get("waiting", 0.0)
        return Run(
            rules=self.rules,
            work=self.work,
            hazards=hazards(self.rules),
            seconds=float(self.env.now),
            trajectories=self.trajectories,
            exits=self.exits,
            publications=list(zip(self.published_at, self.published_versions, strict=True)),
            worker_seconds=workers,
            trainer_seconds=trainer,
            prefill_seconds=self.workers.prefill,
            lag_at_bumps=self.lag_at_bumps,
            lag_at_starts=self.lag_at_starts,
            running_area=samples.get("in flight", 0.0),
            waiting_area=waiting,
        ).check()

    # The queue's far end

    def settle(self) -> None:
        """After something changed: let the trainer, then the workers do what they can; notice that nobody can."""
        workers = self.workers
        if self.plain:
            self._waited()
        if self.trainer_free:
            self._offer()
        workers.feed()
        if not workers.running:
            if self.quiet is not None and not self.quiet.triggered:
                self.urgent(self.quiet)
            elif self.trainer_free and not workers.restarting and not self._done.triggered:
                raise DeadlockError(self.who_waits())

    def _offer(self) -> None:
        """The trainer is free: reject what is too old, then start a step if a batch waits, or end the run."""
        rules, buffer, workers = self.rules, self.buffer, self.workers
        while True:
            if rules.ingestion == "reject":
                self.leave(buffer.expire(self.oldest), REJECTED)
            if not workers.unblock():
                break
        size = min(rules.batch_size, buffer.size)
        over = not workers.running and not workers.blocked and not workers.making and self.stream.empty
        if size == rules.batch_size or (size and over):
            if rules.ingestion == "wait" and self._would_pass_the_bound():
                self._do("hold")
                return
            batch = buffer.take(size)
            step = self.leave(batch, ACCEPTED)
            self.taken += 1
            while workers.unblock():
                pass
            self.trainer_free = False
            self._renew()
            self._do("busy")
            self.urgent(self._call, (step, batch))
        elif over and not self._done.triggered:
            self._done.succeed()
        else:
            self._do("data")

    def _would_pass_the_bound(self) -> bool:
        """The next step would make a group in the making older than the bound allows."""
        oldest = self.version + self._ages(self.rules.batch_size * self.rules.group_size) - self.rules.max_policy_lag
        return any(group.start_version < oldest for group in self.workers.making)

    def _ages(self, samples: int) -> int:
        """By how much the next step moves the version clock."""
        if self.rules.version_unit == "sync":
            return int((self.steps + 1) % self.rules.steps_per_sync == 0)
        return 1 if self.rules.version_unit == "step" else samples

    def leave(self, units: list[Unit], status: str) -> Exit | None:
        """Units leave together; None when there are none."""
        if not units:
            return None
        leave = Exit(status, self.env._now, self.version, len(units))
        for unit in units:
            unit.exit = leave
        # In the plain path a unit is its own trajectory, and nothing asks what becomes of it.
        if not self.plain:
            groups = cast("list[Group]", units)
            members = [member for group in groups for member in group.members]
            for member in members:
                member.exit = leave
            leave.size = len(members)
        self.record(leave)
        self.stream.exited += len(units)
        if status != ACCEPTED:
            self.stream.left(cast("list[Group]", units), status)
            self._renew()
        return leave

    def record(self, leave: Exit) -> None:
        """Trajectories have left."""
        self.exits.append(leave)
        self.left += leave.size
        if not self.plain:
            self.meter.add(self.samples, "waiting", -leave.size)

    def _waited(self) -> None:
        """Add the time since the queue last changed; the plain path's share of the meter."""
        now = self.env._now
        self.waiting_area += self.buffer.size * (now - self.waiting_since)
        self.waiting_since = now

    def _renew(self) -> None:
        if self.rules.submission != "open":
            self.stream.renew(self.published_steps, self.taken)

    # The trainer

    def _train(self) -> Generator[Event, Any, None]:
        rules = self.rules
        while True:
            step, batch = yield self._call
            self._call = Event(self.env)
            yield self.urgent(Event(self.env), delay=rules.training_seconds)
            step.trained, step.update = self.env.now, self.steps
            if self.learner is not None:
                self.learner.train([member for group in batch for member in group.members])
            aged = self._ages(step.size)
            self.steps += 1
            if rules.version_unit != "sync":
                self._bump(aged)
            if self.steps % rules.steps_per_sync == 0:
                yield from self._publish(aged)
                if rules.evaluation_every and len(self.published_at) % rules.evaluation_every == 0:
                    self._do("evaluation")
                    yield self.urgent(Event(self.env), delay=rules.evaluation_seconds)
            self.trainer_free = True
            self.settle()

    def _publish(self, aged: int) -> Generator[Event, Any, None]:
        """New weights for the workers, by the rule for what is in flight."""
        rules, workers = self.rules, self.workers
        stops = rules.in_flight in ("drain", "abort_restart", "abort_resume")
        if rules.in_flight == "drain":
            workers.close("drain")
            if workers.running:
                self._do("drain")
                self.quiet = Event(self.env)
                yield self.quiet
                self.quiet = None
        if stops:
            workers.close("sync")
        if rules.in_flight == "abort_restart":
            workers.abort()
        elif rules.in_flight == "abort_resume":
            workers.pause()
        if rules.sync_seconds:
            self._do("sync")
            yield self.urgent(Event(self.env), delay=rules.sync_seconds)
        if rules.version_unit == "sync":
            self._bump(aged)
        self.published, self.published_steps = self.version, self.steps
        self.published_at.append(self.env.now)
        self.published_versions.append(self.version)
        if publish := getattr(self.learner, "publish", None):
            publish(self.version)
        self.stream.synced()
        self._renew()
        if stops:
            workers.resume()
            workers.close("")

    def _bump(self, by: int) -> None:
        """The version clock moves: everything that runs or waits is that much older."""
        self.version += by
        self.lag_at_bumps += by * self._count()
        if self.rules.ingestion == "reject":
            self.oldest = self.version - self.rules.max_policy_lag
        if self.rules.sweep:
            self.workers.sweep(self.version - self.rules.max_policy_lag)
        self._report()

    def _do(self, what: str) -> None:
        """The trainer does something else from now on."""
        if what != self.doing:
            self.meter.move(self.trainer, self.doing, what)
            self.doing = what

    # Clock and sums

    def urgent(self, event: Event, value: Any = None, delay: float = 0.0) -> Event:
        """Trigger `event` after `delay`, before any rollout that ends at that moment."""
        event._ok = True
        event._value = value
        self.env.schedule(event, URGENT, delay)
        return event

    def _here(self) -> Iterator[int]:
        """How many trajectories run, wait for their group, for room, for the trainer."""
        workers = self.workers
        yield workers.running
        yield sum(len(group.members) for group in workers.making)
        for waiting in (len(workers.blocked), self.buffer.size):
            yield waiting * self.rules.group_size

    def _count(self) -> int:
        """How many trajectories run or wait; they and those that left must be those that started."""
        here = sum(self._here())
        if len(self.trajectories) != self.left + here:
            raise ConservationError(
                f"conservation of trajectories at {self.env.now:g} s: {len(self.trajectories)} started, "
                f"{self.left} left, {here} running or waiting"
            )
        return here

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.stream.exited, max(self.stream.tasks, self.stream.started))

    def who_waits(self) -> str:
        """What everybody waits for, as a sentence."""
        rules, stream = self.rules, self.stream
        waits = [f"the trainer waits for a batch of {rules.batch_size} and the queue holds {self.buffer.size}"]
        words = {
            "task": "have no task left",
            "submission": f"wait for the submission gate ({stream.started} tasks started, at most {stream.limit:g})",
            "concurrency": f"wait for the concurrency gate (at most {rules.concurrency} rollouts)",
            "queue full": f"hold a finished group and wait for room in the queue ({rules.capacity} groups)",
            "down": "are dead",
        }
        for state, text in words.items():
            if n := sum(self.meter.counts[pool][state] for pool in range(self.trainer)):
                waits.append(f"{n} of {rules.workers} workers {text}")
        if self.workers.making:
            waits.append(f"{len(self.workers.making)} groups wait for samples that nobody generates")
        return f"deadlock at {self.env.now:g} s, version {self.version}: {'; '.join(waits)}"
