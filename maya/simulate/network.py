"""Which links each transfer of a job uses, and how much of them: what the core needs to share them fairly.

A merged communicator stands for instances that all transfer at the same time. One flow stands for all of them:
it uses each link as much as they do together. Links that all flows use alike are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maya.clusters.types import Cluster
from maya.simulate import _core
from maya.simulate.topology import Topology
from maya.simulate.types import SimulationError
from maya.trace.types import Collective, Communicator, JobTrace, RecordKind

ONE: Final = _core.ONE
_LEAST: Final = ONE // 1024  # a transfer that uses less of any link holds nobody up

# One row per class, communicator and operation that meet others.
_CALL = np.dtype([("class", np.int64), ("communicator", np.int64), ("operation", np.int64)])
# Communicator, class of the sender, distance to the receiver; for collectives _RING or _EVERYBODY, and 0.
_Lane = tuple[int, int, int]
_RING, _EVERYBODY = -1, -2  # from each node to the next; from each to all others


@dataclass(frozen=True)
class Network:
    """Arrays of core/program.h; `flow_of` [rendezvous] is -1 for what shares no link. Uses are in 1 / ONE."""

    flow_of: NDArray[np.int32]
    flow_peak: NDArray[np.int64]
    flow_begin: NDArray[np.uint32]
    flow_link: NDArray[np.uint32]
    flow_use: NDArray[np.int64]
    flow_share: NDArray[np.int64]
    draws: NDArray[np.int64]  # [rendezvous] of each party's memory bandwidth; or empty
    links: int
    notes: tuple[str, ...] = ()

    @property
    def arrays(self) -> dict[str, Any]:
        names = (
            "flow_of",
            "flow_peak",
            "flow_begin",
            "flow_link",
            "flow_use",
            "flow_share",
            "draws",
            "links",
        )
        return {name: getattr(self, name) for name in names}


def no_network(rendezvous: int) -> Network:
    """Every transfer has its links to itself."""
    none = np.empty(0, np.int64)
    flows = np.full(rendezvous, -1, np.int32)
    return Network(flows, none, np.zeros(1, np.uint32), none.astype(np.uint32), none, none, none, 0)


def build_network(trace: JobTrace, use: NDArray[np.float64] | None, cluster: Cluster) -> Network:
    """`use` [operations, 2]: shares of (its device's link, its NIC) that an operation keeps busy alone."""
    calls, call_of, rendezvous = _calls(trace)
    total = int(rendezvous.max(initial=-1)) + 1
    if use is None:
        return no_network(total)
    lanes, notes = _lanes(trace, calls)
    hops = _representative_links({lane: h for lane, (h, _) in _hops_of(trace, cluster, lanes).items()})
    patterns: dict[tuple[_Lane, int, int], int] = {}
    pattern_of_call = np.full(len(calls), -1, np.int64)
    amounts = np.rint(use[calls["operation"]] * ONE).astype(np.int64)
    for row, (lane, (link, nic)) in enumerate(zip(lanes, amounts.tolist(), strict=True)):
        if lane is not None and len(hops[lane]):
            pattern_of_call[row] = patterns.setdefault((lane, link, nic), len(patterns))
    flows = [_Flow.of(hops[lane], np.array(amount)) for lane, *amount in patterns]
    worth = np.array([flow.peak >= _LEAST for flow in flows] + [False])
    flow_of = np.full(total, -1, np.int32)
    np.maximum.at(flow_of, rendezvous, np.where(worth[pattern_of_call], pattern_of_call, -1)[call_of])
    draws = np.zeros(total, np.int64)
    np.maximum.at(draws, rendezvous, _draws(trace, calls, use, cluster)[call_of])
    return _packed(flow_of, flows, draws, notes)


# Times that a byte on a link passes the memory of a device: read to be sent and written as it comes, and read once
# more where it is reduced (ring algorithm).
_PASSES: Final = {"all_reduce": 3, "reduce_scatter": 3, "reduce": 3, "send": 1, "recv": 1}


def _draws(
    trace: JobTrace, calls: NDArray[np.void], use: NDArray[np.float64], cluster: Cluster
) -> NDArray[np.int64]:
    """[calls] Share of a device's memory bandwidth that a transfer draws, in 1 / ONE."""
    passes = [_PASSES.get(op.collective, 2) if isinstance(op, Collective) else 0 for op in trace.operations]
    rates = use @ np.array([cluster.node.link.bandwidth, cluster.nic_bandwidth])
    share = np.minimum(np.array(passes) * rates / cluster.device.memory_bandwidth, 1.0)
    drawn: NDArray[np.int64] = np.rint(share[calls["operation"]] * ONE).astype(np.int64)
    return drawn


@dataclass(frozen=True)
class _Flow:
    peak: int  # the most that one instance uses of any link
    link: NDArray[np.int64]
    use: NDArray[np.int64]  # by all instances
    share: NDArray[np.int64]  # sum over instances of use / peak

    @staticmethod
    def of(hops: NDArray[np.void], amount: NDArray[np.int64]) -> _Flow:
        use = np.rint(hops["weight"] * amount[hops["carrier"]]).astype(np.int64)
        peak = int(use.max(initial=0))
        link, inverse = np.unique(hops["link"], return_inverse=True)
        total, share = np.zeros(len(link), np.int64), np.zeros(len(link), np.int64)
        np.add.at(total, inverse.reshape(-1), use)
        np.add.at(share, inverse.reshape(-1), use * ONE // max(peak, 1))
        used = total > 0
        return _Flow(peak, link[used], total[used], share[used])


def _packed(
    flow_of: NDArray[np.int32], flows: list[_Flow], draws: NDArray[np.int64], notes: tuple[str, ...]
) -> Network:
    empty = np.empty(0, np.int64)
    numbers, link = np.unique(np.concatenate([empty, *(f.link for f in flows)]), return_inverse=True)
    return Network(
        flow_of,
        np.array([flow.peak for flow in flows], np.int64),
        np.cumsum([0, *(len(flow.link) for flow in flows)]).astype(np.uint32),
        link.reshape(-1).astype(np.uint32),
        np.concatenate([empty, *(flow.use for flow in flows)]),
        np.concatenate([empty, *(flow.share for flow in flows)]),
        draws,
        len(numbers),
        notes,
    )


def _calls(trace: JobTrace) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.int64]]:
    """(distinct calls, dtype _CALL; of each record that meets others its call; its rendezvous)."""
    columns = []
    for number, rank in enumerate(trace.ranks):
        rows = rank.records[rank.records["kind"] == RecordKind.COLLECTIVE]
        own = np.full(len(rows), number, np.int64)
        columns.append(np.stack([own, rows["communicator"], rows["operation"], rows["rendezvous"]]))
    all_rows = np.concatenate(columns, axis=1)
    # Each part is below 2^21, 2^21 and 2^22: one integer sorts faster than a row.
    if len(trace.operations) >> 22 or len(trace.communicators) >> 21:
        raise SimulationError(f"{len(trace.operations)} operations, {len(trace.communicators)} communicators")
    packed = (all_rows[0] << 43) | (all_rows[1] << 22) | all_rows[2]
    distinct, call_of = np.unique(packed, return_inverse=True)
    calls = np.empty(len(distinct), _CALL)
    calls["class"], calls["communicator"] = distinct >> 43, distinct >> 22 & 0x1FFFFF
    calls["operation"] = distinct & 0x3FFFFF
    return calls, call_of.reshape(-1), all_rows[3]


def _lanes(trace: JobTrace, calls: NDArray[np.void]) -> tuple[list[_Lane | None], tuple[str, ...]]:
    """Of each call whose traffic it is; None where the members of its communicator are not known."""
    unknown = {c.id for c in trace.communicators if not is_known(c)}
    lanes: list[_Lane | None] = []
    for own, communicator, number in calls.tolist():
        operation = trace.operations[number]
        assert isinstance(operation, Collective)
        if communicator in unknown or (operation.rank is None) != (operation.peer is None):
            lanes.append(None)
        elif operation.peer is None or operation.rank is None:
            lanes.append((communicator, _EVERYBODY if operation.collective == "all_to_all" else _RING, 0))
        else:
            here, there = (operation.members.index(rank) for rank in (operation.rank, operation.peer))
            sends = operation.collective == "send"
            sender = own if sends else int(trace.class_of_rank[operation.peer])
            distance = (there - here if sends else here - there) % len(operation.members)
            lanes.append((communicator, sender, distance))
    notes = tuple(
        f"communicator {c} of {len(trace.communicators[c].members)} ranks: not all members are known; "
        "its transfers share no links with others"
        for c in sorted(unknown)
    )
    return lanes, notes


def is_known(communicator: Communicator) -> bool:
    """Whether the members of all that it stands for are known."""
    everyone = communicator.all_members
    return len(everyone) == communicator.instances and all(-1 not in members for members in everyone)


def _hops_of(
    trace: JobTrace, cluster: Cluster, lanes: list[_Lane | None]
) -> dict[_Lane, tuple[NDArray[np.void], NDArray[np.int64]]]:
    """Of each lane (what its instances load, dtype HOP; [instances, ranks] who takes part in each)."""
    topology = Topology(cluster, trace.world)
    members = {c.id: np.array(c.all_members, np.int64) for c in trace.communicators if is_known(c)}
    found = {}
    for lane in dict.fromkeys(lane for lane in lanes if lane is not None):
        communicator, sender, distance = lane
        ranks = members[communicator]
        if sender < 0:
            found[lane] = topology.collective(ranks, everybody=sender == _EVERYBODY), ranks
        else:
            instance, place = np.nonzero(trace.class_of_rank[ranks] == sender)
            source, target = ranks[instance, place], ranks[instance, (place + distance) % ranks.shape[1]]
            found[lane] = topology.transfers(source, target), np.stack([source, target], axis=1)
    return found


def unlike_instances(trace: JobTrace, cluster: Cluster) -> list[NDArray[np.int64]]:
    """Columns [world]: of a lane a number for what each rank's instance shares its links with; -1 in none.

    Ranks of one class with different numbers may not be merged: their transfers meet different others.
    """
    lanes, _ = _lanes(trace, _calls(trace)[0])
    found = _hops_of(trace, cluster, lanes)
    seen = _columns([hops for hops, _ in found.values()])
    columns = []
    for (_, sender, _), (hops, ranks) in found.items():
        met = np.zeros(len(ranks), np.uint64)
        np.add.at(met, hops["instance"], _mixed(seen[hops["link"]], hops))
        _, number = np.unique(met, return_inverse=True)
        for parties in (ranks,) if sender < 0 else (ranks[:, :1], ranks[:, 1:]):  # as sender, as receiver
            column = np.full(trace.world, -1, np.int64)
            column[parties] = number.reshape(-1, 1)
            columns.append(column)
    return columns


def _representative_links(hops: dict[_Lane, NDArray[np.void]]) -> dict[_Lane, NDArray[np.void]]:
    """Keeps one of all links that every lane uses alike: they are full together or not at all."""
    seen = _columns(list(hops.values()))
    _, first = np.unique(seen, return_index=True)
    kept = np.zeros(len(seen), np.bool_)
    kept[first] = True
    return {lane: rows[kept[rows["link"]]] for lane, rows in hops.items()}


def _columns(hops: Sequence[NDArray[np.void]]) -> NDArray[np.uint64]:
    """[links] A number for how all lanes use a link."""
    seen = np.zeros(max((int(rows["link"].max(initial=-1)) for rows in hops), default=-1) + 1, np.uint64)
    for number, rows in enumerate(hops):
        np.add.at(seen, rows["link"], _mixed(np.full(len(rows), number, np.uint64), rows))
    return seen


def _mixed(number: NDArray[np.uint64], rows: NDArray[np.void]) -> NDArray[np.uint64]:
    """A number for each (number, carrier, weight); sums of them tell sets of rows apart (splitmix64, Vigna)."""
    mixed = rows["weight"].copy().view(np.uint64) * np.uint64(2) + rows["carrier"].astype(np.uint64)
    mixed = mixed + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
