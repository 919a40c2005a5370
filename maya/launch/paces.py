"""How fast this machine has been of late: the measurements of `pace.py` that still count."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 300.0  # older ones never count
# Iterations, of a few jobs where one is short. Of a longer one its own alone count: what slows the machine down for as
# long as a job slows all calls of its ranks down, and only a measurement of that time tells.
ENOUGH = 100


@dataclass(frozen=True)
class Pace:
    """Of some iterations of `pace.py`, the least that each of their pieces took."""

    iterations: int = 0
    pieces_ns: tuple[int, ...] = ()

    @property
    def ns(self) -> int | None:
        """CPU time of an iteration that nothing disturbs; None of none."""
        return sum(self.pieces_ns) or None

    def and_(self, other: Pace) -> Pace:
        if not (self.iterations and other.iterations):
            return self if self.iterations else other
        least = (min(pair) for pair in zip(self.pieces_ns, other.pieces_ns, strict=True))
        return Pace(self.iterations + other.iterations, tuple(least))

    def written(self) -> str:
        return json.dumps([self.iterations, self.pieces_ns])

    @staticmethod
    def read(text: str) -> Pace:
        iterations, pieces_ns = json.loads(text)
        return Pace(iterations, tuple(pieces_ns))


class Paces:
    """What was measured beside one job after another. Times are `time.monotonic()`, in order."""

    def __init__(self) -> None:
        self._measured: deque[tuple[float, Pace]] = deque()

    def add(self, now: float, pace: Pace) -> None:
        self._measured.append((now, pace))

    def latest(self, now: float) -> Pace:
        """Of the last job, and of those before it as far as they are needed to make enough iterations."""
        while self._measured and now - self._measured[0][0] > WINDOW_SECONDS:
            self._measured.popleft()
        found = Pace()
        for _, pace in reversed(self._measured):
            if found.iterations >= ENOUGH:
                break
            found = found.and_(pace)
        return found
