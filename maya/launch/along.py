"""One axis of a large world: the ranks that differ from rank 0 only along it, and what some of them tell of others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from maya.launch.observed import Observed
from maya.launch.stages import hashes_in_line
from maya.launch.topology import Axis, Topology

ALL_AT_ONCE = 16  # the longest axis that is started whole when its ends differ
LONGEST_SEARCH = 64  # ranks started along one axis, at most
# What ranks may differ in their number of calls where one is made to stand for all along an axis.
ALIKE = 0.05
# Stages of the shortest pipeline of which those between are told by others: five of them run.
LONG_PIPELINE = 8


class Along:
    """`ranks` are those along the axis, by position; `seen` is what the started ranks of the world did, and grows."""

    def __init__(
        self, topology: Topology, axis: Axis, ranks: list[int], seen: Mapping[int, Observed]
    ) -> None:
        self.axis = axis
        self.ranks = ranks
        self._topology = topology
        self.told: frozenset[int] = frozenset()  # positions that those `telling` tell of
        self.telling = (0, 0)
        self.classes = np.zeros(axis.size, np.int32)  # [size] the position that stands for each
        self.approximate = False  # the first rank stands for others that nearly equal it
        self._seen = seen

    def probes(self) -> list[int]:
        """Positions to start next; none when enough is known."""
        size, known = self.axis.size, self._known
        ends = sorted({0, 1, size - 1})
        if not set(ends) <= set(known):
            return ends
        if self._irregular or len(known) >= LONGEST_SEARCH:
            return []
        if pivots := self._pivots():
            if not set(pivots) <= set(known):
                return list(pivots)
            if self._tell_between(*pivots):
                return []
        if known == ends and len({self._hash(p) for p in ends}) == len(ends) and self.spread <= ALIKE:
            return [size // 2]  # all differ a little: one more tells whether this is the rule
        open_gaps = [
            (a, b) for a, b in itertools.pairwise(known) if b - a > 1 and self._hash(a) != self._hash(b)
        ]
        return [p for a, b in open_gaps for p in (range(a + 1, b) if size <= ALL_AT_ONCE else [(a + b) // 2])]

    def _pivots(self) -> tuple[int, int, int] | None:
        """Positions of a long pipeline: two that tell of those between, and beyond up to the third, which confirms."""
        size = self.axis.size
        if size < LONG_PIPELINE:
            return None
        ends = (self._at(position) for position in (0, size - 1))
        # Transfers in another group, such as the world's, are not told from a stage to the next (trace/inferred.py).
        if not all({f for f, _ in end.transfers} & self.axis.families and end.blocks() for end in ends):
            return None
        # Layers of two kinds in turn make every other stage another one: no distance between the three may hide that.
        upper = next(p for p in range(size // 2, 1, -1) if math.gcd(p - 1, size - 3) == 1)
        return 1, upper, size - 2

    def _tell_between(self, lower: int, upper: int, last: int) -> bool:
        blocks = {p: self._at(p).blocks() for p in (lower, upper, last)}
        share = Fraction(last - lower, upper - lower)
        if hashes_in_line(blocks[lower], blocks[upper], share) != blocks[last]:
            return False
        self.told, self.telling = frozenset(range(self.axis.size)) - set(self._known), (lower, upper)
        return True

    def nearly_alike(self) -> bool:
        """Whether the started ranks made the same calls, but for a few, as for loading a batch."""
        if self._hand_on():
            return False
        first, *others = map(self._at, self._known)
        return all(first.hash == one.hash or first.share_unlike(one) <= ALIKE for one in others)

    def classify(self) -> list[str]:
        """Fills `classes`: of a started rank the lowest position of equal work, of others that of the nearest one
        below. Notes where one is made to stand for all."""
        if self._irregular:
            return [self.first_for_all()]
        first: dict[int, int] = {}
        current = 0
        for position in range(self.axis.size):
            if position in self.told:
                current = position
            elif self.ranks[position] in self._seen:
                current = first.setdefault(self._hash(position), position)
            self.classes[position] = current
        return []

    def first_for_all(self) -> str:
        """Makes all one class; what to say of it."""
        calls = [self._at(p).calls for p in self._known]
        self.approximate = True
        self.classes[:] = 0
        return (
            f"ranks along an axis of {self.axis.size} differ a little ({min(calls):,} to {max(calls):,} device "
            f"calls in {len(calls)} of them): the first stands for all"
        )

    @property
    def standing(self) -> list[int]:
        """Positions that stand for a class."""
        return sorted(set(self.classes.tolist()))

    @property
    def spread(self) -> float:
        """By how much the calls of the started ranks differ. Infinite for an axis along which ranks send to single
        peers: there the order of calls matters, as in a pipeline."""
        if self._hand_on():
            return math.inf
        calls = [self._at(p).calls for p in self._known]
        return max(calls) / max(min(calls), 1) - 1

    def _hand_on(self) -> bool:
        """Whether a started rank sent to one that is elsewhere along the axis, or received from it."""
        places = self.axis.position
        transfers = ((self.ranks[p], transfer) for p in self._known for transfer in self._at(p).transfers)
        peers = ((rank, self._topology.peer(rank, *transfer)) for rank, transfer in transfers)
        return any(peer is not None and places[peer] != places[rank] for rank, peer in peers)

    @property
    def _irregular(self) -> bool:
        """Every rank differs from every other, a little, as when optimizer state is cut across parameters."""
        known = self._known
        different = len({self._hash(p) for p in known}) == len(known)
        return len(known) >= min(self.axis.size, 4) > 2 and different and self.spread <= ALIKE

    @property
    def _known(self) -> list[int]:
        return [position for position, rank in enumerate(self.ranks) if rank in self._seen]

    def _at(self, position: int) -> Observed:
        return self._seen[self.ranks[position]]

    def _hash(self, position: int) -> int:
        return self._at(position).hash
