"""The links of a cluster by number, and which of them a communicator's traffic takes.

Directions count apart. Of each rank: its port out of and into the links of its node. Of each pair of devices with a
link of its own (bridge, mesh): that link. Of each NIC and, where leaf switches are oversubscribed, of each leaf's
uplinks: out and in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from maya.clusters.types import Cluster

Ints = NDArray[np.int64]


class Carrier(IntEnum):
    """What a share of use counts: a device's link within the node, a NIC."""

    LINK = 0
    NIC = 1


# One row per link that one instance of a communicator loads; `weight` link capacities (in ports or NICs) of it
# for each capacity that the carrier gives.
HOP = np.dtype([("instance", np.int64), ("link", np.int64), ("carrier", np.int64), ("weight", np.float64)])


@dataclass(frozen=True)
class Topology:
    """Numbers the links of a cluster of `world` ranks."""

    cluster: Cluster
    world: int

    @property
    def links(self) -> int:
        return self._leaves_in + self._leaves

    def collective(self, members: Ints, everybody: bool = False) -> NDArray[np.void]:
        """[hops] What a ring over each row of `members` [instances, size] loads, or an exchange of everybody with
        everybody; dtype HOP."""
        instance = np.repeat(np.arange(len(members)), members.shape[1])
        flat = members.reshape(-1)
        node = self._node(flat)
        _, together, count = np.unique(instance * self._nodes + node, return_inverse=True, return_counts=True)
        beside = count[together.reshape(-1)]
        hops = [self._ports(instance, flat, beside), self._pairs(members, beside.reshape(members.shape))]
        per_instance = np.bincount(
            np.unique(instance * self._nodes + node) // self._nodes, minlength=len(members)
        )
        leaves_node = per_instance[instance] > 1
        between = self._exchanges if everybody else self._rings
        hops.append(between(instance[leaves_node], node[leaves_node], self._nic(flat[leaves_node])))
        return _merged(np.concatenate(hops))

    def transfers(self, sources: Ints, targets: Ints) -> NDArray[np.void]:
        """[hops] What a transfer from each source to its target loads, dtype HOP; each an instance of its own."""
        number = np.arange(len(sources))
        inside = self._node(sources) == self._node(targets)
        alone = inside & self._own_link(sources, targets)
        port = inside & ~alone & (sources != targets)
        hops = [
            _hops(number[alone], self._pair(sources[alone], targets[alone]), Carrier.LINK),
            _hops(number[port], sources[port], Carrier.LINK),
            _hops(number[port], self.world + targets[port], Carrier.LINK),
        ]
        out, to = sources[~inside], targets[~inside]
        # The proxy of the target's rail sends (NCCL 2.12, PXN): the NIC is the target's on both nodes.
        hops += self._crossings(number[~inside], self._node(out), self._node(to), self._nic(to))
        return _merged(np.concatenate(hops))

    # --- numbers -----------------------------------------------------------------------------------------

    @property
    def _nodes(self) -> int:
        return self.cluster.nodes(self.world)

    @property
    def _nics(self) -> int:
        return min(self.cluster.node.nics, self.cluster.node.gpus)

    @property
    def _pairs_first(self) -> int:
        return 2 * self.world

    @property
    def _nics_out(self) -> int:
        return self._pairs_first + self.world * self.cluster.node.gpus

    @property
    def _nics_in(self) -> int:
        return self._nics_out + self._nodes * self._nics

    @property
    def _leaves_out(self) -> int:
        return self._nics_in + self._nodes * self._nics

    @property
    def _leaves(self) -> int:
        return -(-self._nodes // self.cluster.nodes_per_leaf) * self._nics

    @property
    def _leaves_in(self) -> int:
        return self._leaves_out + self._leaves

    def _node(self, ranks: Ints) -> Ints:
        return ranks // self.cluster.node.gpus

    def _nic(self, ranks: Ints) -> Ints:
        return ranks % self.cluster.node.gpus * self._nics // self.cluster.node.gpus

    def _leaf(self, node: Ints, nic: Ints) -> Ints:
        rail = nic if self.cluster.fabric == "rail" else 0
        return node // self.cluster.nodes_per_leaf * self._nics + rail

    def _pair(self, sources: Ints, targets: Ints) -> Ints:
        gpus = self.cluster.node.gpus
        return self._pairs_first + sources * gpus + targets % gpus

    def _own_link(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        """Whether two ranks of one node have a link (or a mesh's way around) to themselves."""
        node = self.cluster.node
        a, b = sources % node.gpus, targets % node.gpus
        if node.mesh:
            return np.not_equal(a, b)
        bridged = np.logical_and(a // 2 == b // 2, a != b)
        return bridged if node.pair_link is not None else np.zeros_like(bridged)

    # --- hops --------------------------------------------------------------------------------------------

    def _ports(self, instance: Ints, ranks: Ints, beside: Ints) -> NDArray[np.void]:
        uses = beside > 2
        if self.cluster.node.pair_link is None and not self.cluster.node.mesh:
            uses = beside > 1
        both = [ranks[uses], self.world + ranks[uses]]
        return _hops(np.tile(instance[uses], 2), np.concatenate(both), Carrier.LINK)

    def _pairs(self, members: Ints, beside: Ints) -> NDArray[np.void]:
        """Two members on a node: the link that they have to themselves, or both ports."""
        if self.cluster.node.pair_link is None and not self.cluster.node.mesh:
            return np.empty(0, HOP)
        found = []
        for number, (row, together) in enumerate(zip(members, beside, strict=True)):
            two = row[together == 2]
            two = two[np.argsort(self._node(two), kind="stable")]
            a, b = two[::2], two[1::2]
            own = self._own_link(a, b)
            alone = np.concatenate([self._pair(a[own], b[own]), self._pair(b[own], a[own])])
            ports = np.concatenate([a[~own], b[~own]])
            link = np.concatenate([alone, ports, self.world + ports])
            found.append(_hops(np.full(len(link), number), link, Carrier.LINK))
        return np.concatenate(found) if found else np.empty(0, HOP)

    def _rings(self, instance: Ints, node: Ints, nic: Ints) -> NDArray[np.void]:
        """From each node of an instance to its next in order, by all NICs of its members there."""
        rows = np.unique(np.stack([instance, node, nic], axis=1), axis=0)
        if not len(rows):
            return np.empty(0, HOP)
        nodes = np.unique(rows[:, :2], axis=0)
        first = np.searchsorted(nodes[:, 0], nodes[:, 0])
        last = np.searchsorted(nodes[:, 0], nodes[:, 0], side="right") - 1
        here = np.arange(len(nodes))
        following = nodes[np.where(here == last, first, here + 1), 1]
        place = np.searchsorted(
            nodes[:, 0] * self._nodes + nodes[:, 1], rows[:, 0] * self._nodes + rows[:, 1]
        )
        return np.concatenate(self._crossings(rows[:, 0], rows[:, 1], following[place], rows[:, 2]))

    def _exchanges(self, instance: Ints, node: Ints, nic: Ints) -> NDArray[np.void]:
        """Between all nodes of an instance: each NIC out and in; of the leaf's uplinks what the other leaves get."""
        rows = np.unique(np.stack([instance, node, nic], axis=1), axis=0)
        hops = [
            _hops(rows[:, 0], first + rows[:, 1] * self._nics + rows[:, 2], Carrier.NIC)
            for first in (self._nics_out, self._nics_in)
        ]
        if self.cluster.oversubscription > 1 and len(rows):
            nodes = np.unique(rows[:, :2], axis=0)
            beside = np.stack([nodes[:, 0], nodes[:, 1] // self.cluster.nodes_per_leaf], axis=1)
            _, leaf, count = np.unique(beside, axis=0, return_inverse=True, return_counts=True)
            total = np.bincount(nodes[:, 0])[nodes[:, 0]]
            outside = (total - count[leaf.reshape(-1)]) / np.maximum(total - 1, 1)
            place = np.searchsorted(
                nodes[:, 0] * self._nodes + nodes[:, 1], rows[:, 0] * self._nodes + rows[:, 1]
            )
            uplink = self._leaf(rows[:, 1], rows[:, 2])
            for first in (self._leaves_out, self._leaves_in):
                up = _hops(rows[:, 0], first + uplink, Carrier.NIC, self._uplink_weight)
                up["weight"] *= outside[place]
                hops.append(up)
        return np.concatenate(hops)

    @property
    def _uplink_weight(self) -> float:
        """Leaf uplinks that a NIC at its full rate takes."""
        below = self.cluster.nodes_per_leaf * (1 if self.cluster.fabric == "rail" else self._nics)
        return self.cluster.oversubscription / below

    def _crossings(self, instance: Ints, node: Ints, to: Ints, nic: Ints) -> list[NDArray[np.void]]:
        """NIC to NIC of that number, and up and down the spine between leaf switches."""
        out, into = self._nics_out + node * self._nics + nic, self._nics_in + to * self._nics + nic
        hops = [_hops(instance, out, Carrier.NIC), _hops(instance, into, Carrier.NIC)]
        if self.cluster.oversubscription > 1:
            up, down = self._leaf(node, nic), self._leaf(to, nic)
            far = up != down
            for first, leaf in ((self._leaves_out, up), (self._leaves_in, down)):
                hops.append(_hops(instance[far], first + leaf[far], Carrier.NIC, self._uplink_weight))
        return hops


def _hops(instance: Ints, link: Ints, carrier: Carrier, weight: float = 1.0) -> NDArray[np.void]:
    hops = np.empty(len(link), HOP)
    hops["instance"], hops["link"], hops["carrier"], hops["weight"] = instance, link, carrier, weight
    return hops


def _merged(hops: NDArray[np.void]) -> NDArray[np.void]:
    """One row per instance and link: weights added."""
    if not len(hops):
        return hops
    keys = np.stack([hops["instance"], hops["link"]], axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    merged = hops[first]
    merged["weight"] = np.bincount(inverse.reshape(-1), hops["weight"])
    return merged
