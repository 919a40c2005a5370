"""A Gaussian process over what is known of a space, and from it the points most worth knowing next.

It sees losses as ranks, like CMA-ES, so the scale of a loss (seconds, dollars, a penalty) does not matter.
Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", algorithm 2.1; expected improvement is that
of Jones, Schonlau & Welch 1998, "Efficient Global Optimization", eq. (15).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.search.space import Point

Floats = NDArray[np.float64]

_LARGEST = 400  # points fitted, the latest: the fit takes their cube
_DECAY = (0.25, 1.0, 4.0)  # candidates for how fast a knob's values become unlike each other, over its range
_NOISE = 1e-4  # of the ranks' variance: predictions repeat, but for host time


class Surrogate:
    """What `points` with their `losses` (smaller is better) say of other points of a space."""

    def __init__(self, cardinalities: Sequence[int]) -> None:
        self._range = np.maximum(np.array(cardinalities, dtype=np.float64) - 1.0, 1.0)
        self._decay = np.ones(len(cardinalities))
        self._x: Floats = np.empty((0, len(cardinalities)))
        self._y: Floats = np.empty(0)

    def fit(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        self._x = np.array(points[-_LARGEST:], dtype=np.float64) / self._range
        self._y = _normal_ranks(np.array(losses[-_LARGEST:]))
        for knob in range(len(self._decay)):  # one sweep: each knob's decay by the marginal likelihood
            trials = []
            for decay in _DECAY:
                self._decay[knob] = decay
                trials.append((self._log_likelihood(), decay))
            self._decay[knob] = max(trials)[1]
        self._factor = self._cholesky()
        self._weights = _solve(self._factor, self._y)

    def improvement(self, points: Sequence[Point]) -> Floats:
        """[points] How much better than the best known each is expected to be."""
        x = np.array(points, dtype=np.float64) / self._range
        across = self._kernel(x, self._x)
        mean = across @ self._weights
        half = np.linalg.solve(self._factor, across.T)
        deviation = np.sqrt(np.maximum(1.0 - (half**2).sum(axis=0), 1e-12))
        gain = self._y.min() - mean
        z = gain / deviation
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
        improvement: Floats = gain * below + deviation * density
        return improvement

    def _log_likelihood(self) -> float:
        factor = self._cholesky()
        fitted = float(self._y @ _solve(factor, self._y))
        return -0.5 * fitted - float(np.log(np.diag(factor)).sum())

    def _cholesky(self) -> Any:
        return np.linalg.cholesky(self._kernel(self._x, self._x) + _NOISE * np.eye(len(self._x)))

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        """Ornstein-Uhlenbeck in each knob: rough, as memory limits are."""
        distance = np.abs(a[:, None, :] - b[None, :, :]) @ self._decay
        kernel: Floats = np.exp(-distance)
        return kernel


def _solve(factor: Any, y: Floats) -> Any:
    return np.linalg.solve(factor.T, np.linalg.solve(factor, y))


def _normal_ranks(losses: Floats) -> Floats:
    """Normal scores of the losses' ranks, equal losses sharing theirs."""
    from statistics import NormalDist

    _, places, counts = np.unique(losses, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - counts / 2  # of each distinct loss's run of ranks
    scores = np.array([NormalDist().inv_cdf(middle / len(losses)) for middle in middles])
    ranked: Floats = scores[places]
    return ranked
