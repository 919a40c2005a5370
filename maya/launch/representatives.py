"""Which ranks of a large world to start: the few whose work stands for that of all.

The world's axes (topology.py) give each rank coordinates. Ranks that differ from rank 0 in one coordinate show where
along that axis the work changes; ranks of equal work along every axis are then one class. Random ranks check it.
Of a long pipeline the stages between need not run where their loops tell what they do (stages.py).
Nothing here starts anything: `batches` yields ranks, and finds what they did in `seen` when it goes on.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from maya.launch.observed import Observed
from maya.launch.roles import Role, role_of
from maya.launch.stages import Between, hashes_in_line
from maya.launch.topology import Axis, Topology

CHECKS = 3  # random ranks that are started only to be compared
ALL_AT_ONCE = 16  # the longest axis that is started whole when its ends differ
LONGEST_SEARCH = 64  # ranks started along one axis, at most
# What ranks may differ in their number of calls where one is made to stand for all along an axis.
ALIKE = 0.05
# Stages of the shortest pipeline of which those between are told by others: five of them run.
LONG_PIPELINE = 8
# Combinations of classes, each of which takes a rank, beyond which nearly equal classes become one: as ranks that load
# a batch and those that are sent it.
MANY = 12
MANY_OF_SEVERAL_JOBS = 4


class Representatives:
    """The plan for one world; `seen` is filled by whoever starts the ranks.

    Ranks are compared by their second iteration: what the first compiles and tunes depends on who came first. With
    `trusting` the first is enough, nothing is checked, and fewer classes are told apart. Along axes whose role is in
    `alike` the first rank stands for all, and nothing is checked either.
    `read_topology` is called when the first ranks have run: they know the groups of the world.
    """

    merges = True

    def __init__(
        self,
        world: int,
        read_topology: Callable[[], Topology],
        *,
        trusting: bool = False,
        alike: Set[Role] = frozenset(),
    ) -> None:
        self.world = world
        self.compared_at = 1 if trusting else 2
        self.topology: Topology | None = None
        self.axes: list[Axis] = []
        self.seen: dict[int, Observed] = {}
        self.checked: list[int] = []
        self.contradicting: list[int] = []
        self.notes: list[str] = []
        self.alike_along: Mapping[Role, bool] = {}
        self._read_topology = read_topology
        self._alike_roles = alike
        self._checks = 0 if trusting or alike else CHECKS
        self._many = MANY_OF_SEVERAL_JOBS if trusting else MANY
        self._classes: list[NDArray[np.int32]] = []  # by axis, [size]: the position that stands for each
        self._approximate: set[int] = (
            set()
        )  # axes along which the first rank stands for others that nearly equal it
        self._rank_at: dict[tuple[int, ...], int] = {}
        self._told: dict[int, frozenset[int]] = {}  # by axis, positions that others tell of
        self._line_check: tuple[int, Between] | None = None

    def batches(self) -> Iterator[list[int]]:
        # A neighbour is a probe along the innermost axis, whatever that is.
        yield [0] if self._alike_roles else [0, 1]
        self.topology = self._read_topology()
        self.axes = self.topology.axes()
        coordinates = zip(*(axis.position.tolist() for axis in self.axes), strict=True)
        self._rank_at = {place: rank for rank, place in enumerate(coordinates)}
        for axis in range(len(self.axes)):
            self._classes.append(np.zeros(self.axes[axis].size, np.int32))
        in_question = self._in_question()
        while wanted := self._new(itertools.chain(*(self._probes(axis) for axis in in_question))):
            yield wanted
        for axis in range(len(self.axes)):
            self._classes[axis] = self._positions_alike(axis)
        self.alike_along = {self._role(axis): self._nearly_alike(axis) for axis in in_question}
        self._merge_while_many()
        self.checked = self._unseen_ranks()
        if wanted := self._new([*self._products(), *self.checked]):
            yield wanted
        yield from self._mend()

    def representative_of(self) -> tuple[int, ...]:
        columns = [stands[axis.position] for stands, axis in zip(self._classes, self.axes, strict=True)]
        first = self._first_of_hash()
        found = [self._rank_at[tuple(c)] for c in np.stack(columns, 1).tolist()] if columns else [0]
        told = self._told_combinations()
        stands: dict[Between, int] = {}
        result = [
            stands.setdefault(told[rank], rank) if rank in told else first[self.seen[rank].hash]
            for rank in found
        ]
        for rank, seen in self.seen.items():
            if not self._alike(rank, found[rank]):
                result[rank] = first[seen.hash]
        return tuple(result)

    @property
    def inferred(self) -> dict[int, Between]:
        """Ranks that stand for themselves and others without having been started."""
        told = self._told_combinations()
        if not told:
            return {}
        return {rank: told[rank] for rank in sorted(set(self.representative_of()) & set(told))}

    def start_inferred(self) -> list[int]:
        """Infers none from now on: the ranks to start for that."""
        ranks = list(self._told_combinations())
        self._told.clear()
        return ranks

    def nearest(self, started: list[int]) -> NDArray[np.int64]:
        """[world] The started rank with the most coordinates in common; the earlier one of two."""
        ranks = np.array(started)
        common = np.zeros((len(ranks), self.world), np.int32)
        for axis in self.axes:
            common += axis.position[ranks][:, None] == axis.position[None, :]
        return np.asarray(ranks[common.argmax(axis=0)])

    # --- axes of known roles -------------------------------------------------------------------------------

    def _role(self, axis: int) -> Role:
        assert self.topology is not None
        return role_of(self.axes[axis], self.topology, self.seen[0].used)

    def _in_question(self) -> list[int]:
        """Axes whose ranks are to be told apart; a note says of the others what stands for them."""
        alike = [axis for axis in range(len(self.axes)) if self._role(axis) in self._alike_roles]
        if alike:
            sizes = " and ".join(str(self.axes[axis].size) for axis in alike)
            self.notes.append(
                f"the first rank along axes of {sizes} ranks stands for all: in the jobs of this script "
                f"before, at most {ALIKE:.0%} of what the others did differed"
            )
        return [axis for axis in range(len(self.axes)) if axis not in alike]

    def _nearly_alike(self, axis: int) -> bool:
        """Whether the ranks started along an axis made the same calls, but for a few, as for loading a batch."""
        first, *others = (self.seen[self._at(axis, p)] for p in self._known(axis))
        if any(one.transfers & self.axes[axis].families for one in (first, *others)):
            return False
        return all(first.hash == one.hash or first.share_unlike(one) <= ALIKE for one in others)

    # --- along one axis ------------------------------------------------------------------------------------

    def _probes(self, axis: int) -> list[int]:
        size = self.axes[axis].size
        ends = sorted({0, 1, size - 1})
        known = self._known(axis)
        if not set(ends) <= set(known):
            return [self._at(axis, position) for position in ends]
        if self._irregular(axis) or len(known) >= LONGEST_SEARCH:
            return []
        if pivots := self._pivots(axis):
            if not set(pivots) <= set(known):
                return [self._at(axis, position) for position in pivots]
            if self._tell_between(axis, *pivots):
                return []
        if (
            known == ends
            and len({self._hash(axis, p) for p in ends}) == len(ends)
            and self._spread(axis) <= ALIKE
        ):
            return [self._at(axis, size // 2)]  # all differ a little: one more tells whether this is the rule
        open_gaps = [
            (a, b)
            for a, b in itertools.pairwise(known)
            if b - a > 1 and self._hash(axis, a) != self._hash(axis, b)
        ]
        inside = [
            p for a, b in open_gaps for p in (range(a + 1, b) if size <= ALL_AT_ONCE else [(a + b) // 2])
        ]
        return [self._at(axis, position) for position in inside]

    def _pivots(self, axis: int) -> tuple[int, int, int] | None:
        """Positions of a long pipeline: two that tell of those between, and beyond up to the third, which confirms."""
        size = self.axes[axis].size
        if size < LONG_PIPELINE:
            return None
        ends = (self.seen[self._at(axis, position)] for position in (0, size - 1))
        if not all(end.transfers & self.axes[axis].families and end.blocks() for end in ends):
            return None
        # Layers of two kinds in turn make every other stage another one: no distance between the three may hide that.
        upper = next(p for p in range(size // 2, 1, -1) if math.gcd(p - 1, size - 3) == 1)
        return 1, upper, size - 2

    def _tell_between(self, axis: int, lower: int, upper: int, last: int) -> bool:
        blocks = {p: self.seen[self._at(axis, p)].blocks() for p in (lower, upper, last)}
        share = Fraction(last - lower, upper - lower)
        if hashes_in_line(blocks[lower], blocks[upper], share) != blocks[last]:
            return False
        self._told[axis] = frozenset(range(self.axes[axis].size)) - set(self._known(axis))
        return True

    def _told_combinations(self) -> dict[int, Between]:
        """Every combination of classes of which one is told by others that have run: its rank, and who tells."""
        first = self._first_of_hash()
        combinations: dict[int, Between] = {}
        for axis, told in self._told.items():
            lower, upper, _ = self._pivots(axis) or (0, 0, 0)
            for place in filter(self._is_told, self._combinations()):
                telling = [self._rank_at[(*place[:axis], p, *place[axis + 1 :])] for p in (lower, upper)]
                if place[axis] in told and all(rank in self.seen for rank in telling):
                    one, other = (first[self.seen[rank].hash] for rank in telling)
                    share = Fraction(place[axis] - lower, upper - lower)
                    combinations[self._rank_at[place]] = Between(one, other, share)
        return combinations

    def _first_of_hash(self) -> dict[int, int]:
        first: dict[int, int] = {}
        for rank in sorted(self.seen):
            first.setdefault(self.seen[rank].hash, rank)
        return first

    def _irregular(self, axis: int) -> bool:
        """Every rank differs from every other, a little, as when optimizer state is cut across parameters."""
        known = self._known(axis)
        different = len({self.seen[self._at(axis, p)].hash for p in known}) == len(known)
        return len(known) >= min(self.axes[axis].size, 4) > 2 and different and self._spread(axis) <= ALIKE

    def _spread(self, axis: int) -> float:
        """By how much the calls of the ranks started along an axis differ. Infinite for an axis along which ranks
        send to single peers: there the order of calls matters, as in a pipeline."""
        seen = [self.seen[self._at(axis, p)] for p in self._known(axis)]
        if any(one.transfers & self.axes[axis].families for one in seen):
            return math.inf
        calls = [one.calls for one in seen]
        return max(calls) / max(min(calls), 1) - 1

    def _known(self, axis: int) -> list[int]:
        return [p for p in range(self.axes[axis].size) if self._at(axis, p) in self.seen]

    def _positions_alike(self, axis: int) -> NDArray[np.int32]:
        """[size] The lowest started position of equal work; of the nearest one below for those not started."""
        size = self.axes[axis].size
        if self._irregular(axis):
            return self._first_for_all(axis)
        first: dict[int, int] = {}
        stands, current = np.zeros(size, np.int32), 0
        for position in range(size):
            if position in self._told.get(axis, ()):
                current = position
            elif self._at(axis, position) in self.seen:
                current = first.setdefault(self._hash(axis, position), position)
            stands[position] = current
        return stands

    def _first_for_all(self, axis: int) -> NDArray[np.int32]:
        calls = [self.seen[self._at(axis, p)].calls for p in self._known(axis)]
        self._approximate.add(axis)
        self.notes.append(
            f"ranks along an axis of {self.axes[axis].size} differ a little ({min(calls):,} to {max(calls):,} device "
            f"calls in {len(calls)} of them): the first stands for all"
        )
        return np.zeros(self.axes[axis].size, np.int32)

    def _merge_while_many(self) -> None:
        def combinations() -> int:
            return math.prod(len(set(k.tolist())) for k in self._classes)

        several = [a for a, k in enumerate(self._classes) if len(set(k.tolist())) > 1]
        for axis in sorted(several, key=self._spread):
            if combinations() > self._many and self._spread(axis) <= ALIKE:
                self._classes[axis] = self._first_for_all(axis)

    def _at(self, axis: int, position: int) -> int:
        return self._rank_at[tuple(position if a == axis else 0 for a in range(len(self.axes)))]

    def _hash(self, axis: int, position: int) -> int:
        return self.seen[self._at(axis, position)].hash

    # --- all axes together ---------------------------------------------------------------------------------

    def _products(self) -> list[int]:
        """A rank for every combination of classes, but for those that others tell of."""
        return [self._rank_at[place] for place in self._combinations() if not self._is_told(place)]

    def _combinations(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(sorted(set(k.tolist())) for k in self._classes)))

    def _is_told(self, place: tuple[int, ...]) -> bool:
        told = any(place[axis] in positions for axis, positions in self._told.items())
        return told and self._rank_at[place] not in self.seen

    def _stands_for(self, rank: int) -> int:
        return self._rank_at[self._place(rank)]

    def _place(self, rank: int) -> tuple[int, ...]:
        """Of the classes that a rank is in."""
        return tuple(int(k[axis.position[rank]]) for k, axis in zip(self._classes, self.axes, strict=True))

    def _unseen_ranks(self) -> list[int]:
        unseen = sorted(set(range(self.world)) - set(self.seen) - set(self._products()))
        if self._told:  # who stands for them has not run: nothing to compare with
            unseen = [rank for rank in unseen if not self._is_told(self._place(rank))]
        choice = random.Random(self.world)
        checked = choice.sample(unseen, min(self._checks, len(unseen)))
        told = self._told_combinations()
        if told and self._checks:
            self._line_check = choice.choice(list(told.items()))
            checked.append(self._line_check[0])
        return checked

    def _alike(self, rank: int, other: int) -> bool:
        if self.seen[rank].hash == self.seen[other].hash:
            return True
        calls = sorted((self.seen[rank].calls, self.seen[other].calls))
        differs = {a for a, axis in enumerate(self.axes) if axis.position[rank] != axis.position[other]}
        return bool(differs & self._approximate) and calls[1] <= (1 + ALIKE) * calls[0]

    def _mend(self) -> Iterator[list[int]]:
        """Starts more where a check contradicted: every position that the rank has, then all combinations again."""
        wrong = [rank for rank in self.checked if not self._alike(rank, self._stands_for(rank))]
        if out_of_line := self._out_of_line():
            wrong += out_of_line
            self._told.clear()
        self.contradicting = wrong
        if not wrong:
            return
        self.alike_along = dict.fromkeys(self.alike_along, False)
        for axis, along in enumerate(self.axes):
            for position in {int(along.position[rank]) for rank in wrong}:
                self._classes[axis][position] = position
        if wanted := self._new(self._products()):
            yield wanted
        listed = ", ".join(map(str, wrong))
        self.notes.append(
            f"of {len(self.checked)} ranks that were started to check the inferred classes, {len(wrong)} did other "
            f"work than inferred (rank {listed}); {len(self.seen)} ranks were started in all"
        )

    def _out_of_line(self) -> list[int]:
        """The stage that was started to check what others tell of it, where it did something else."""
        if self._line_check is None:
            return []
        rank, line = self._line_check
        told = hashes_in_line(self.seen[line.lower].blocks(), self.seen[line.upper].blocks(), line.share)
        return [] if told == self.seen[rank].blocks() else [rank]

    def _new(self, ranks: Iterable[int]) -> list[int]:
        return sorted(set(ranks) - set(self.seen))
