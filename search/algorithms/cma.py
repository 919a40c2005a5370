"""CMA-ES over index space: each knob is an integer coordinate, binary knobs are 0 or 1.

pycma's integer handling keeps a coordinate's spread from falling below one step (Hansen 2011, "A CMA-ES for
mixed-integer nonlinear optimization"). When the distribution has collapsed, or several generations bring no
new point, the search restarts elsewhere with a larger population (Auger & Hansen 2005, IPOP-CMA-ES).
A trial costs seconds and a surrogate's answer milliseconds: of each generation only what a surrogate of all that is
known thinks worthiest is launched, and it answers for the rest (Kern, Hansen & Koumoutsakos 2006, "Local
Meta-Models for Optimization Using Evolution Strategies"). Beside it go the worthiest unseen points of the whole
space and an unseen point at random, which the strategy is not told of.
"""

from __future__ import annotations

import heapq
import math
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, cycle, islice, product
from typing import Any

import numpy as np

from maya.search.algorithms.base import Sampler
from maya.search.algorithms.surrogate import Surrogate
from maya.search.algorithms.unseen import Unseen
from maya.search.space import Point, Space

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pycma asks for matplotlib, which nothing here plots with
    import cma  # type: ignore[import-untyped]

_STALE_GENERATIONS = 3  # so many without a new point: restart
_LARGEST_POPULATION = 64
_ELITE = 3  # best points whose neighbours are candidates
_SCREENED = 0.34  # of a generation is launched: what the surrogate expects most of; it answers for the rest
_WORTHIEST = 3  # points of the whole space that the surrogate chooses, a generation
_PROBES = 3  # and values of knobs of each of which it chooses one
_ENUMERABLE = 20_000  # knob settings within which all points of a space are candidates
_BEYOND = 1e9  # where inadmissible points begin among what the surrogate expects
_CANDIDATES = 64  # at random, that the surrogate chooses from besides the neighbours of the best
_EXPLORERS = 1  # a generation, and one more after each restart
_INITIAL_SIGMA = 0.3  # of a knob's range: pycma's advice, about a third of the region of interest


class CmaSampler(Sampler):
    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._unseen = Unseen(space, seed)
        self._numbers = np.random.RandomState(seed)
        self._draws = random.Random(seed)
        self._free = [place for place, count in enumerate(space.cardinalities) if count > 1]
        # pycma wants two dimensions at least; the ones added here decide nothing.
        padding = [2] * max(0, 2 - len(self._free))
        self._top = np.array([*(space.cardinalities[place] for place in self._free), *padding]) - 1.0
        self._surrogate = Surrogate(space.cardinalities)
        strata = [(place, value) for place in self._free for value in range(space.cardinalities[place])]
        self._strata = cycle(self._draws.sample(strata, len(strata)))
        self._all = space.all_points(_ENUMERABLE)
        self._known: dict[Point, float] = {}  # admissible points and their losses
        self._stale = 0
        self._restarts = 0
        self._population = int(4 + 3 * np.log(len(self._top)))  # Hansen 2016, eq. (48)
        self._strategy: Any = None
        self._vectors: list[Any] = []
        self._generation: list[Point] = []  # `_vectors` on the grid
        self._restart(centre=self._top / 2)

    def ask(self) -> list[Point]:
        """One generation, rounded to the grid and clipped to it, and a few unseen points beside it."""
        start: Point | None = None
        if self._stale >= _STALE_GENERATIONS or self._collapsed():
            start = self._unseen.draw()
            if start is None:
                return []
            self._restarts += 1
            self._population = min(2 * self._population, _LARGEST_POPULATION)
            self._restart(self._vector(start))
        with self._own_numbers():
            self._vectors = self._strategy.ask()
        self._generation = [self._space.canonical(self._round(vector)) for vector in self._vectors]
        launched = self._screened(self._generation)
        self._stale = self._stale + 1 if self._note(launched) == 0 else 0
        beside = [start] if start is not None else []
        return [*launched, *beside, *self._promising(), *self._explorers()]

    def learn(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        """Begins where the best of them is."""
        self._note(points)
        self._known.update(zip(points, losses, strict=True))
        self._fit()
        if points:
            self._restart(self._vector(min(self._known, key=lambda point: (self._known[point], point))))

    def tell(self, points: Sequence[Point], losses: Sequence[float]) -> None:
        told = dict(zip(map(self._space.canonical, points), losses, strict=True))
        self._known.update((point, loss) for point, loss in told.items() if self._space.admissible(point))
        self._fit()
        with self._own_numbers():
            self._strategy.tell(self._vectors, self._losses(self._generation, told))

    def _note(self, points: Sequence[Point]) -> int:
        """Mark admissible points as proposed; how many of them are new."""
        return sum(
            self._unseen.mark(point)
            for point in map(self._space.canonical, points)
            if self._space.admissible(point)
        )

    def _fit(self) -> None:
        if len(self._known) >= 2:
            self._surrogate.fit(list(self._known), list(self._known.values()))

    def _screened(self, generation: list[Point]) -> list[Point]:
        """The points of a generation to launch: the worthiest of the new ones, and all of the first generations."""
        if len(self._known) < len(generation):
            return generation
        new = list(dict.fromkeys(self._new(generation)))
        if not new:
            return []
        worth = dict(zip(new, self._surrogate.worth(new).tolist(), strict=True))
        count = math.ceil(_SCREENED * len(generation))
        return sorted(new, key=worth.__getitem__, reverse=True)[:count]

    def _losses(self, generation: list[Point], told: dict[Point, float]) -> list[float]:
        """[generation] As told; where not every point was launched, in the order that the surrogate expects."""
        if all(point in told for point in generation):
            return [told[point] for point in generation]
        expected = self._surrogate.expected(generation).tolist()
        return [
            value if self._space.admissible(point) else _BEYOND * (1.0 + self._space.violation(point))
            for point, value in zip(generation, expected, strict=True)
        ]

    def _promising(self) -> list[Point]:
        """The unseen points that the surrogate expects most of, and the same for some values of knobs in turn.

        Basins of a memory-bound space differ in several knobs at once (recomputation off needs deeper pipelines and
        smaller micro-batches): looking at each value of each knob by itself reaches those that the best is not in.
        """
        candidates = self._candidates() if len(self._known) >= 2 else []
        if not candidates:
            return []
        worth = dict(zip(candidates, self._surrogate.worth(candidates).tolist(), strict=True))
        chosen = heapq.nlargest(_WORTHIEST, candidates, key=worth.__getitem__)
        for place, value in islice(self._strata, _PROBES):
            inside = [point for point in candidates if point[place] == value and point not in chosen]
            if inside:
                chosen.append(max(inside, key=worth.__getitem__))
        return [point for point in chosen if self._note([point])]

    def _candidates(self) -> list[Point]:
        """Unseen admissible points: one and two knobs away from the best, and some at random."""
        elite = sorted(self._known, key=lambda point: (self._known[point], point))[:_ELITE]
        near: Iterable[Point] = ()
        if self._all is None:
            near = (point for best in elite for knobs in (1, 2) for point in self._around(best, knobs))
        return sorted(set(self._new(near)) | set(self._pool()))

    def _pool(self) -> list[Point]:
        """All unseen points of a space that is small enough, else some at random."""
        if self._all is not None:
            self._all = [point for point in self._all if self._unseen.is_new(point)]
            return self._all
        drawn = (self._space.sample(self._draws) for _ in range(_CANDIDATES))
        return [point for point in drawn if point is not None and self._unseen.is_new(point)]

    def _new(self, points: Iterable[Point]) -> Iterator[Point]:
        for point in map(self._space.canonical, points):
            if self._unseen.is_new(point) and self._space.admissible(point):
                yield point

    def _around(self, centre: Point, knobs: int) -> Iterator[Point]:
        """Points that differ from `centre` in so many knobs by one step each."""
        for places in combinations(self._free, knobs):
            for steps in product((-1, 1), repeat=knobs):
                point = list(centre)
                for place, step in zip(places, steps, strict=True):
                    point[place] += step
                if all(0 <= point[place] < self._space.cardinalities[place] for place in places):
                    yield tuple(point)

    def _explorers(self) -> list[Point]:
        drawn = (self._unseen.draw() for _ in range(_EXPLORERS + self._restarts))
        return [point for point in drawn if point is not None]

    def _vector(self, point: Point) -> Any:
        vector = np.zeros(len(self._top))
        vector[: len(self._free)] = [point[place] for place in self._free]
        return vector

    def _round(self, vector: Any) -> Point:
        point = [0] * len(self._space.cardinalities)
        for place, index in zip(self._free, np.clip(np.rint(vector), 0, self._top), strict=False):
            point[place] = int(index)
        return tuple(point)

    def _collapsed(self) -> bool:
        with self._own_numbers():
            return bool(self._strategy.stop())

    def _restart(self, centre: Any) -> None:
        self._stale = 0
        options = {
            "bounds": [-0.5, (self._top + 0.5).tolist()],  # each index owns an interval of length one
            "integer_variables": list(range(len(self._top))),
            "CMA_stds": self._top.tolist(),
            "popsize": self._population,
            "seed": np.nan,  # numbers come from `_own_numbers`
            "verbose": -9,
            "verb_log": 0,
            "verb_disp": 0,
        }
        with self._own_numbers():
            self._strategy = cma.CMAEvolutionStrategy(centre.tolist(), _INITIAL_SIGMA, options)

    @contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """pycma draws from numpy's global generator: lend it this sampler's state, then put it back."""
        theirs = np.random.get_state()
        np.random.set_state(self._numbers.get_state())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            self._numbers.set_state(np.random.get_state())
            np.random.set_state(theirs)
