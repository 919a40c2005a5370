"""Gaussian processes over what is known of a space, and from them the points most worth knowing next.

One process models the loss of the points that fit, another whether a point fits at all; a point is worth its
expected improvement times the probability that it fits (Gardner et al. 2014, "Bayesian Optimization with
Inequality Constraints"). Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", algorithm 2.1;
expected improvement is that of Jones, Schonlau & Welch 1998, "Efficient Global Optimization", eq. (15).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.search.algorithms.base import UNFIT
from maya.search.space import Point

Floats = NDArray[np.float64]

_LARGEST = 300  # points fitted, the latest: the fit takes their cube
_DECAY = (0.25, 1.0, 4.0)  # candidates for how fast a knob's values become unlike each other, over its range
_ADDITIVE = (0.2, 0.5, 0.8)  # candidates for the share of the variance that knobs have each by themselves
_NOISE = 1e-4  # of the variance: predictions repeat, but for host time
_REFIT = 1.1  # so many times the points: choose the kernel's parameters anew
_AMONG = 5  # an improvement is one on the best so many, as a search ends when these no longer change
_FEWEST = 3  # points that fit, before their losses are modelled


class Surrogate:
    """What `points` with their `losses` (smaller is better, `UNFIT` and beyond do not fit) say of other points."""

    def __init__(self, cardinalities: Sequence[int]) -> None:
        self._range = np.maximum(np.array(cardinalities, dtype=np.float64) - 1.0, 1.0)
        self._loss = _Process(len(cardinalities))
        self._fit = _Process(len(cardinalities))
        self._best: float | None = None  # in the units of `_loss`
        self._some_fit = self._some_do_not = False

    def fit(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        x = np.array(points[-_LARGEST:], dtype=np.float64) / self._range
        y = np.array(losses[-_LARGEST:])
        fits = y < UNFIT
        self._some_fit, self._some_do_not = bool(fits.any()), bool((~fits).any())
        if self._some_fit and self._some_do_not:
            self._fit.fit(x, np.where(fits, 1.0, -1.0))
        self._best = None
        if fits.sum() >= _FEWEST:
            scale = _log(y[fits])
            spread = float(scale.std()) or 1.0
            self._loss.fit(x[fits], (scale - scale.mean()) / spread)
            self._best = float((np.sort(scale)[min(_AMONG, len(scale)) - 1] - scale.mean()) / spread)

    def worth(self, points: Sequence[Point]) -> Floats:
        """[points] Expected improvement on the best known, in deviations of the log loss, times P(fits)."""
        x = np.array(points, dtype=np.float64) / self._range
        likely = np.full(len(points), 1.0 if self._some_fit else 0.5)
        if self._some_fit and self._some_do_not:
            mean, deviation = self._fit.predict(x)
            likely = _below(mean / deviation)
        if self._best is None:
            return likely
        mean, deviation = self._loss.predict(x)
        gain = self._best - mean
        z = gain / deviation
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        improvement: Floats = (gain * _below(z) + deviation * density) * likely
        return improvement

    def expected(self, points: Sequence[Point]) -> Floats:
        """[points] A value that orders points as their losses are expected to be ordered."""
        x = np.array(points, dtype=np.float64) / self._range
        mean = self._loss.predict(x)[0] if self._best is not None else np.zeros(len(points))
        if self._some_fit and self._some_do_not:
            fits = self._fit.predict(x)[0]
            return np.where(fits >= 0.0, mean, 1e3 - fits)
        return mean


class _Process:
    """A process of zero mean over [0, 1]^knobs; its kernel's parameters are those of the highest likelihood."""

    def __init__(self, knobs: int) -> None:
        self._decay = np.ones(knobs)
        self._additive = _ADDITIVE[1]
        self._x: Floats = np.empty((0, knobs))
        self._y: Floats = np.empty(0)
        self._fitted_at = 0  # points, when the parameters were last chosen

    def fit(self, x: Floats, y: Floats) -> None:
        self._x, self._y = x, y
        apart = np.abs(x[:, None, :] - x[None, :, :])
        if len(y) >= _REFIT * self._fitted_at:
            self._choose(apart)
            self._fitted_at = len(y)
        self._factor = self._cholesky(np.exp(-apart * self._decay), self._additive)
        self._weights = _solve(self._factor, y)

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """[points] mean and standard deviation."""
        across = _kernel(np.exp(-np.abs(x[:, None, :] - self._x[None, :, :]) * self._decay), self._additive)
        half = np.linalg.solve(self._factor, across.T)
        return across @ self._weights, np.sqrt(np.maximum(1.0 - (half**2).sum(axis=0), 1e-12))

    def _choose(self, apart: Floats) -> None:
        """One sweep over the kernel's parameters, each in turn the likeliest: they settle as points come in."""
        each = np.exp(-apart * self._decay)
        for knob in range(len(self._decay)):
            likelihoods = []
            for decay in _DECAY:
                each[:, :, knob] = np.exp(-apart[:, :, knob] * decay)
                likelihoods.append((self._likelihood(each, self._additive), decay))
            self._decay[knob] = max(likelihoods)[1]
            each[:, :, knob] = np.exp(-apart[:, :, knob] * self._decay[knob])
        self._additive = max(_ADDITIVE, key=lambda share: self._likelihood(each, share))

    def _likelihood(self, each: Floats, additive: float) -> float:
        factor = self._cholesky(each, additive)
        fitted = float(self._y @ _solve(factor, self._y))
        return -0.5 * fitted - float(np.log(np.diag(factor)).sum())

    def _cholesky(self, each: Floats, additive: float) -> Any:
        return np.linalg.cholesky(_kernel(each, additive) + _NOISE * np.eye(len(self._x)))


def _kernel(each: Floats, additive: float) -> Floats:
    """[..., knobs] -> [...] Ornstein-Uhlenbeck in each knob, rough as memory limits are: their mean and product."""
    kernel: Floats = additive * each.mean(axis=-1) + (1.0 - additive) * each.prod(axis=-1)
    return kernel


def _solve(factor: Any, y: Floats) -> Any:
    return np.linalg.solve(factor.T, np.linalg.solve(factor, y))


def _below(z: Floats) -> Floats:
    """Of the standard normal distribution."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])


def _log(losses: Floats) -> Floats:
    """Knobs multiply times and costs. Losses that are to be maximised are negative."""
    scaled: Floats = np.sign(losses) * np.log(np.maximum(np.abs(losses), 1e-300))
    return scaled
