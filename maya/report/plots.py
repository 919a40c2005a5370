"""Small line plots as SVG points: what a page draws without a library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
_POINTS: Final = 500  # finer than a screen shows


def steps(places: Sequence[float], values: Sequence[float], until: float, most: float) -> str:
    """`points` of a polyline: each value holds from its place to the next, the last `until`; `most` is the top."""
    if not places or until <= places[0] or most <= 0:
        return ""
    scale = WIDTH / (until - places[0])
    points = []
    for place, following, value in zip(places, [*places[1:], until], values, strict=True):
        y = HEIGHT * (1 - min(1.0, value / most))
        points += [(scale * (place - places[0]), y), (scale * (following - places[0]), y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def thinned(values: Sequence[float]) -> list[float]:
    """Means of neighbours, so that a few hundred are left."""
    width = -(-len(values) // _POINTS)
    parts = [values[first : first + width] for first in range(0, len(values), width)] if width else []
    return [sum(part) / len(part) for part in parts]
