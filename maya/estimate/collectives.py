"""Collectives: measured curves within a node, NCCL's ring and tree arithmetic beyond.

Within a node, a curve of three regions (latency, sigmoid, saturation) is fitted to each collective's measurements.
Elsewhere, every protocol of NCCL costs latency + bytes / bandwidth, and the cheapest of LL, LL128 and Simple, ring and
tree, is taken; a tree only where NCCL would take one (tuning.py). Step latencies and protocol shares follow its tuning
model too (NCCL, src/graph/tuning.cc); bandwidths are fitted.
Durations are those of a collective that has its links to itself; with them goes how busy it keeps the links,
from which a network model tells what happens when several do so at once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from maya.clusters import Cluster, Link
from maya.clusters.types import CollectiveName
from maya.estimate.fits import fit_for
from maya.estimate.memory import floor_seconds
from maya.estimate.tables import FloatArray, collective_table
from maya.estimate.tuning import reckoned_ring_s, reckoned_tree_s
from maya.estimate.types import Provenance
from maya.trace.types import Collective

POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True)
class Protocol:
    """Seconds per step within a node and over the network, per launch, and the share of bandwidth kept."""

    base_s: float
    intra_s: float
    inter_s: float
    share: float


# NCCL 2.2x, src/graph/tuning.cc: base latencies, NVLink and network step latencies; LL carries 4 flag bytes
# with each 4 of data, LL128 8 with each 120.
RING = {
    "LL": Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.25),
    "LL128": Protocol(14.0e-6, 1.9e-6, 4.0e-6, 0.92 * 120 / 128),
    "Simple": Protocol(8.4e-6, 3.4e-6, 14.0e-6, 1.0),
}
TREE = {
    "LL": Protocol(6.8e-6, 0.6e-6, 5.0e-6, 0.25),
    "LL128": Protocol(14.0e-6, 1.25e-6, 8.5e-6, 0.92 * 120 / 128),
    "Simple": Protocol(8.4e-6, 4.0e-6, 14.0e-6, 0.9),
}


@dataclass(frozen=True)
class Placement:
    """Where a communicator's members sit."""

    ranks: int
    nodes: int
    per_node: int  # the most on one node
    nics: int = 1  # that those have between them
    link: Link | None = None  # that the two members on a node have to themselves

    @staticmethod
    def of(members: tuple[int, ...], cluster: Cluster) -> Placement:
        """Members that never announced themselves (-1) are placed like the others: spread evenly."""
        known = Counter(cluster.node_of(rank) for rank in members if rank >= 0)
        fullest = max(known, key=known.__getitem__, default=0)
        there = [rank for rank in members if rank >= 0 and cluster.node_of(rank) == fullest]
        link = _own_link(there[0], there[1], cluster) if len(there) == 2 else None
        nics = len({cluster.nic_of(rank) for rank in there})
        return Placement(len(members), len(known) or 1, len(there) or 1, nics or 1, link)


@dataclass(frozen=True)
class Cost:
    """Seconds of a collective alone on its links, and how long it would keep each at its saturated rate:
    a member's link within the node, each NIC that it uses."""

    seconds: float
    link_s: float = 0.0
    nic_s: float = 0.0

    @property
    def use(self) -> tuple[float, float]:
        """Shares of (link, NIC) that it takes while it runs."""
        if self.seconds <= 0:
            return 0.0, 0.0
        return min(1.0, self.link_s / self.seconds), min(1.0, self.nic_s / self.seconds)


def estimate_collective(collective: Collective, cluster: Cluster) -> tuple[Cost, Provenance]:
    """One rank's part once all members are there; alone in its communicator, it is free."""
    if collective.collective in POINT_TO_POINT:
        return _point_to_point(collective, cluster), Provenance.ROOFLINE
    where = Placement.of(collective.members, cluster)
    if where.ranks <= 1:
        return Cost(0.0), Provenance.ROOFLINE
    if collective.bytes <= 0:
        return Cost(floor_seconds(cluster.device)), Provenance.ROOFLINE
    modelled, provenance = modelled_cost(collective.collective, float(collective.bytes), where, cluster)
    measured = _timed_here(collective, where, cluster) or _by_tables(collective, where, cluster, modelled)
    if measured is None:
        return modelled, provenance
    return replace(modelled, seconds=measured[0]), measured[1]


def _timed_here(
    collective: Collective, where: Placement, cluster: Cluster
) -> tuple[float, Provenance] | None:
    """From the cluster's own timings: log-log between sizes. Below the smallest, NCCL takes other protocols."""
    timings = cluster.node.collectives.get(cast(CollectiveName, collective.collective), {}).get(where.ranks)
    if where.nodes > 1 or not timings or collective.bytes < timings[0][0]:
        return None
    sizes, seconds = np.array(timings).T
    return _interpolate(sizes, seconds, collective.bytes), _certainty(sizes, collective.bytes)


def _by_tables(
    collective: Collective, where: Placement, cluster: Cluster, modelled: Cost
) -> tuple[float, Provenance] | None:
    """As the device's tables have it; over links of another rate by as much more or less as the model says."""
    there = _where_measured(where, cluster)
    measured = None if there is None else _measured(collective, where, cluster)
    if there is None or measured is None or there is cluster:
        return measured
    over_those, _ = modelled_cost(collective.collective, float(collective.bytes), where, there)
    seconds, kind = measured
    kind = Provenance.LEARNED if kind == Provenance.PROFILED else kind
    return seconds * modelled.seconds / over_those.seconds, kind


def _where_measured(where: Placement, cluster: Cluster) -> Cluster | None:
    """This cluster with links of the rate that the device's tables were measured over, itself where it has them; None
    where they were measured over another kind, or nodes."""
    link = fit_for("collective", cluster.device).coefficients.get("measured_link")
    own = where.link or cluster.node.link
    if where.nodes > 1 or not link or link["kind"] != own.kind:
        return None
    if own.bandwidth == link["bandwidth"]:
        return cluster
    if where.link is not None:
        return None
    node = cluster.node.model_copy(update={"link": own.model_copy(update={"bandwidth": link["bandwidth"]})})
    return cluster.model_copy(update={"node": node})


def _measured(collective: Collective, where: Placement, cluster: Cluster) -> tuple[float, Provenance] | None:
    """From that device's table: log-log between sizes, by bytes a link carries between rank counts."""
    curves = collective_table(cluster.device.key)
    name = _STAND_IN.get(collective.collective, collective.collective)
    counts = sorted(ranks for known, ranks in curves if known == name)
    if not counts:
        return None
    near = min(counts, key=lambda count: (abs(count - where.ranks), -count))
    sizes, read = curves[name, near]
    seconds = np.minimum.accumulate(read[::-1])[
        ::-1
    ]  # what small ones took more than larger ones was disturbed
    # Fewer or more ranks than measured: the same algorithm with another share on each link.
    scale = traffic_factor(collective.collective, where.ranks) / traffic_factor(name, near)
    wanted = collective.bytes * scale
    if collective.collective in ("reduce", "broadcast"):
        return _interpolate(sizes, seconds, wanted), Provenance.ROOFLINE
    kind = _certainty(sizes, collective.bytes) if near == where.ranks else Provenance.LEARNED
    return _interpolate(sizes, seconds, wanted), kind


def _certainty(sizes: FloatArray, bytes: int) -> Provenance:
    return Provenance.PROFILED if (sizes == bytes).any() else Provenance.LEARNED


def _interpolate(sizes: FloatArray, seconds: FloatArray, wanted: float) -> float:
    if wanted >= sizes[-1]:
        return float(seconds[-1] * wanted / sizes[-1])
    return float(np.exp(np.interp(math.log(wanted), np.log(sizes), np.log(seconds))))


def traffic_factor(name: str, ranks: int) -> float:
    """Bytes over each rank's link per byte of the larger buffer (NCCL-tests, doc/PERFORMANCE.md)."""
    if name == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0  # broadcast, reduce: each byte passes every link once


def modelled_cost(name: str, size: float, where: Placement, cluster: Cluster) -> tuple[Cost, Provenance]:
    """`size` bytes of the larger buffer: the device's fitted curve within a node, else the cheapest of NCCL's
    algorithms and protocols."""
    fit = fit_for("collective", cluster.device)
    learned = Provenance.LEARNED if fit.own and where.nodes == 1 else Provenance.ROOFLINE
    curve = Curve.of(name, where, cluster) if where.nodes == 1 else None
    if curve is not None:
        moved = size * traffic_factor(name, where.ranks)
        return Cost(curve.seconds(moved), moved / curve.bandwidth), learned
    links = Links.of(where, cluster)
    if where.nodes > 1:  # half of a NIC's rate is reached at so many bytes: pipelines fill and drain
        size += math.sqrt(
            size * where.nics * _share(fit.coefficients["nic_ramp_bytes"], cluster.node.nic.kind)
        )
    if name == "all_to_all":
        return _all_to_all(size, where, links), learned
    choices = _choices(name, size, where, links, cluster)
    return min(choices, key=lambda cost: cost.seconds), learned


def _choices(name: str, size: float, where: Placement, links: Links, cluster: Cluster) -> list[Cost]:
    """Each protocol's ring, its tree unless NCCL would not take one, and what the switch can reduce."""
    choices = [_ring(name, size, where, links, protocol) for protocol in RING.values()]
    if name != "all_reduce":
        return choices
    if where.nodes == 1 or not _ring_is_preferred(size, where, cluster):
        choices += [_tree(size, where, links, protocol) for protocol in TREE.values()]
    if links.multicast > 0 and where.per_node > 2:
        choices.append(_multicast(size, where, links))
    return choices


def _ring_is_preferred(size: float, where: Placement, cluster: Cluster) -> bool:
    """Whether NCCL takes a ring for this all-reduce and for all larger ones. In between it may change its mind with
    the size, and an all-reduce of more bytes would take less time."""

    def preferred(size: float) -> bool:
        ring = min(
            reckoned_ring_s(
                key,
                _ring_latency("all_reduce", where, p),
                size,
                where.ranks,
                where.nodes,
                where.nics,
                cluster,
            )
            for key, p in RING.items()
        )
        tree = min(
            reckoned_tree_s(key, _tree_latency(where, p), size, where.nodes, where.nics, cluster)
            for key, p in TREE.items()
        )
        return ring <= tree

    larger = (bytes for bytes in _SIZES if bytes > size)
    return preferred(size) and all(map(preferred, larger))


# From the largest on, eight to each power of two, at which NCCL's corrections of the tree's rate begin and end.
_SIZES = [2.0 ** (step / 8) - end for step in range(34 * 8, 6 * 8, -1) for end in (0, 1)]


@dataclass(frozen=True)
class Curve:
    """Three regions: latency, then a share of the bandwidth that is a sigmoid of the logarithm of the bytes
    that a link carries (half of it at `half_bytes`), then all of it."""

    latency_s: float
    bandwidth: float  # B/s of a link
    half_bytes: float
    steepness: float

    def seconds(self, moved: float) -> float:
        rise = (self.half_bytes / moved) ** self.steepness  # 1 / (1 + rise): a sigmoid of log(moved)
        return float(self.latency_s + moved / self.bandwidth * (1 + rise))

    @staticmethod
    def of(name: str, where: Placement, cluster: Cluster) -> Curve | None:
        """The device's, between the counts of ranks that were measured by the logarithm of the count, and with
        the bandwidth of this cluster's links; None where its kind of link was not measured."""
        coefficients = fit_for("collective", cluster.device).coefficients
        curves = coefficients.get("curves", {})
        measured = curves.get(name) or curves.get(_STAND_IN.get(name, "all_reduce"))
        if not measured or where.link or cluster.node.link.kind != coefficients["measured_link"]["kind"]:
            return None
        counts = sorted(map(int, measured))
        below = max((n for n in counts if n <= where.ranks), default=counts[0])
        above = min((n for n in counts if n >= where.ranks), default=counts[-1])
        part = math.log(where.ranks / below, above / below) if above > below else 0.0
        pairs = zip(measured[str(below)], measured[str(above)], strict=True)
        latency, bandwidth, half, steepness = (a ** (1 - part) * b**part for a, b in pairs)
        if _is_whole_mesh(where, cluster):
            return Curve(latency, Links.of(where, cluster).inside, half, steepness)
        scale = cluster.node.link.bandwidth / coefficients["measured_link"]["bandwidth"]
        return Curve(latency, bandwidth * scale, half, steepness)


# Collectives without measurements of their own: which moves the same way.
_STAND_IN = {"reduce": "reduce_scatter", "broadcast": "all_gather"}


def _ring(name: str, size: float, where: Placement, links: Links, protocol: Protocol) -> Cost:
    moved = size * traffic_factor(name, where.ranks)
    inside, network = moved / links.inside, moved / links.network
    latency = _ring_latency(name, where, protocol)
    return Cost(latency + max(inside, network) / protocol.share, inside, network)


def _ring_latency(name: str, where: Placement, protocol: Protocol) -> float:
    rounds = 2 if name == "all_reduce" else 1
    crossings = rounds * (where.nodes - 1)
    hops = rounds * (where.ranks - 1) - crossings
    return protocol.base_s + hops * protocol.intra_s + crossings * protocol.inter_s


def _over_the_network(nodes: int) -> float:
    """Bytes that a node sends, per byte reduced, in a double binary tree: all of it once between two nodes;
    among more, a node is inner in one half's tree (one parent, two children) and a leaf in the other's."""
    return 0.0 if nodes == 1 else 1.0 if nodes == 2 else 2.0


def _tree(size: float, where: Placement, links: Links, protocol: Protocol) -> Cost:
    inside = 2 * size / links.inside if where.per_node > 1 else 0.0
    network = _over_the_network(where.nodes) * size / links.network
    return Cost(_tree_latency(where, protocol) + max(inside, network) / protocol.share, inside, network)


def _tree_latency(where: Placement, protocol: Protocol) -> float:
    depth = 2 * math.ceil(math.log2(where.nodes))
    return protocol.base_s + 2 * (where.per_node - 1) * protocol.intra_s + depth * protocol.inter_s


def _multicast(size: float, where: Placement, links: Links) -> Cost:
    """NVLink SHARP: the switch reduces, so each rank moves its buffer once."""
    depth = 2 * math.ceil(math.log2(where.nodes))
    latency = _MULTICAST_BASE_S + depth * TREE["Simple"].inter_s
    inside, network = size / links.multicast, _over_the_network(where.nodes) * size / links.network
    return Cost(latency + max(inside, network), inside, network)


_MULTICAST_BASE_S = 18e-6  # NCCL, src/graph/tuning.cc: NVLS base latency


@dataclass(frozen=True)
class Links:
    """B/s: what a rank's link carries within the node, what a node's NICs carry for this communicator, and
    what NVLink SHARP reduces per rank (0: the switch cannot)."""

    inside: float
    network: float
    multicast: float

    @staticmethod
    def of(where: Placement, cluster: Cluster) -> Links:
        """With all of the members' NICs to themselves."""
        c = fit_for("collective", cluster.device).coefficients
        node = cluster.node
        link = where.link or node.link
        share = _reached(c["link_share"], link)
        if where.link is None and not _is_whole_mesh(where, cluster):  # fewer rings among fewer devices
            share = c["share_of_ranks"].get(str(where.per_node), share)
        inside = link.bandwidth * float(share) if where.per_node > 1 else math.inf
        network = math.inf
        if where.nodes > 1:
            rate = cluster.nic_bandwidth * _reached(c["nic_share"], node.nic)
            network = where.nics * rate
        reduces = link.kind == "nvswitch" and cluster.device.compute_capability >= (9, 0)
        return Links(inside, network, link.bandwidth * float(c["multicast_share"]) if reduces else 0.0)


def _is_whole_mesh(where: Placement, cluster: Cluster) -> bool:
    """All links of a mesh join members, of whatever number: rings take all of them."""
    node = cluster.node
    ends = [end for edge in node.mesh for end in edge[:2]]
    return bool(node.mesh) and where.per_node == node.gpus and max(ends) < node.gpus


def _reached(shares: dict[str, float], link: Link) -> float:
    """Share of a link's bandwidth: what the cluster file says was measured, else the kind's."""
    return _share(shares, link.kind) if link.efficiency is None else link.efficiency


def _share(shares: dict[str, float], kind: str) -> float:
    return float(shares.get(kind, min(shares.values())))


def _all_to_all(size: float, where: Placement, links: Links) -> Cost:
    """Each rank sends size / ranks to every other; what leaves the node shares its NICs."""
    share = size / where.ranks
    local = share * (where.per_node - 1) / links.inside
    remote = share * (where.ranks - where.per_node) * where.per_node / links.network
    simple = RING["Simple"]
    step = simple.inter_s if where.nodes > 1 else simple.intra_s
    return Cost(simple.base_s + step * math.log2(where.ranks) + max(local, remote), local, remote)


def _own_link(a: int, b: int, cluster: Cluster) -> Link | None:
    """What only these two devices of a node have between them: their link, or the bus where a mesh leaves them
    out; None where they use what all devices of the node have."""
    own = cluster.link_between(a, b)
    if own is None and cluster.node.mesh:
        return Link(
            kind="pcie", bandwidth=cluster.device.pcie_bandwidth, latency_s=cluster.node.link.latency_s
        )
    return own


def _point_to_point(transfer: Collective, cluster: Cluster) -> Cost:
    """A send or a receive: the link between the two devices, at the share that NCCL's channels reach.

    Where the operation does not say who the two are, in a communicator over several nodes the other side is
    taken to be on another node.
    """
    c = fit_for("collective", cluster.device).coefficients
    node, simple = cluster.node, RING["Simple"]
    ends = [rank for rank in (transfer.rank, transfer.peer) if rank is not None]
    if Placement.of(tuple(ends) if len(ends) == 2 else transfer.members, cluster).nodes > 1:
        rate = cluster.nic_bandwidth * _reached(c["nic_flow_share"], node.nic)
        full = cluster.nic_bandwidth * _reached(c["nic_share"], node.nic)
        latency = simple.base_s + simple.inter_s / 2
        return Cost(latency + transfer.bytes / rate, nic_s=transfer.bytes / full)
    link = (_own_link(ends[0], ends[1], cluster) if len(ends) == 2 else None) or node.link
    rate = link.bandwidth * _reached(c["flow_share"], link)
    return Cost(simple.base_s + transfer.bytes / rate, link_s=transfer.bytes / rate)
