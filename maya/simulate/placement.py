"""Splits classes whose ranks sit differently: equal calls take different times over different links."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from maya.clusters.types import Cluster
from maya.simulate.network import is_known, unlike_instances
from maya.trace.split import UnknownMembersError, split
from maya.trace.types import Collective, Communicator, JobTrace, RecordKind

Ints = NDArray[np.int64]


def place(trace: JobTrace, cluster: Cluster) -> JobTrace:
    """The job with classes fine enough for this cluster: all ranks of one sit alike among those that they meet,
    and their transfers share links with the same others.

    Communicators whose members are not all known split nothing; `build_network` names them.
    """
    if len(trace.ranks) == trace.world or not all(map(is_known, trace.communicators)):
        return trace
    columns = [_sites(c, cluster, trace.world) for c in trace.communicators]
    columns += [_pairs(trace, cluster, *lane) for lane in _lanes(trace)]
    try:
        trace = _split(trace, columns)
    except UnknownMembersError:
        return trace
    while (finer := _split(trace, unlike_instances(trace, cluster))) is not trace:
        trace = finer
    return trace


def _split(trace: JobTrace, columns: list[Ints]) -> JobTrace:
    _, colour = np.unique(np.stack([trace.class_of_rank, *columns], axis=1), axis=0, return_inverse=True)
    return split(trace, colour.reshape(-1).astype(np.int64))


def _nic(ranks: Ints, cluster: Cluster) -> Ints:
    return ranks % cluster.node.gpus * min(cluster.node.nics, cluster.node.gpus) // cluster.node.gpus


def _sites(communicator: Communicator, cluster: Cluster, world: int) -> Ints:
    """[world] A number for how the members of each rank's instance sit; -1 in none."""
    members = np.array(communicator.all_members, np.int64)
    base = members.min(axis=1) // cluster.node.gpus
    leaf = (members // cluster.node.gpus // cluster.nodes_per_leaf).max(
        axis=1
    ) > base // cluster.nodes_per_leaf
    shifted = np.column_stack([members - base[:, None] * cluster.node.gpus, leaf])
    distinct, of_instance = np.unique(shifted, axis=0, return_inverse=True)
    numbers: dict[Hashable, int] = {}
    kinds = [numbers.setdefault(_site(row[:-1], bool(row[-1]), cluster), len(numbers)) for row in distinct]
    column = np.full(world, -1, np.int64)
    column[members] = np.array(kinds)[of_instance.reshape(-1)][:, None]
    return column


def _site(members: Ints, crosses: bool, cluster: Cluster) -> Hashable:
    """What a collective's duration and its load on links depend on."""
    node = members // cluster.node.gpus
    _, together = np.unique(node, return_counts=True)
    nics = len(np.unique(node * cluster.node.gpus + _nic(members, cluster)))
    link = cluster.link_between(int(members[0]), int(members[1])) if len(members) == 2 else None
    return tuple(sorted(together.tolist())), nics, link, crosses and cluster.oversubscription > 1


def _lanes(trace: JobTrace) -> list[tuple[int, int, int]]:
    """(class, communicator, distance of the peer) of all transfers."""
    found = set()
    for number, rank in enumerate(trace.ranks):
        rows = rank.records[
            (rank.records["kind"] == RecordKind.COLLECTIVE) & (rank.records["peer_class"] >= 0)
        ]
        for communicator, index in np.unique(
            np.stack([rows["communicator"], rows["operation"]], axis=1), axis=0
        ).tolist():
            operation = trace.operations[index]
            assert isinstance(operation, Collective) and operation.peer is not None
            here, there = operation.members.index(rank.rank), operation.members.index(operation.peer)
            found.add((number, communicator, (there - here) % len(operation.members)))
    return sorted(found)


def _pairs(trace: JobTrace, cluster: Cluster, number: int, communicator: int, distance: int) -> Ints:
    """[world] A number for how each rank of the class and its peer sit; -1 for all others."""
    members = np.array(trace.communicators[communicator].all_members, np.int64)
    instance, place = np.nonzero(trace.class_of_rank[members] == number)
    own, peer = members[instance, place], members[instance, (place + distance) % members.shape[1]]
    inside = own // cluster.node.gpus == peer // cluster.node.gpus
    numbers: dict[Hashable, int] = {None: 0}
    column = np.full(trace.world, -1, np.int64)
    column[own[~inside]] = 0
    for a, b in zip(own[inside].tolist(), peer[inside].tolist(), strict=True):
        link = cluster.link_between(a, b)
        column[a] = numbers.setdefault((link.kind, link.bandwidth) if link else "node", len(numbers))
    return column
