"""Random search without replacement: the baseline every other sampler has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from maya.search.algorithms.base import Sampler
from maya.search.algorithms.unseen import Unseen
from maya.search.space import Point, Space

_BATCH = 16


class RandomSampler(Sampler):
    def __init__(self, space: Space, seed: int) -> None:
        self._unseen = Unseen(space, seed)

    def ask(self) -> list[Point]:
        drawn = (self._unseen.draw() for _ in range(_BATCH))
        return [point for point in drawn if point is not None]

    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        """Random search learns nothing."""
