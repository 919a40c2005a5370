"""How fast this machine was while a job's ranks were recorded: the measurements of `pace.py` that count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 300.0  # older ones never count
# Iterations, of some time before where a job is short. Of a longer one its own alone count: what slows the machine down
# for as long as a job slows all calls of its ranks down, and only a measurement of that time tells.
ENOUGH = 100


@dataclass(frozen=True)
class Pace:
    """Of some iterations of `pace.py`, the least that each of their pieces took. `at`: `time.monotonic()`, of the
    end."""

    at: float
    iterations: int
    pieces_ns: tuple[int, ...]

    @property
    def ns(self) -> int:
        """CPU time of an iteration that nothing disturbs."""
        return sum(self.pieces_ns)

    def and_(self, other: Pace) -> Pace:
        least = (min(pair) for pair in zip(self.pieces_ns, other.pieces_ns, strict=True))
        return Pace(max(self.at, other.at), self.iterations + other.iterations, tuple(least))

    def written(self) -> str:
        return json.dumps([self.at, self.iterations, self.pieces_ns])

    @staticmethod
    def read(text: str) -> list[Pace]:
        """Of whole lines, each as it was written; what stands behind the last line's end is being written."""
        lines = text.split("\n")[:-1]
        return [
            Pace(at, iterations, tuple(pieces_ns)) for at, iterations, pieces_ns in map(json.loads, lines)
        ]


def recent(measured: Iterable[Pace], now: float) -> list[Pace]:
    """Of what was `measured`, what may still count."""
    return [pace for pace in measured if now - pace.at <= WINDOW_SECONDS]


def beside(measured: Sequence[Pace], since: float) -> Pace | None:
    """Of what was `measured`, in the order of time, from `since` on, and before that as far as it takes to make enough
    iterations; None of nothing."""
    found: Pace | None = None
    for pace in reversed(measured):
        if found is not None and found.iterations >= ENOUGH and pace.at < since:
            break
        found = pace if found is None else found.and_(pace)
    return found
