"""What a cluster is: devices in nodes, joined by links. Every figure is a datasheet's, in SI units."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")


def _of_known_types(peaks: dict[str, float]) -> dict[str, float]:
    if unknown := [dtype for dtype in peaks if dtype not in _DTYPES]:
        raise ValueError(f"{unknown[0]} is none of {', '.join(_DTYPES)}")
    return peaks


class Device(_Frozen):
    """One accelerator.

    `peak_flops` maps a dtype (`fp64 fp32 tf32 fp16 bf16 fp8 int8 fp4`) to its dense tensor-core (or, where
    there is none, vector) peak in FLOP/s; `vector_flops` is the fp32 rate of the ordinary cores.
    """

    name: str  # what cudaGetDeviceProperties reports
    key: str  # short key of measured tables: h100_sxm, a100_sxm, v100_sxm, a40, ...
    compute_capability: tuple[int, int]
    multiprocessors: int = Field(gt=0)
    clock_hz: float = Field(gt=0)
    memory_bytes: int = Field(gt=0)  # as cudaMemGetInfo reports the total
    context_bytes: int = Field(ge=0)  # taken by a CUDA context
    # What NCCL takes: once, with the first communicator, and for each. What an H100 and an H200 had, if not stated: of
    # each of 32 channels 10 MiB to receive and 2 MiB to send.
    nccl_bytes: int = Field(default=176_160_768, ge=0)
    communicator_bytes: int = Field(default=402_653_184, ge=0)
    memory_bandwidth: float = Field(gt=0)  # B/s
    l2_bytes: int = Field(gt=0)
    shared_memory_per_block: int = Field(gt=0)  # opt-in maximum
    peak_flops: Annotated[dict[str, PositiveFloat], AfterValidator(_of_known_types)]
    vector_flops: float = Field(gt=0)
    launch_latency_s: float = Field(gt=0)  # from the launch call to the kernel's start on an idle stream
    pcie_bandwidth: float = Field(gt=0)  # B/s, host to device
    power_w: float | None = Field(default=None, gt=0)  # that it may draw by its maker's design
    power_cap_w: float | None = Field(default=None, gt=0)  # that it may draw here, where that is less
    nccl_channels: int = Field(default=16, ge=0)  # of a collective: multiprocessors that its kernel takes

    @property
    def tensor_flops(self) -> float:
        """FLOP/s of 16-bit products."""
        return self.peak_flops.get("bf16", self.peak_flops.get("fp16", self.vector_flops))


class Link(_Frozen):
    """A connection; `bandwidth` is B/s for one device (or one NIC) and one direction."""

    kind: str  # of WITHIN_NODES or BETWEEN_NODES
    bandwidth: float = Field(gt=0)
    latency_s: float = Field(ge=0)
    # Share of the bandwidth that large collectives reach, where it was measured; else what is usual of the kind.
    efficiency: float | None = Field(default=None, gt=0, le=1)


WITHIN_NODES = ("nvlink", "nvswitch", "pcie")
BETWEEN_NODES = ("infiniband", "roce", "ethernet", "efa", "omni-path")


def _of_kinds(link: Link, known: tuple[str, ...]) -> Link:
    """What large collectives reach of a link's bandwidth is known by its kind."""
    if link.kind not in known:
        raise ValueError(f"kind {link.kind} is none of {', '.join(known)}")
    return link


WithinNode = Annotated[Link, AfterValidator(lambda link: _of_kinds(link, WITHIN_NODES))]
BetweenNodes = Annotated[Link, AfterValidator(lambda link: _of_kinds(link, BETWEEN_NODES))]


def _ascending(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    sizes = [size for size, _ in points]
    if not points or any(after <= before for before, after in pairwise(sizes)):
        raise ValueError(f"[bytes, seconds] in ascending order of bytes are needed, not bytes of {sizes}")
    return points


# (bytes of the larger of a rank's two buffers, seconds) of a collective that has its links to itself.
Timings = Annotated[tuple[tuple[PositiveFloat, PositiveFloat], ...], AfterValidator(_ascending)]
CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"]


class Node(_Frozen):
    gpus: int = Field(gt=0)
    link: WithinNode  # between the devices of a node: all that one device has of it
    pair_link: WithinNode | None = None  # within the pairs 0-1, 2-3, ...: an NVLink bridge beside `link`
    # A mesh: (device, device, how many of a device's equal shares of `link` join the two). Empty: all to all.
    mesh: tuple[tuple[int, int, int], ...] = ()
    nics: int = Field(gt=0)
    nic: BetweenNodes  # each NIC's
    # What was timed within such a node (nccl-tests): collective -> ranks -> timings, which come before the device's own
    # tables from their smallest size on.
    collectives: dict[CollectiveName, dict[int, Timings]] = {}

    @property
    def peer_bytes(self) -> int:
        """Device memory that NCCL takes for each peer of the node that a rank sends to or receives from by itself.

        14 MiB a channel, as eight H100s were seen to take in an all-to-all (NVIDIA/nccl issue 1685: 3.28 GB for 7 peers
        of 32 channels). A peer has twice as many channels as NVLinks join the two, a power of two, 32 at most (NCCL
        2.28, ncclTopoGetNchannels).
        """
        return (32 if self.link.kind == "nvswitch" else 2) * 14 * 2**20


class Cluster(_Frozen):
    name: str
    device: Device
    node: Node
    # How NICs meet leaf switches: all of a node's at one (fat-tree), or those of equal number at one (rail).
    fabric: Literal["rail", "fat-tree"] = "rail"
    nodes_per_leaf: int = Field(default=1, gt=0)  # that reach each other without the spine
    oversubscription: float = Field(default=1.0, ge=1.0)  # of leaf switches: NIC rate below over uplink rate
    # Of single threads, over the reference (maya/trace/host_speed.py).
    host_speed: float = Field(default=1.0, gt=0)
    price_per_gpu_hour: float | None = Field(default=None, ge=0)  # USD
    sources: dict[str, str] = Field(default_factory=dict)  # figure -> where it is published

    def node_of(self, rank: int) -> int:
        return rank // self.node.gpus

    def nic_of(self, rank: int) -> int:
        """Which of its node's NICs a device uses: neighbours share one where there are fewer than devices."""
        return rank % self.node.gpus * min(self.node.nics, self.node.gpus) // self.node.gpus

    @property
    def nic_bandwidth(self) -> float:
        """B/s of what `nic_of` counts as one: a device's share of the NICs where there are more than devices."""
        return self.node.nic.bandwidth * max(1.0, self.node.nics / self.node.gpus)

    def link_between(self, a: int, b: int) -> Link | None:
        """What two devices of one node have between them alone: a bridge, their part of a mesh, nothing (None)."""
        local = sorted((a % self.node.gpus, b % self.node.gpus))
        if self.node.pair_link is not None and local[0] // 2 == local[1] // 2:
            return self.node.pair_link
        shares = {tuple(sorted(edge[:2])): edge[2] for edge in self.node.mesh}
        if tuple(local) not in shares:
            return None
        most = max(sum(n for pair, n in shares.items() if device in pair) for device in range(self.node.gpus))
        part = self.node.link.bandwidth * shares[local[0], local[1]] / most
        return self.node.link.model_copy(update={"bandwidth": part})

    @property
    def least_link(self) -> Link:
        """What any two devices of a node that are joined have between them: a mesh's narrowest part."""
        parts = [self.link_between(a, b) for a, b, _ in self.node.mesh]
        return min((part for part in parts if part), key=lambda part: part.bandwidth, default=self.node.link)

    def nodes(self, gpus: int) -> int:
        """How many nodes hold `gpus` devices, filled in order of rank."""
        return -(-gpus // self.node.gpus)
