"""Every admissible point in lexicographic order, as slowly as asked: the space is never held in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from maya.search.algorithms.base import Sampler
from maya.search.space import Point, Space

_BATCH = 32
_LARGEST = 10_000_000  # combinations: no grid that anyone waits for


class GridSampler(Sampler):
    def __init__(self, space: Space) -> None:
        require_walkable(space)
        self._points = space.points()

    def ask(self) -> list[Point]:
        return list(islice(self._points, _BATCH))

    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        """A grid learns nothing."""


def require_walkable(space: Space) -> None:
    """Raises SpaceError for a space that no grid gets through."""
    if space.size > _LARGEST:
        factors = " * ".join(map(str, space.cardinalities))
        raise space.fail(
            "search.algorithm",
            f"a grid of {factors} = {space.size:,} combinations is more than {_LARGEST:,}; use cma or random",
        )
