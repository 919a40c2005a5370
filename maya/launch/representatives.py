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

from maya.launch.along import ALIKE, Along
from maya.launch.observed import Observed
from maya.launch.roles import Role, role_of
from maya.launch.stages import Between, hashes_in_line
from maya.launch.topology import Topology

CHECKS = 3  # random ranks that are started only to be compared
# Combinations of classes, each of which takes a rank, beyond which nearly equal classes become one: as ranks that load
# a batch and those that are sent it.
MANY = 12
MANY_OF_SEVERAL_JOBS = 4


class Representatives:
    """The plan for one world; `seen` is filled by whoever starts the ranks.

    Ranks are compared by their second iteration: what the first compiles and tunes depends on who came first. With
    `trusting` the first is enough, nothing is checked, and fewer classes are told apart. Along axes whose role is in
    `alike` the first rank stands for all, and nothing is checked either, nor is it with `checks_fail`.
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
        checks_fail: bool = False,
    ) -> None:
        self.world = world
        self.compared_at = 1 if trusting else 2
        self.topology: Topology | None = None
        self.axes: list[Along] = []
        self.seen: dict[int, Observed] = {}
        self.checked: list[int] = []
        self.contradicting: list[int] = []
        self.notes: list[str] = []
        self.alike_along: Mapping[Role, bool] = {}
        self._read_topology = read_topology
        self._alike_roles = alike
        self._checks = 0 if trusting or alike or checks_fail else CHECKS
        self._many = MANY_OF_SEVERAL_JOBS if trusting else MANY
        self._rank_at: dict[tuple[int, ...], int] = {}
        self._line_check: tuple[int, Between] | None = None

    def batches(self) -> Iterator[list[int]]:
        # A neighbour is a probe along the innermost axis, whatever that is.
        yield [0] if self._alike_roles else [0, 1]
        self.topology = self._read_topology()
        axes = self.topology.axes()
        places = zip(*(axis.position.tolist() for axis in axes), strict=True)
        self._rank_at = {place: rank for rank, place in enumerate(places)}
        for at, axis in enumerate(axes):
            before, after = (0,) * at, (0,) * (len(axes) - at - 1)
            ranks = [self._rank_at[(*before, p, *after)] for p in range(axis.size)]
            self.axes.append(Along(self.topology, axis, ranks, self.seen))
        in_question = self._in_question()
        while wanted := self._new(along.ranks[p] for along in in_question for p in along.probes()):
            yield wanted
        for along in self.axes:
            self.notes += along.classify()
        self.alike_along = {self._role(along): along.nearly_alike() for along in in_question}
        self._merge_while_many()
        self.checked = self._unseen_ranks()
        if wanted := self._new([*self._products(), *self.checked]):
            yield wanted
        yield from self._mend()

    def representative_of(self) -> tuple[int, ...]:
        columns = [along.classes[along.axis.position] for along in self.axes]
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
        return tuple(result[other] for other in result)  # of one that nearly equals another, that one's

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
        self._run_all_stages()
        return ranks

    def nearest(self, started: list[int]) -> NDArray[np.int64]:
        """[world] The started rank with the most coordinates in common; the earlier one of two."""
        ranks = np.array(started)
        common = np.zeros((len(ranks), self.world), np.int32)
        for position in (along.axis.position for along in self.axes):
            common += position[ranks][:, None] == position[None, :]
        return np.asarray(ranks[common.argmax(axis=0)])

    # --- axes of known roles -------------------------------------------------------------------------------

    def _role(self, along: Along) -> Role:
        assert self.topology is not None
        return role_of(along.axis, self.topology, self.seen[0].used)

    def _in_question(self) -> list[Along]:
        """Axes whose ranks are to be told apart; a note says of the others what stands for them."""
        alike = [along for along in self.axes if self._role(along) in self._alike_roles]
        if alike:
            sizes = " and ".join(str(along.axis.size) for along in alike)
            self.notes.append(
                f"the first rank along axes of {sizes} ranks stands for all: in the jobs of this script "
                f"before, at most {ALIKE:.0%} of what the others did differed"
            )
        return [along for along in self.axes if along not in alike]

    # --- all axes together ---------------------------------------------------------------------------------

    def _told_combinations(self) -> dict[int, Between]:
        """Every combination of classes of which one is told by others that have run: its rank, and who tells."""
        first = self._first_of_hash()
        combinations: dict[int, Between] = {}
        for at, along in enumerate(self.axes):
            lower, upper = along.telling
            for place in filter(self._is_told, self._combinations()):
                telling = [self._rank_at[(*place[:at], p, *place[at + 1 :])] for p in (lower, upper)]
                if place[at] in along.told and all(rank in self.seen for rank in telling):
                    one, other = (first[self.seen[rank].hash] for rank in telling)
                    share = Fraction(place[at] - lower, upper - lower)
                    combinations[self._rank_at[place]] = Between(one, other, share)
        return combinations

    def _run_all_stages(self) -> None:
        for along in self.axes:
            along.told = frozenset()

    def _first_of_hash(self) -> dict[int, int]:
        """A rank of each that was seen: one that stands for its class, where one does, for only these go on."""
        first: dict[int, int] = {}
        for rank in sorted(self.seen, key=lambda rank: (self._stands_for(rank) != rank, rank)):
            first.setdefault(self.seen[rank].hash, rank)
        return first

    def _merge_while_many(self) -> None:
        for along in sorted((a for a in self.axes if len(a.standing) > 1), key=lambda a: a.spread):
            if math.prod(len(a.standing) for a in self.axes) > self._many and along.spread <= ALIKE:
                self.notes.append(along.first_for_all())

    def _products(self) -> list[int]:
        """A rank for every combination of classes, but for those that others tell of."""
        return [self._rank_at[place] for place in self._combinations() if not self._is_told(place)]

    def _combinations(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(along.standing for along in self.axes)))

    def _is_told(self, place: tuple[int, ...]) -> bool:
        told = any(position in along.told for position, along in zip(place, self.axes, strict=True))
        return told and self._rank_at[place] not in self.seen

    def _stands_for(self, rank: int) -> int:
        return self._rank_at[self._place(rank)]

    def _place(self, rank: int) -> tuple[int, ...]:
        """Of the classes that a rank is in."""
        return tuple(int(along.classes[along.axis.position[rank]]) for along in self.axes)

    def _unseen_ranks(self) -> list[int]:
        unseen = sorted(set(range(self.world)) - set(self.seen) - set(self._products()))
        if any(along.told for along in self.axes):  # who stands for them has not run: nothing to compare with
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
        approximate = (along.axis.position for along in self.axes if along.approximate)
        return any(p[rank] != p[other] for p in approximate) and calls[1] <= (1 + ALIKE) * calls[0]

    def _mend(self) -> Iterator[list[int]]:
        """Starts more where a check contradicted: every position that the rank has, then all combinations again."""
        wrong = [rank for rank in self.checked if not self._alike(rank, self._stands_for(rank))]
        if out_of_line := self._out_of_line():
            wrong += out_of_line
            self._run_all_stages()
        self.contradicting = wrong
        if not wrong:
            return
        self.alike_along = dict.fromkeys(self.alike_along, False)
        for along in self.axes:
            for position in {int(along.axis.position[rank]) for rank in wrong}:
                along.classes[position] = position
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
