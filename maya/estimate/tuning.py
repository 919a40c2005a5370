"""Which algorithm and protocol NCCL takes for an all-reduce between nodes.

It takes the one that its own tuning model holds for the fastest, which is not always the one that is: between two
nodes a tree sends half of what a ring does, but a channel's tree is trusted with no more than `TREE_RATES`. Rates and
corrections are NCCL 2.28's (src/graph/tuning.cc, whose names are given), with a channel for each NIC as on nodes with
NVLink (src/graph/search.cc).
"""

from __future__ import annotations

import math

from maya.clusters import Cluster

# NCCL counts 12, 24 and 48 GB/s for NICs of 100, 200 and 400 Gb/s (search.cc, speedArrayInter).
NIC_RATE = 0.96
# B/s of a channel, between two nodes and among more, by the major compute capability: perChMaxTreeBws,
# perChMaxTreeLL128Bws, perChMaxRingLL128Bws.
TREE_RATES = {7: (18.5e9, 10.0e9), 8: (23.6e9, 17.8e9), 9: (41.4e9, 36.0e9), 10: (42.8e9, 24.0e9)}
TREE_LL128_RATES = {7: (20e9, 20e9), 8: (20e9, 20e9), 9: (36.7e9, 29e9), 10: (31.67e9, 20e9)}
RING_LL128_RATES = {7: (20e9, 20e9), 8: (20e9, 20e9), 9: (36.7e9, 36.7e9), 10: (34.6e9, 73.4e9)}
LL_RATES = (39.0e9, 20.4e9)  # of all channels: llMaxBws, with an Intel processor
# Of the tree's rate, for sizes of 64 B, 128 B, ... 256 MiB: treeCorrectionFactor. (As written there, tenths.)
TREE_CORRECTIONS = {
    "LL": "10 10 10 10 9 8 7 7 7 7 6 5 4 4 5 6 7 8 9 10 10 10 10",
    "LL128": "10 10 10 10 10 9 8 8 8 7 6 6 6 6 6 6 8 9 9 9 9 10 10",
    "Simple": "9 9 9 9 9 9 9 8 7 6 6 5 5 5 5 6 7 8 7 7 8 9 9",
}
RING_PLATEAU = 1.4  # times the latency of a large ring with Simple: "plateau effect" (1.9 before Ampere)


def reckoned_ring_s(
    protocol: str, latency_s: float, size: float, ranks: int, nodes: int, nics: int, cluster: Cluster
) -> float:
    """Seconds of an all-reduce of `size` bytes, as NCCL reckons them."""
    rate = nics * NIC_RATE * cluster.nic_bandwidth
    if protocol == "LL":
        rate = min(LL_RATES[_column(nodes)], rate / 2)
    elif protocol == "LL128":
        rate = min(0.92 * rate, nics * _of(RING_LL128_RATES, nodes, cluster))
    elif size / (nics * ranks) >= 64:
        latency_s *= RING_PLATEAU if cluster.device.compute_capability >= (8, 0) else 1.9
    return latency_s + size * 2 * (ranks - 1) / ranks / rate


def reckoned_tree_s(
    protocol: str, latency_s: float, size: float, nodes: int, nics: int, cluster: Cluster
) -> float:
    """Seconds of an all-reduce of `size` bytes, as NCCL reckons them. Between two nodes it goes by the rate inside
    them, which it searches up to twice the NIC's (ncclTopoCompute, pass 2)."""
    rate = nics * NIC_RATE * cluster.nic_bandwidth * (2 if nodes == 2 else 1)
    rate = min(0.92 * rate, nics * _of(TREE_RATES, nodes, cluster))
    if protocol == "LL":
        rate = min(rate / 3.8, LL_RATES[_column(nodes)])
    elif protocol == "LL128":
        rate = min(rate * 120 / 128, nics * _of(TREE_LL128_RATES, nodes, cluster))
    corrections = TREE_CORRECTIONS[protocol].split()
    power = int(math.log2(max(size / 64, 1)))
    correction = int(corrections[power]) / 10 if power < len(corrections) else 1.0
    return latency_s + 2 * size / (rate * correction)


def _column(nodes: int) -> int:
    return 0 if nodes == 2 else 1


def _of(rates: dict[int, tuple[float, float]], nodes: int, cluster: Cluster) -> float:
    major = min(max(cluster.device.compute_capability[0], min(rates)), max(rates))
    return rates[major][_column(nodes)]
