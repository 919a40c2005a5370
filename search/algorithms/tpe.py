"""Optuna's tree-structured Parzen estimator, as a baseline; needs the `tpe` extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maya.errors import MayaError
from maya.search.algorithms.base import Sampler
from maya.search.algorithms.unseen import Unseen
from maya.search.space import Point, Space

_BATCH = 8
_STALE_BATCHES = 3  # so many without a new point: random search from there on


class MissingExtraError(MayaError):
    """`tpe` was asked for and Optuna is not installed."""


class TpeSampler(Sampler):
    def __init__(self, space: Space, seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingExtraError("algorithm tpe needs Optuna: pip install 'maya-search[tpe]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._unseen = Unseen(space, seed)
        self._distributions: dict[str, Any] = {
            f"{place:04}": optuna.distributions.IntDistribution(0, count - 1)
            for place, count in enumerate(space.cardinalities)
        }
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler)
        self._trials: list[Any] = []
        self._stale = 0

    def ask(self) -> list[Point]:
        if self._stale >= _STALE_BATCHES:  # the estimator repeats itself: what is left, at random
            self._trials = []
            drawn = (self._unseen.draw() for _ in range(_BATCH))
            return [point for point in drawn if point is not None]
        self._trials = [self._study.ask(self._distributions) for _ in range(_BATCH)]
        points = [tuple(trial.params[key] for key in sorted(trial.params)) for trial in self._trials]
        canonical = [self._space.canonical(point) for point in points]
        new = [self._unseen.mark(point) for point in canonical if self._space.admissible(point)]
        self._stale = 0 if any(new) else self._stale + 1
        return points

    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        for trial, loss in zip(self._trials, losses, strict=False):
            self._study.tell(trial, loss)
