"""How fast this machine has been of late: the measurements of `pace.py` that still count."""

from __future__ import annotations

from collections import deque

EVERY_SECONDS = 30.0
# The fastest of so long counts. What disturbs the machine slows a measurement down, by up to a half, but not the host
# time of ranks: that is the least that like calls took, and repeats within a few percent (scripts/bench/repeat).
WINDOW_SECONDS = 300.0
FEWEST = 2  # a neighbour may be busy just at the first


class Paces:
    """Times are `time.monotonic()`, in order."""

    def __init__(self) -> None:
        self._measured: deque[tuple[float, int]] = deque()  # when, ns

    def due(self, now: float) -> bool:
        """Whether to measure before a job, and after it."""
        return not self._measured or now - self._measured[-1][0] >= EVERY_SECONDS

    @property
    def too_few(self) -> bool:
        """Whether to measure after a job, however short it was."""
        return len(self._measured) < FEWEST

    def add(self, now: float, pace_ns: int) -> None:
        self._measured.append((now, pace_ns))
        while now - self._measured[0][0] > WINDOW_SECONDS:
            self._measured.popleft()

    @property
    def fastest_ns(self) -> int | None:
        return min((pace for _, pace in self._measured), default=None)
