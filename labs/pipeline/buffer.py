"""The queue between workers and trainer."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from labs.pipeline.records import Group, Trajectory

#: What waits: a trajectory, or a group where groups are larger than one. Both have a start version and an exit.
Unit = Trajectory | Group


class Buffer:
    """Units in order of arrival, with access to the stalest and the freshest.

    The line is sorted by start version only when somebody asks by version, so that a unit that is taken at once is
    never sorted; every operation costs O(log versions) per unit moved. A unit that left one way is recognised in the
    other list by its exit, which the caller sets when it leaves.

    Args:
        order: `fifo`, `oldest_version` or `freshest`: what `take` takes.
        by_version: whether `expire`, `stalest` or another order than `fifo` will be used; it costs memory.
    """

    __slots__ = ("_by_version", "_fresh", "_line", "_order", "_stale", "_unsorted", "put", "size")

    def __init__(self, order: str = "fifo", by_version: bool = True) -> None:
        self.size = 0
        self._order = order
        self._line: deque[Unit] = deque()
        self._unsorted: list[Unit] = []
        self._by_version: dict[int, deque[Unit]] = {}
        self._stale: list[int] = []  # heaps of the versions in `_by_version`, from both ends
        self._fresh: list[int] = []
        line, unsorted = self._line.append, self._unsorted.append

        def put(unit: Unit) -> None:
            self.size += 1
            line(unit)
            unsorted(unit)

        def put_in_line(unit: Unit) -> None:
            self.size += 1
            line(unit)

        #: Append one.
        self.put = put if by_version or order != "fifo" else put_in_line

    def expire(self, oldest: int) -> list[Unit]:
        """Take out what started below version `oldest`, oldest version first and in order of arrival within one."""
        self._sort()
        gone: list[Unit] = []
        while self._stale and self._stale[0] < oldest:
            gone += [u for u in self._by_version.pop(heappop(self._stale), ()) if u.exit is None]
        self.size -= len(gone)
        return gone

    def take(self, n: int) -> list[Unit]:
        """Take out `n` units, at most `size`, in the buffer's order."""
        if self._order == "fifo":
            taken = [self._first() for _ in range(n)]
        else:
            self._sort()
            taken = [self._extreme(self._stale if self._order == "oldest_version" else self._fresh) for _ in range(n)]
        self.size -= n
        return taken

    def oldest(self) -> Unit:
        """Take out what arrived first."""
        self.size -= 1
        return self._first()

    def stalest(self) -> Unit:
        """Take out what has the oldest start version, and arrived first among those."""
        self._sort()
        self.size -= 1
        return self._extreme(self._stale)

    def _first(self) -> Unit:
        unit = self._line.popleft()
        while unit.exit is not None:
            unit = self._line.popleft()
        return unit

    def _extreme(self, versions: list[int]) -> Unit:
        sign = 1 if versions is self._stale else -1
        while True:
            same = self._by_version.get(sign * versions[0])
            while same:
                unit = same.popleft()
                if unit.exit is None:
                    return unit
            self._by_version.pop(sign * heappop(versions), None)

    def _sort(self) -> None:
        for unit in self._unsorted:
            if unit.exit is None:
                version = unit.start_version
                same = self._by_version.get(version)
                if same is None:
                    same = self._by_version[version] = deque()
                    heappush(self._stale, version)
                    heappush(self._fresh, -version)
                same.append(unit)
        self._unsorted.clear()
