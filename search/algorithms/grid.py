"""Every admissible point in lexicographic order, as slowly as asked: the space is never held in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from maya.search.algorithms.base import Sampler
from maya.search.space import Point, Space

_BATCH = 32


class GridSampler(Sampler):
    def __init__(self, space: Space) -> None:
        self._points = space.points()

    def ask(self) -> list[Point]:
        return list(islice(self._points, _BATCH))

    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        """A grid learns nothing."""
