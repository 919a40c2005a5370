"""Begins a search with the best of an earlier one, of the same space or one that resembles it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maya.search.algorithms import Sampler
from maya.search.expression import Value
from maya.search.journal import read_journal
from maya.search.space import Point, Space, index_of

_POINTS = 8


def best_configurations(directory: Path) -> list[dict[str, Value]]:
    """The configurations of an experiment that fit, fastest first. Raises JournalError."""
    fitting: list[tuple[float, dict[str, Any]]] = []
    for line in read_journal(directory):
        time = line.get("prediction", {}).get("iteration_time_s")
        if line.get("verdict") in ("FITS", "INCOMPLETE") and time is not None:
            fitting.append((time, line["configuration"]))
    return [configuration for _, configuration in sorted(fitting, key=lambda entry: entry[0])[:_POINTS]]


class WarmStart(Sampler):
    """Proposes what was best before, tells `sampler` of it, then leaves the rest to it."""

    def __init__(self, sampler: Sampler, space: Space, before: Sequence[Mapping[str, Value]]) -> None:
        self._sampler = sampler
        points = dict.fromkeys(_resembling(space, configuration) for configuration in before)
        self._first = [point for point in points if space.admissible(point)]
        self._asked_first = False

    def ask(self) -> list[Point]:
        if self._first and not self._asked_first:
            self._asked_first = True
            return self._first
        return self._sampler.ask()

    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        if list(points) == self._first:
            self._first = []
            self._sampler.learn(points, losses)
        else:
            self._sampler.tell(points, losses)


def _resembling(space: Space, configuration: Mapping[str, Value]) -> Point:
    """The point with the same values wherever this space has them, and each other knob's first value."""
    point = []
    for knob in space.knobs:
        try:
            point.append(index_of(knob.values, configuration[knob.name]))
        except (KeyError, ValueError):
            point.append(0)
    return space.canonical(tuple(point))
