"""What ranks that were not started, or ended early, would have announced: their representatives' communicators, in
their own process groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from maya.launch.topology import Family, Topology
from maya.trace.communicators import Announced, join_instances
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


def announced_by_all(
    announced: Announced, representative_of: Sequence[int], topology: Topology
) -> tuple[Announced, list[str]]:
    """What each rank would have announced, had it run as long as its representative, and what cannot be told.

    A rank that was merged early has not yet made communicators that its representative makes later: it is in that of
    its own process group. Where no such group is known it is in the same one, or in that of the members of an earlier
    one of both, or in that of the ranks as far from it as the members are from the representative, when those do the
    same work.
    """
    late = {
        rank: sorted(announced[representative].keys() - announced[rank].keys())
        for rank, representative in enumerate(representative_of)
        if rank in announced
    }
    if not any(late.values()):
        return announced, []
    groups = Groups(topology)
    instances = join_instances(announced, topology.world)
    result: Announced = {rank: dict(own) for rank, own in announced.items()}
    untold: Counter[str] = Counter()
    for rank, indices in late.items():
        representative = representative_of[rank]
        own, other = announced[rank], announced[representative]
        pairs = [(instances[own[k].id].members, instances[other[k].id].members) for k in own if k in other]
        given: Counter[tuple[int, ...]] = Counter()
        for index in indices:
            theirs = instances[other[index].id].members
            members = _own_group(rank, representative, other[index], groups) or _counterpart(
                rank, representative, theirs, pairs, representative_of
            )
            if members is None:
                untold[f"communicator {index} of rank {representative} and {len(theirs) - 1} others"] += 1
                continue
            there = [
                i for i in instances.values() if rank not in i.local_index and _may_be(i.members, members)
            ]
            name = there[given[members]].id if given[members] < len(there) else f"{members} {given[members]}"
            given[members] += 1
            result[rank][index] = LocalCommunicator(name, len(members), members.index(rank), members)
    notes = [
        f"{count} ranks stopped as copies before they made {what}: who its members are there is unknown, and "
        "it counts once; --ranks all tells"
        for what, count in untold.items()
    ]
    return result, notes


def _own_group(
    rank: int, representative: int, theirs: LocalCommunicator, groups: Groups
) -> tuple[int, ...] | None:
    """Members of what serves the rank's process group as `theirs` serves its representative's; None where those known
    are not the script's all, as of groups that only their members make."""
    same = as_seen_by(representative, representative, theirs, groups)
    own = as_seen_by(rank, representative, theirs, groups)
    return own.members if own and same and same.members == theirs.members else None


def _may_be(known: Sequence[int], members: Sequence[int]) -> bool:
    """Whether members some of which may be unknown are these."""
    return len(known) == len(members) and all(k in (-1, m) for k, m in zip(known, members, strict=True))


def _counterpart(
    rank: int,
    representative: int,
    theirs: Sequence[int],
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    representative_of: Sequence[int],
) -> tuple[int, ...] | None:
    """Members, in order, of the communicator that `rank` would have where its representative's has `theirs`; `pairs`
    are the members of the earlier ones of both."""
    if rank in theirs and -1 not in theirs:
        return tuple(theirs)
    earlier = {tuple(own) for own, other in pairs if _may_be(theirs, other)}
    if len(earlier) == 1:
        (own,) = earlier
        return own if -1 not in own else None
    moved = tuple(member + rank - representative for member in theirs)
    alike = -1 not in theirs and all(
        0 <= there < len(representative_of) and representative_of[there] == representative_of[here]
        for here, there in zip(theirs, moved, strict=True)
    )
    return moved if alike else None
