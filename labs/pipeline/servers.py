"""Workers: they start rollouts while the gates are open, finish them, and can be stopped, resumed and die."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from simpy import Timeout
from simpy.events import NORMAL

from labs.pipeline.buffer import Unit
from labs.pipeline.records import (
    ABORTED,
    CANCELLED,
    DROPPED,
    FILTERED,
    LOST,
    REJECTED,
    Exit,
    Flight,
    Group,
    Rollout,
    Ticket,
)

if TYPE_CHECKING:
    from labs.pipeline.model import Model


class Workers:
    """All workers of a run.

    Attributes:
        idle: workers without work, in the order in which they became free.
        running: how many rollouts are being generated.
        blocked: finished units that found no room in the queue, with the worker that holds each.
        making: groups with a sample that is not finished (not used where a group is a trajectory).
        closed: why nothing may start: "" (it may), `drain` or `sync`.
        prefill: simulated worker seconds spent on computing again what a resumed rollout had already.
    """

    __slots__ = (
        "_capacity", "_concurrency", "_launch", "_limit", "_on", "_wait", "blocked", "closed", "env", "finished",
        "idle", "making", "meter", "model", "pool", "prefill", "restarting", "rules", "running", "speed",
    )  # fmt: skip

    def __init__(self, model: Model, plain: bool) -> None:
        rules = model.rules
        pools = rules.pools or ((rules.workers, 1.0),)
        self.model, self.rules, self.env, self.meter = model, rules, model.env, model.meter
        self.pool = [i for i, (size, _) in enumerate(pools) for _ in range(size)]
        self.speed = [speed for size, speed in pools for _ in range(size)]
        self.idle: deque[int] = deque(range(rules.workers))
        self.running = 0
        self.blocked: deque[tuple[Unit, int]] = deque()
        self.making: dict[Group, None] = {}
        self.closed = ""
        self.prefill = 0.0
        self.restarting = 0
        self._on: dict[int, tuple[Rollout, Timeout | None]] = {}
        self._wait = "task"
        self._limit: float = 0
        self._capacity = math.inf if rules.capacity is None else rules.capacity
        self._concurrency = math.inf if rules.concurrency is None else rules.concurrency
        self._launch, self.finished = self._hot() if plain else (self._start, self._finished)
        if rules.mean_time_to_failure is not None:
            for worker in range(rules.workers):
                self._mortal(worker, 0)

    # Starting

    def feed(self) -> None:
        """Give work to free workers while the gates are open; name what the rest of them wait for."""
        stream, idle = self.model.stream, self.idle
        reason = self._reason()
        while idle and not reason:
            worker = idle.popleft()
            self.running += 1
            self.meter.move(self.pool[worker], self._wait, "busy")
            self.meter.add(self.model.samples, "in flight", 1)
            self._launch(worker)
            reason = self._reason()
        if reason and reason != self._wait:
            self.meter.rename(self.model.trainer, self._wait, reason)
            self._wait = reason
        self._limit = min(stream.limit, stream.tasks)

    def _reason(self) -> str:
        """What keeps the next rollout from starting, "" if nothing does."""
        reason = self.closed or self.model.stream.waits_for()
        return reason or ("concurrency" if self.running >= self._concurrency else "")

    def _hot(self) -> tuple[Callable[[int], None], Callable[[Any], None]]:
        """Start and finish where a unit is a trajectory and nothing stops one: what runs once per rollout.

        It does what `_start` and `_finished` do, with only the tests that such rules need; closures, because
        attribute look-ups are most of the cost.
        """
        model, env, stream, buffer, idle = self.model, self.env, self.model.stream, self.model.buffer, self.idle
        seconds, keep, put, enough = (
            self.model.work.seconds,
            model.trajectories.append,
            buffer.put,
            self.rules.batch_size,
        )
        capacity, schedule = self._capacity, cast("Callable[[Any, int, float], None]", env.schedule)

        def start(worker: int) -> None:
            task = stream.started
            stream.started = stream.fresh = task + 1
            trajectory = Flight(task, worker, env._now, model.published, called)
            keep(trajectory)
            schedule(trajectory, NORMAL, seconds[task])

        def finished(trajectory: Any) -> None:
            now = trajectory.end = env._now
            free = model.trainer_free
            if free and trajectory.start_version < model.oldest:
                # Too old, and the trainer looks: it never gets into the queue.
                model.leave([trajectory], REJECTED)
                size = buffer.size
                passes = True
            else:
                size = buffer.size
                passes = size < capacity
                if passes:
                    model.waiting_area += size * (now - model.waiting_since)
                    model.waiting_since = now
                    put(trajectory)
                    size += 1
            task = stream.started
            if passes and task < self._limit and not idle:
                stream.started = stream.fresh = task + 1
                successor = Flight(task, trajectory.worker, now, model.published, called)
                keep(successor)
                schedule(successor, NORMAL, seconds[task])
            else:
                self.stop(trajectory.worker)
                if passes:
                    idle.append(trajectory.worker)
                else:
                    self._hold(trajectory, trajectory.worker)
                if free or not self.running or not self.blocked:
                    model.settle()
                return
            # While the trainer is free only a new trajectory can fill a batch.
            if free and size >= enough:
                model.settle()

        called: list[Callable[[Any], None]] = [finished]
        return start, finished

    def _start(self, worker: int) -> None:
        model = self.model
        ticket, group = model.stream.next()
        timed = getattr(model.learner, "seconds", None)
        seconds = timed(ticket, model.published) if timed else model.work.duration(ticket.task, ticket.sample)
        rollout = Rollout(ticket, group, worker, self.env._now, model.published, seconds / self.speed[worker])
        group.start_version = rollout.start_version if group.start_version < 0 else group.start_version
        self.making[group] = None
        model.trajectories.append(rollout)
        model.lag_at_starts += model.version - model.published
        self._run(rollout, rollout.total)

    def _run(self, rollout: Rollout, seconds: float) -> None:
        timeout = Timeout(self.env, seconds, rollout)
        timeout.callbacks.append(self.finished)
        self._on[rollout.worker] = (rollout, timeout)

    # Finishing

    def stop(self, worker: int) -> None:
        """A worker's rollout is over, one way or the other; the worker is still to be put somewhere."""
        self.running -= 1
        self.meter.move(self.pool[worker], "busy", self._wait)
        self.meter.add(self.model.samples, "in flight", -1)
        if not self.model.plain:
            self.meter.add(self.model.samples, "waiting", 1)

    def deliver(self, unit: Unit, worker: int) -> None:
        """Into the queue with a finished unit, and its worker is free, unless the queue is full and blocks."""
        buffer, rules = self.model.buffer, self.rules
        if buffer.size < self._capacity and not self.blocked:
            buffer.put(unit)
        elif rules.on_full == "block":
            self._hold(unit, worker)
            return
        elif rules.on_full == "drop_oldest":
            self.model.leave([buffer.oldest()], DROPPED)
            buffer.put(unit)
        else:
            buffer.put(unit)
            self.model.leave([buffer.stalest()], DROPPED)
        self.idle.append(worker)

    def _hold(self, unit: Unit, worker: int) -> None:
        """A worker keeps its finished unit until there is room."""
        self.blocked.append((unit, worker))
        self.meter.move(self.pool[worker], self._wait, "queue full")

    def unblock(self) -> bool:
        """Let the worker that has waited longest put down what it holds; False when there is none, or no room."""
        if not self.blocked or self.model.buffer.size >= self._capacity:
            return False
        unit, worker = self.blocked.popleft()
        self.model.buffer.put(unit)
        self.idle.append(worker)
        self.meter.move(self.pool[worker], "queue full", self._wait)
        return True

    def _finished(self, timeout: Any) -> None:
        model, rollout, rules = self.model, timeout._value, self.rules
        group, worker = rollout.group, rollout.worker
        self._end(rollout, rollout.total)
        self.prefill += rollout.prefill
        del self._on[worker]
        ticket = Ticket(rollout.task, rollout.sample, rollout.attempt)
        if model.learner is not None:
            rollout.payload = model.learner.sample(ticket, rollout.version_at)
            rollout.reward = getattr(rollout.payload, "reward", None)
        elif model.work.success is not None:
            rollout.reward = model.work.reward(*ticket)
        self.stop(worker)
        group.members.append(rollout)
        if len(group.members) < rules.group_size:
            self.idle.append(worker)
        else:
            del self.making[group]
            if rules.filter == "zero_variance" and len({t.reward for t in group.members}) == 1:
                model.leave([group], FILTERED)
                self.idle.append(worker)
            else:
                self.deliver(group, worker)
        model.settle()

    def _end(self, rollout: Rollout, generated: float) -> None:
        """Close a rollout's record; `generated` are the seconds of generation since it last started or resumed."""
        model = self.model
        rollout.end = self.env._now
        if rollout.spans is not None:
            rollout.spans.append((model.published, generated))
        elif self.rules.in_flight == "mixed":
            rollout.spans = self._mixed(rollout.start, rollout.end, rollout.start_version)

    def _mixed(self, start: float, end: float, version: int) -> list[tuple[int, float]] | None:
        """The versions of a rollout that took every publication under way; None for a single one."""
        times, versions = self.model.published_at, self.model.published_versions
        first = bisect_right(times, start)
        if first == len(times):
            return None
        spans, since = [], start
        for time, newer in zip(times[first:], versions[first:], strict=True):
            spans.append((version, time - since))
            since, version = time, newer
        return [*spans, (version, end - since)]

    # Stopping

    def close(self, reason: str) -> None:
        """Nothing starts until `close("")`."""
        self.closed = reason
        self.feed()

    def pause(self) -> None:
        """Stop every rollout; it keeps what it has generated."""
        for worker, (rollout, timeout) in self._on.items():
            if timeout is not None:
                generated = self._interrupt(rollout, timeout)
                rollout.spans = rollout.spans or []
                rollout.spans.append((self.model.published, generated))
                rollout.total = max(0.0, rollout.total - generated)
                self._on[worker] = (rollout, None)
                self.meter.move(self.pool[worker], "busy", "sync")

    def resume(self) -> None:
        """Go on with what `pause` stopped, after computing its prefix again."""
        for worker, (rollout, timeout) in list(self._on.items()):
            if timeout is None:
                rollout.resumed = self.env._now
                rollout.prefill = self.rules.resume_seconds if rollout.spans else 0.0
                self.meter.move(self.pool[worker], "sync", "busy")
                self._run(rollout, rollout.prefill + rollout.total)

    def abort(self) -> None:
        """Stop every rollout and throw away what it has generated; its sample starts again as another attempt."""
        stopped = [rollout for rollout, _ in self._on.values()]
        for rollout in stopped:
            self._kill(rollout)
            self.idle.append(rollout.worker)
        self._gone(stopped, ABORTED)
        for rollout in stopped:
            self.model.stream.redo(rollout)

    def sweep(self, oldest: int) -> None:
        """Cancel the groups in the making that started below version `oldest`."""
        for group in [g for g in self.making if g.start_version < oldest]:
            self._cancel(group, CANCELLED)

    def _cancel(self, group: Group, status: str) -> None:
        running = [rollout for rollout, _ in self._on.values() if rollout.group is group]
        for rollout in running:
            self._kill(rollout)
            self.idle.append(rollout.worker)
        group.members += running
        del self.making[group]
        self.model.stream.close(group)
        self.model.leave([group], status)

    def _kill(self, rollout: Rollout) -> None:
        """Stop one rollout for good."""
        timeout = self._on.pop(rollout.worker)[1]
        if timeout is None:
            self.meter.move(self.pool[rollout.worker], "sync", "busy")
            self._end(rollout, 0.0)
        else:
            self._end(rollout, self._interrupt(rollout, timeout))
        self.stop(rollout.worker)

    def _interrupt(self, rollout: Rollout, timeout: Timeout) -> float:
        """Take back the end of a rollout; returns the seconds of generation since it last started or resumed."""
        # SimPy has no way to take an event back; one without callbacks changes nothing when its time comes.
        timeout.callbacks.clear()
        passed = self.env._now - rollout.resumed
        prefill = min(passed, rollout.prefill)
        self.prefill += prefill
        return passed - prefill

    def _gone(self, rollouts: list[Rollout], status: str) -> None:
        """Single rollouts leave while their groups go on."""
        if rollouts:
            leave = Exit(status, self.env._now, self.model.version, len(rollouts))
            for rollout in rollouts:
                rollout.exit = leave
            self.model.record(leave)

    # Dying

    def _mortal(self, worker: int, life: int) -> None:
        mean = self.rules.mean_time_to_failure
        assert mean is not None
        death = Timeout(self.env, self.model.work.lifetime(mean, worker, life), (worker, life))
        death.callbacks.append(self._dies)

    def _dies(self, death: Any) -> None:
        worker, life = death._value
        model, pool = self.model, self.pool[worker]
        if worker in self._on:
            rollout = self._on[worker][0]
            self._kill(rollout)
            if self.rules.requeue == "same":
                self._gone([rollout], LOST)
                model.stream.redo(rollout, lost=True)
            else:
                rollout.group.members.append(rollout)
                self._cancel(rollout.group, LOST)
            self.meter.move(pool, self._wait, "down")
        elif worker in self.idle:
            self.idle.remove(worker)
            self.meter.move(pool, self._wait, "down")
        else:
            held = next(entry for entry in self.blocked if entry[1] == worker)
            self.blocked.remove(held)
            model.leave([held[0]], LOST)
            self.meter.move(pool, "queue full", "down")
        if self.rules.restart_seconds is not None:
            self.restarting += 1
            Timeout(self.env, self.rules.restart_seconds, (worker, life)).callbacks.append(self._restarts)
        model.settle()

    def _restarts(self, restart: Any) -> None:
        worker, life = restart._value
        self.restarting -= 1
        self.idle.append(worker)
        self.meter.move(self.pool[worker], "down", self._wait)
        self._mortal(worker, life + 1)
        self.model.settle()
