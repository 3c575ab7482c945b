"""The SimPy model: workers, queue, trainer and the version clock.

A rollout is a callback on a `Timeout`; only the trainer is a process, because a generator per rollout costs three
times as much and says nothing more. The order of things that happen at the same simulated moment is fixed: the
trainer first, then rollouts in the order in which they started. Free workers get the next tasks in the order in which
they became free.

>>> from labs.pipeline.model import simulate
>>> from labs.pipeline.rules import Rules
>>> run = simulate(Rules(workers=2, batch_size=2, training_seconds=1.0), [1.0, 2.0, 3.0, 4.0])
>>> run.seconds, [t.lag for t in run.trajectories]
(7.0, [0, 0, 1, 1])
"""

from __future__ import annotations

import gc
import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from simpy import Environment, Event, Timeout
from simpy.events import URGENT

from labs.errors import InputError
from labs.pipeline.accounting import ConservationError, Run
from labs.pipeline.buffer import Buffer
from labs.pipeline.records import ACCEPTED, REJECTED, Exit, Progress, Trajectory
from labs.pipeline.rules import Rules


class DeadlockError(InputError):
    """Nothing can happen any more and the run is not over; the message says who waits for what."""


def simulate(rules: Rules, durations: Sequence[float], progress: Progress | None = None) -> Run:
    """Run a system on tasks with known durations until every trajectory has left the pipeline.

    Args:
        rules: the system.
        durations: simulated seconds of every task's rollout, at least one task, each finite and not negative.
        progress: called at every new version and at the end.

    Returns:
        The run, checked against the conservation laws.

    Raises:
        InputError: durations that are no durations.
        DeadlockError: everybody waits for somebody.
    """
    if not len(durations):
        raise InputError("there are no tasks; a run needs at least one")
    if not all(map(math.isfinite, durations)) or min(durations) < 0:
        task = next(i for i, d in enumerate(durations) if not (math.isfinite(d) and d >= 0))
        raise InputError(
            f"the duration of task {task} is {durations[task]!r}; allowed: a finite number of at least 0 seconds"
        )
    # Every record of a run stays alive and no rollout makes a cycle: scanning them again and again finds nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return Model(rules, durations, progress).run()
    finally:
        if collecting:
            gc.enable()


class Model:
    """The state of one run. Use `simulate`."""

    def __init__(self, rules: Rules, durations: Sequence[float], progress: Progress | None = None) -> None:
        self.rules = rules
        self.env = Environment()
        self.durations = durations
        self.progress = progress
        self.version = 0
        self.started = 0
        self.trajectories: list[Trajectory] = []
        self.exits: list[Exit] = []
        self.buffer = Buffer()
        self.idle: deque[int] = deque(range(rules.workers))
        self.running = 0
        self.blocked: deque[Trajectory] = deque()
        self.left = 0
        self.trainer_free = True
        self._call = Event(self.env)
        self._done = Event(self.env)
        self._capacity = math.inf if rules.queue_capacity is None else rules.queue_capacity
        self._oldest = 0
        self._limit = 0
        self._start, self._finished = self._hot()
        # Integrals of counts over time; `_advance` adds the piece since the last event.
        self._last = self._waiting_since = 0.0
        self._wait = "task"
        self._idle_area: defaultdict[str, float] = defaultdict(float)
        self._blocked_area = 0.0
        self._running_area = 0.0
        self._waiting_area = 0.0
        self._training = 0.0
        self._lag_at_bumps = 0

    def run(self) -> Run:
        """Run until the last trajectory has left."""
        self.env.process(self._trainer())
        self._feed()
        try:
            self.env.run(until=self._done)
        except RuntimeError as error:
            if self._done.triggered:
                raise
            raise DeadlockError(self._who_waits()) from error
        self._advance()
        seconds = float(self.env.now)
        self._count()
        if self.progress is not None:
            self.progress(self.left, len(self.durations))
        waits = {"busy": self._running_area, "queue full": self._blocked_area, **self._idle_area}
        return Run(
            rules=self.rules,
            seconds=seconds,
            trajectories=self.trajectories,
            steps=[e for e in self.exits if e.status == ACCEPTED],
            worker_seconds=waits,
            trainer_seconds={"busy": self._training, "data": seconds - self._training},
            lag_at_bumps=self._lag_at_bumps,
            running_area=self._running_area,
            waiting_area=self._waiting_area + self._blocked_area,
        ).check()

    # Workers

    def _feed(self) -> None:
        """Give tasks to free workers while the submission gate is open; name what the rest of them wait for."""
        limit = len(self.durations)
        self._wait = "task"
        if self.rules.submission == "budget":
            budget = int((self.version + self.rules.submission_batches) * self.rules.batch_size)
            if budget < limit:
                limit, self._wait = budget, "submission"
        self._limit = limit
        while self.idle and self.started < limit:
            self._start(self.idle.popleft())
            self.running += 1

    def _hot(self) -> tuple[Callable[[int], None], Callable[[Any], None]]:
        """The two functions that run once per rollout; closures, because attribute look-ups are most of their cost."""
        env, durations, buffer, idle, put = self.env, self.durations, self.buffer, self.idle, self.buffer.put
        keep, batch_size, capacity = self.trajectories.append, self.rules.batch_size, self._capacity

        def start(worker: int) -> None:
            task = self.started
            self.started = task + 1
            trajectory = Trajectory(task, worker, env._now, self.version)
            keep(trajectory)
            Timeout(env, durations[task], trajectory).callbacks.append(finished)

        def finished(timeout: Any) -> None:
            trajectory = timeout._value
            trajectory.end = now = env._now
            size = buffer.size
            self._waiting_area += size * (now - self._waiting_since)
            self._waiting_since = now
            if self.started < self._limit and size < capacity and not idle:
                put(trajectory)
                start(trajectory.worker)
            else:
                self._stop(trajectory)
            # While the trainer is free nothing grows older: only this one can be stale, only it can fill a batch.
            if self.trainer_free and (
                size >= batch_size - 1 or trajectory.start_version < self._oldest or not self.running
            ):
                self._offer()

        return start, finished

    def _stop(self, trajectory: Trajectory) -> None:
        """A worker stops: it waits for room in the queue, or for a task that it may start."""
        self._advance()
        self.running -= 1
        if self.buffer.size >= self._capacity:
            self.blocked.append(trajectory)
        else:
            self.buffer.put(trajectory)
            self.idle.append(trajectory.worker)
            self._feed()

    # Trainer

    def _offer(self) -> None:
        """The trainer is free: reject what is too old, then start a step if a batch waits, or end the run."""
        rules, buffer = self.rules, self.buffer
        self._advance()
        while True:
            if rules.ingestion == "reject":
                self._leave(buffer.expire(self._oldest), REJECTED)
            if not self._unblock():
                break
        size = min(rules.batch_size, buffer.size)
        over = self.started == len(self.durations) and not self.running and not self.blocked
        if size == rules.batch_size or (size and over):
            batch = self._leave(buffer.take(size), ACCEPTED)
            while self._unblock():
                pass
            self.trainer_free = False
            self._urgent(self._call, batch)
        elif over and not self._done.triggered:
            self._done.succeed()
        self._feed()

    def _leave(self, trajectories: list[Trajectory], status: str) -> Exit | None:
        """Trajectories leave together; None when there are none."""
        if not trajectories:
            return None
        leave = Exit(status, self.env._now, self.version, len(trajectories))
        for trajectory in trajectories:
            trajectory.exit = leave
        self.exits.append(leave)
        self.left += leave.size
        return leave

    def _unblock(self) -> bool:
        """Let the worker that has waited longest put down what it holds; False when there is none, or no room."""
        if not self.blocked or self.buffer.size >= self._capacity:
            return False
        trajectory = self.blocked.popleft()
        self.buffer.put(trajectory)
        self.idle.append(trajectory.worker)
        return True

    def _trainer(self) -> Generator[Event, Any, None]:
        steps = 0
        while True:
            batch: Exit = yield self._call
            self._call = Event(self.env)
            yield self._urgent(Event(self.env), None, self.rules.training_seconds)
            self._advance()
            batch.trained, batch.update = self.env.now, steps
            self._training += batch.trained - batch.time
            steps += 1
            self._publish()
            self.trainer_free = True
            self._offer()

    def _publish(self) -> None:
        """A new version: everything that runs or waits is one version older."""
        self.version += 1
        if self.rules.ingestion == "reject":
            self._oldest = self.version - self.rules.max_policy_lag
        self._lag_at_bumps += self.running + len(self.blocked) + self.buffer.size
        self._count()
        if self.progress is not None:
            self.progress(self.left, len(self.durations))

    # Clock and sums

    def _urgent(self, event: Event, value: Any, delay: float = 0.0) -> Event:
        """Trigger `event` after `delay`, before any rollout that ends at that moment."""
        event._ok = True
        event._value = value
        self.env.schedule(event, URGENT, delay)
        return event

    def _advance(self) -> None:
        """Add the time since the last change to the integrals, with the counts as they were in between."""
        now = self.env._now
        self._waiting_area += self.buffer.size * (now - self._waiting_since)
        self._waiting_since = now
        passed = now - self._last
        if passed:
            self._last = now
            self._running_area += passed * self.running
            if self.idle:
                self._idle_area[self._wait] += passed * len(self.idle)
            if self.blocked:
                self._blocked_area += passed * len(self.blocked)

    def _count(self) -> None:
        here = self.running + len(self.blocked) + self.buffer.size
        if self.started != self.left + here:
            raise ConservationError(
                f"conservation of trajectories at {self.env.now:g} s: {self.started} started, {self.left} left, "
                f"{here} running or waiting"
            )

    def _who_waits(self) -> str:
        rules = self.rules
        return (
            f"deadlock at {self.env.now:g} s, version {self.version}: the trainer waits for a batch of "
            f"{rules.batch_size} and the queue holds {self.buffer.size}; {len(self.idle)} of {rules.workers} workers "
            f"wait for the gate '{self._wait}' and {len(self.blocked)} for room in the queue"
        )
