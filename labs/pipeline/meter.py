"""How long how many were in which state: the clock behind every statement about waiting."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any


class Meter:
    """Counts by state, per pool, and their integrals over simulated time.

    Whatever moves a count first adds the time since the last change at the old counts, so the integrals of one pool
    add up to its size times the elapsed time by construction of the counts, and disagree with the times of the single
    trajectories if any move is forgotten: that is what the conservation laws check.

    Args:
        env: the SimPy environment whose clock counts.
        pools: `(size, first state)` of every pool.
    """

    __slots__ = ("_last", "areas", "counts", "env")

    def __init__(self, env: Any, pools: list[tuple[int, str]]) -> None:
        self.env = env
        self.counts: list[Counter[str]] = [Counter({state: size}) for size, state in pools]
        self.areas: list[defaultdict[str, float]] = [defaultdict(float) for _ in pools]
        self._last = 0.0

    def advance(self) -> None:
        """Add the time since the last change."""
        passed = self.env._now - self._last
        if passed:
            self._last = self.env._now
            for counts, area in zip(self.counts, self.areas, strict=True):
                for state, n in counts.items():
                    if n:
                        area[state] += n * passed

    def move(self, pool: int, old: str, new: str, n: int = 1) -> None:
        """`n` of a pool go from one state to another."""
        if self.env._now != self._last:
            self.advance()
        counts = self.counts[pool]
        counts[old] -= n
        counts[new] += n

    def add(self, pool: int, state: str, n: int) -> None:
        """`n` more (or fewer) of a pool are in a state; for a pool whose size changes."""
        if self.env._now != self._last:
            self.advance()
        self.counts[pool][state] += n

    def rename(self, pools: int, old: str, new: str) -> None:
        """Everything that waits for one thing waits for another, in the first `pools` pools."""
        if old != new:
            self.advance()
            for counts in self.counts[:pools]:
                if counts.get(old):
                    counts[new] += counts.pop(old)
