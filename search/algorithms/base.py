"""The contract of a sampler: `ask` for a batch of points, `tell` what they were worth.

A sampler is deterministic: the same seed, and the same losses told, give the same points asked. It may ask a
point twice or one that is inadmissible; the search tells it what it knows without running anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from maya.search.space import Point

UNFIT = 1e15  # losses from here on are of points that do not fit, fail or are inadmissible


class Sampler(ABC):
    @abstractmethod
    def ask(self) -> list[Point]:
        """The next batch; empty when there is nothing left to propose."""

    def learn(self, points: Sequence[Point], losses: Sequence[float]) -> None:  # noqa: B027 (may be ignored)
        """Losses, as `tell` has them, of canonical points that this sampler did not ask for."""

    @abstractmethod
    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        """The losses of the batch last asked, in its order: finite, smaller is better.

        A point out of memory has a loss of `UNFIT` or more, larger by what it lacked; a failed or
        inadmissible one lies beyond those.
        """
