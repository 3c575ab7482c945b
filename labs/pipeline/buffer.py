"""The queue between workers and trainer."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from labs.pipeline.records import Trajectory


class Buffer:
    """First in, first out, and the trajectories older than a version can be taken out of the middle.

    Beside the line it sorts what waits by start version, but only when `expire` is asked for, so that a trajectory
    that is taken at once is never sorted; every operation costs O(log versions) per trajectory moved. A trajectory
    that left one way is recognised in the other list by its exit, which the caller sets when it leaves.
    """

    __slots__ = ("_by_version", "_line", "_unsorted", "_versions", "size")

    def __init__(self) -> None:
        self.size = 0
        self._line: deque[Trajectory] = deque()
        self._unsorted: list[Trajectory] = []
        self._by_version: dict[int, list[Trajectory]] = {}
        self._versions: list[int] = []

    def put(self, trajectory: Trajectory) -> None:
        """Append one."""
        self.size += 1
        self._line.append(trajectory)
        self._unsorted.append(trajectory)

    def expire(self, oldest: int) -> list[Trajectory]:
        """Take out what started below version `oldest`, oldest version first and in order of arrival within one."""
        by_version, versions = self._by_version, self._versions
        for trajectory in self._unsorted:
            if trajectory.exit is None:
                version = trajectory.start_version
                if version in by_version:
                    by_version[version].append(trajectory)
                else:
                    by_version[version] = [trajectory]
                    heappush(versions, version)
        self._unsorted.clear()
        gone: list[Trajectory] = []
        while versions and versions[0] < oldest:
            gone += [t for t in by_version.pop(heappop(versions)) if t.exit is None]
        self.size -= len(gone)
        return gone

    def take(self, n: int) -> list[Trajectory]:
        """Take out the `n` that arrived first; `n` is at most `size`."""
        line = self._line
        taken: list[Trajectory] = []
        while len(taken) < n:
            trajectory = line.popleft()
            if trajectory.exit is None:
                taken.append(trajectory)
        self.size -= n
        return taken
