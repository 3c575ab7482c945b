"""Where work comes from: tasks, groups that are made again, and the submission gate in front of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from labs.errors import InputError
from labs.pipeline.records import Group, Rollout, Ticket
from labs.pipeline.rules import Rules

#: A task that has been made that often without being trained is starving, and so is a run with that many new tasks for
#: each one offered.
MOST_ATTEMPTS = 1000


class StarvationError(InputError):
    """The same task is made again and again and never trained; the message names it."""


class Stream:
    """Hands out tickets: samples to make again, then samples of an open group, groups to make again, new tasks.

    Args:
        rules: of the system.
        tasks: how many tasks there are; `requeue="new"` adds more.
    """

    __slots__ = (
        "_again", "_alive_at_sync", "_at_sync", "_offered", "_open", "_redo", "exited", "fresh", "limit",
        "returned", "rules", "started", "tasks",
    )  # fmt: skip

    def __init__(self, rules: Rules, tasks: int) -> None:
        self.rules = rules
        self.tasks = self._offered = tasks
        self.fresh = 0
        self.started = 0  # groups, every attempt counted
        self.exited = 0
        self.returned = 0
        self.limit: float = 0
        self._again: deque[Group] = deque()
        self._redo: deque[tuple[Ticket, Group]] = deque()
        self._open: Group | None = None
        self._at_sync = self._alive_at_sync = 0
        self.renew(0, 0)

    def renew(self, published_steps: int, taken: int) -> None:
        """Compute the submission gate's limit from the clock; call it whenever one of its inputs changes."""
        rules = self.rules
        if rules.submission == "open":
            self.limit = float("inf")
        elif rules.submission == "budget":
            clock = published_steps if rules.submission_clock == "version" else taken
            self.limit = rules.whole(clock + rules.submission_batches) + self.returned
        else:
            self.limit = self._at_sync - self._alive_at_sync + rules.whole(rules.submission_batches) + self.returned

    def synced(self) -> None:
        """A publication: verl's quota starts again from what runs or waits."""
        if self.rules.submission == "quota":
            self._at_sync, self._alive_at_sync, self.returned = self.started, self.started - self.exited, 0

    def waits_for(self) -> str:
        """Why there is no ticket: `task`, there is none; `submission`, the gate is closed; empty if there is one."""
        if self._redo or (self._open is not None and self._open.opened < self.rules.group_size):
            return ""
        if not self._again and self.fresh >= self.tasks:
            return "task"
        return "" if self.started < self.limit else "submission"

    @property
    def empty(self) -> bool:
        """No ticket is left, whatever the gate does."""
        return self.waits_for() == "task"

    def next(self) -> tuple[Ticket, Group]:
        """The next ticket; only when `waits_for()` is ""."""
        if self._redo:
            return self._redo.popleft()
        group = self._open
        if group is None or group.opened == self.rules.group_size:
            if self._again:
                group = self._again.popleft()
            else:
                group = Group(self.fresh, 0)
                self.fresh += 1
            self.started += 1
            self._open = group
        group.opened += 1
        return Ticket(group.task, group.opened - 1, group.attempt), group

    def redo(self, rollout: Rollout, *, lost: bool = False) -> None:
        """The same sample of a living group starts from scratch.

        Aborts end, because each of them needs a training step; deaths of workers need not.
        """
        if lost and rollout.attempt >= MOST_ATTEMPTS:
            raise StarvationError(
                f"starvation: task {rollout.task} was started {rollout.attempt + 1} times and its worker died every "
                f"time, after {self.rules.mean_time_to_failure:g} s on average"
            )
        ticket = Ticket(rollout.task, rollout.sample, rollout.attempt + 1)
        self._redo.append((ticket, rollout.group))

    def close(self, group: Group) -> None:
        """A group that will not train hands out no further samples."""
        if self._open is group:
            self._open = None
        self._redo = deque(entry for entry in self._redo if entry[1] is not group)

    def left(self, groups: Sequence[Group], status: str) -> None:
        """Groups left untrained: their place in the budget, and what replaces them."""
        if status in self.rules.returns:
            self.returned += len(groups)
        for group in groups:
            if self.rules.requeue == "same":
                if group.attempt >= MOST_ATTEMPTS:
                    raise StarvationError(self._starving(group, status))
                self._again.append(Group(group.task, group.attempt + 1))
            elif self.rules.requeue == "new":
                self.tasks += 1
                if self.tasks > MOST_ATTEMPTS * self._offered:
                    raise StarvationError(self._starving(group, status))

    def _starving(self, group: Group, status: str) -> str:
        rules = self.rules
        tried = (
            f"task {group.task} was made {group.attempt + 1} times"
            if group.attempt
            else f"{self.tasks} tasks were made"
        )
        return (
            f"starvation: {tried} and the last was {status} like those before, under ingestion={rules.ingestion}, "
            f"max_policy_lag={rules.max_policy_lag}, filter={rules.filter} and requeue={rules.requeue}"
        )
