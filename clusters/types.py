"""What a cluster is: devices in nodes, joined by links. Every figure is a datasheet's, in SI units."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Device(_Frozen):
    """One accelerator.

    `peak_flops` maps a dtype (`fp64 fp32 tf32 fp16 bf16 fp8 int8`) to its dense tensor-core (or, where
    there is none, vector) peak in FLOP/s; `vector_flops` is the fp32 rate of the ordinary cores.
    """

    name: str  # what cudaGetDeviceProperties reports
    key: str  # short key of measured tables: h100_sxm, a100_sxm, v100_sxm, a40, ...
    compute_capability: tuple[int, int]
    multiprocessors: int = Field(gt=0)
    clock_hz: float = Field(gt=0)
    memory_bytes: int = Field(gt=0)  # as cudaMemGetInfo reports the total
    context_bytes: int = Field(ge=0)  # taken by a CUDA context
    memory_bandwidth: float = Field(gt=0)  # B/s
    l2_bytes: int = Field(gt=0)
    shared_memory_per_block: int = Field(gt=0)  # opt-in maximum
    peak_flops: dict[str, float]
    vector_flops: float = Field(gt=0)
    launch_latency_s: float = Field(gt=0)  # from the launch call to the kernel's start on an idle stream
    pcie_bandwidth: float = Field(gt=0)  # B/s, host to device


class Link(_Frozen):
    """A connection; `bandwidth` is B/s for one device (or one NIC) and one direction."""

    kind: str  # nvlink, nvswitch, pcie, infiniband, roce, ethernet
    bandwidth: float = Field(gt=0)
    latency_s: float = Field(ge=0)


class Node(_Frozen):
    gpus: int = Field(gt=0)
    link: Link  # between the devices of a node
    pair_link: Link | None = None  # within the pairs 0-1, 2-3, ...: an NVLink bridge beside `link`
    nics: int = Field(gt=0)
    nic: Link  # each NIC's


class Cluster(_Frozen):
    name: str
    device: Device
    node: Node
    oversubscription: float = Field(default=1.0, ge=1.0)  # of the fabric between nodes
    host_speed: float = Field(default=1.0, gt=0)  # single-thread speed over this machine's
    price_per_gpu_hour: float | None = None  # USD
    sources: dict[str, str] = Field(default_factory=dict)  # figure -> where it is published

    def node_of(self, rank: int) -> int:
        return rank // self.node.gpus

    def nodes(self, gpus: int) -> int:
        """How many nodes hold `gpus` devices, filled in order of rank."""
        return -(-gpus // self.node.gpus)
