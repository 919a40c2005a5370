"""What ranks that were never started would have announced: their representatives' communicators, in their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from maya.launch.topology import Family, Topology
from maya.trace.communicators import Announced
from maya.trace.format import LocalCommunicator, RawRank


@dataclass
class Groups:
    """Groups as tuples, each made once."""

    topology: Topology
    _made: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def members(self, family: Family, number: int) -> tuple[int, ...]:
        key = (family.id, number)
        if key not in self._made:
            self._made[key] = tuple(family.groups[number].tolist())
        return self._made[key]


def announce_all(
    topology: Topology, representative_of: Sequence[int], traced: Sequence[RawRank]
) -> Announced:
    """Every rank's communicators, with their members, by its representative's. Left out are those that no process
    group was known for, and groups that a rank is not in though its representative is in one like it."""
    groups = Groups(topology)
    followers: dict[int, list[int]] = {}
    for rank, representative in enumerate(representative_of):
        followers.setdefault(representative, []).append(rank)
    announced: Announced = {rank: {} for rank in range(topology.world)}
    for raw in traced:
        for index, local in raw.communicators.items():
            for rank in followers.get(raw.rank, []):
                own = as_seen_by(rank, raw.rank, local, groups)
                if own is not None:
                    announced[rank][index] = own
    return announced


def as_seen_by(rank: int, other: int, local: LocalCommunicator, groups: Groups) -> LocalCommunicator | None:
    """The communicator that `rank` has where `other` has `local`."""
    family = groups.topology.families.get(local.family) if local.family is not None else None
    if family is None:
        return local if rank == other else None
    number, place = int(family.group_of[rank]), int(family.position[rank])
    if place < 0:
        return None
    members = groups.members(family, number)
    if local.pair is None:
        return LocalCommunicator(f"{family.id}:{number}", local.size, place, members, family.id)
    own = int(family.position[other])
    distance = sum(local.pair) - 2 * own  # from the rank's place to its partner's
    if not 0 <= place + distance < len(members):
        return None
    low, high = sorted((place, place + distance))
    return LocalCommunicator(
        f"{family.id}:{number}:{low}:{high}",
        local.size,
        int(place == high),
        (members[low], members[high]),
        family.id,
        (low, high),
    )
