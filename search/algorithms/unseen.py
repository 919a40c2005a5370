"""Admissible points at random that were not drawn before; in the end, proof that none is left."""

from __future__ import annotations

import random
from collections.abc import Iterator

from maya.search.space import OutOfSteps, Point, Space

_ATTEMPTS = 64
_WALK_STEPS = 2_000_000  # knob settings tried before the rest of a space counts as out of reach


class Unseen:
    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._random = random.Random(seed)
        self._seen: set[Point] = set()
        self._rest: Iterator[Point] | None = None  # once sampling finds nothing new: what a walk still holds

    def mark(self, point: Point) -> bool:
        """Count a canonical point as seen; whether it was new."""
        new = point not in self._seen
        self._seen.add(point)
        return new

    def is_new(self, point: Point) -> bool:
        return point not in self._seen

    def draw(self) -> Point | None:
        """A new point, marked as seen; None when every admissible point has been."""
        if self._rest is None:
            for _ in range(_ATTEMPTS):
                point = self._space.sample(self._random)
                if point is not None and point not in self._seen:
                    self._seen.add(point)
                    return point
            self._rest = self._space.points(self._random, _WALK_STEPS)
        try:
            point = next(point for point in self._rest if point not in self._seen)
        except (StopIteration, OutOfSteps):
            return None
        self._seen.add(point)
        return point
