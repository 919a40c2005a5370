"""Collectives: measured curves within a node, NCCL's ring and tree arithmetic beyond.

Every protocol of NCCL costs latency + bytes / bandwidth; taking the cheapest of LL, LL128 and Simple, ring
and tree, gives the three regions (latency, transition, saturation) that measured curves show. Step latencies
and protocol shares follow NCCL's own tuning model (NCCL, src/graph/tuning.cc); bandwidths are fitted.
Durations are those of a collective that has its links to itself; with them goes how busy it keeps the links,
from which a network model tells what happens when several do so at once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from maya.clusters import Cluster, Link
from maya.estimate.fits import fit_for
from maya.estimate.memory import floor_seconds
from maya.estimate.tables import FloatArray, collective_table
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
        link = link_of_two(there[0], there[1], cluster) if len(there) == 2 else None
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
    measured = _measured(collective, where, cluster) if where.nodes == 1 else None
    if measured is None:
        return modelled, provenance
    return replace(modelled, seconds=measured[0]), measured[1]


def _measured(collective: Collective, where: Placement, cluster: Cluster) -> tuple[float, Provenance] | None:
    """From that device's table: log-log between sizes, by bytes a link carries between rank counts."""
    curves = collective_table(cluster.device.key)
    name = {"reduce": "all_reduce", "broadcast": "all_gather"}.get(
        collective.collective, collective.collective
    )
    counts = sorted(ranks for known, ranks in curves if known == name)
    if not counts:
        return None
    near = min(counts, key=lambda count: (abs(count - where.ranks), -count))
    sizes, seconds = curves[name, near]
    # Fewer or more ranks than measured: the same algorithm with another share on each link.
    scale = traffic_factor(name, where.ranks) / traffic_factor(name, near)
    wanted = collective.bytes * scale
    if collective.collective in ("reduce", "broadcast"):
        return _interpolate(sizes, seconds, wanted), Provenance.ROOFLINE
    exact = near == where.ranks and bool((sizes == collective.bytes).any())
    kind = Provenance.PROFILED if exact else Provenance.LEARNED
    return _interpolate(sizes, seconds, wanted), kind


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
    """The cheapest of NCCL's algorithms and protocols for `size` bytes of the larger buffer."""
    links = Links.of(where, cluster)
    fit = fit_for("collective", cluster.device)
    learned = Provenance.LEARNED if fit.own and where.nodes == 1 else Provenance.ROOFLINE
    # Between latency and saturation, bandwidth is only half there at ramp_bytes: pipelines fill and drain.
    size += math.sqrt(size * float(fit.coefficients["ramp_bytes"]))
    if name == "all_to_all":
        return _all_to_all(size, where, links), learned
    choices = [_ring(name, size, where, links, protocol) for protocol in RING.values()]
    if name == "all_reduce":
        choices += [_tree(size, where, links, protocol) for protocol in TREE.values()]
        if links.multicast > 0 and where.per_node > 2:
            choices.append(_multicast(size, where, links))
    return min(choices, key=lambda cost: cost.seconds), learned


def _ring(name: str, size: float, where: Placement, links: Links, protocol: Protocol) -> Cost:
    rounds = 2 if name == "all_reduce" else 1
    crossings = rounds * (where.nodes - 1)
    hops = rounds * (where.ranks - 1) - crossings
    latency = protocol.base_s + hops * protocol.intra_s + crossings * protocol.inter_s
    moved = size * traffic_factor(name, where.ranks)
    inside, network = moved / links.inside, moved / links.network
    return Cost(latency + max(inside, network) / protocol.share, inside, network)


def _over_the_network(nodes: int) -> float:
    """Bytes that a node sends, per byte reduced, in a double binary tree: all of it once between two nodes;
    among more, a node is inner in one half's tree (one parent, two children) and a leaf in the other's."""
    return 0.0 if nodes == 1 else 1.0 if nodes == 2 else 2.0


def _tree(size: float, where: Placement, links: Links, protocol: Protocol) -> Cost:
    depth = 2 * math.ceil(math.log2(where.nodes))
    latency = protocol.base_s + 2 * (where.per_node - 1) * protocol.intra_s + depth * protocol.inter_s
    inside = 2 * size / links.inside if where.per_node > 1 else 0.0
    network = _over_the_network(where.nodes) * size / links.network
    return Cost(latency + max(inside, network) / protocol.share, inside, network)


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
        share = _share(c["link_share"], link.kind)
        if where.link is None:  # a cube mesh carries fewer rings among fewer devices
            share = c["share_of_ranks"].get(str(where.per_node), share)
        inside = link.bandwidth * float(share) if where.per_node > 1 else math.inf
        network = math.inf
        if where.nodes > 1:
            rate = cluster.nic_bandwidth * _share(c["nic_share"], node.nic.kind)
            network = where.nics * rate
        reduces = link.kind == "nvswitch" and cluster.device.compute_capability >= (9, 0)
        return Links(inside, network, link.bandwidth * float(c["multicast_share"]) if reduces else 0.0)


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


def link_of_two(a: int, b: int, cluster: Cluster) -> Link:
    """What carries bytes between two devices of one node: their own link, the bus where a mesh leaves them
    out, else what all devices of the node have."""
    own = cluster.link_between(a, b)
    if own is None and cluster.node.mesh:
        return Link(
            kind="pcie", bandwidth=cluster.device.pcie_bandwidth, latency_s=cluster.node.link.latency_s
        )
    return own or cluster.node.link


def _point_to_point(transfer: Collective, cluster: Cluster) -> Cost:
    """A send or a receive: the link between the two devices, at the share that NCCL's channels reach.

    Where the operation does not say who the two are, in a communicator over several nodes the other side is
    taken to be on another node.
    """
    c = fit_for("collective", cluster.device).coefficients
    node, simple = cluster.node, RING["Simple"]
    ends = [rank for rank in (transfer.rank, transfer.peer) if rank is not None]
    if Placement.of(tuple(ends) if len(ends) == 2 else transfer.members, cluster).nodes > 1:
        rate = cluster.nic_bandwidth * _share(c["nic_flow_share"], node.nic.kind)
        full = cluster.nic_bandwidth * _share(c["nic_share"], node.nic.kind)
        latency = simple.base_s + simple.inter_s / 2
        return Cost(latency + transfer.bytes / rate, nic_s=transfer.bytes / full)
    link = link_of_two(ends[0], ends[1], cluster) if len(ends) == 2 else node.link
    rate = link.bandwidth * _share(c["flow_share"], link.kind)
    return Cost(simple.base_s + transfer.bytes / rate, link_s=transfer.bytes / rate)
