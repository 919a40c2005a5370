"""From a row to the script, arguments and cluster that reproduce it."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from maya.clusters import load
from maya.clusters.types import Cluster, Device, Link, Node
from maya.simulate.whatif import WhatIf
from maya.trace.types import JobTrace, Kernel, Operation
from maya.validate.flags import MappingError, ffn_size, flat, vocabulary
from maya.validate.megatron import (
    IN_PARTS,
    fuses_with_torchscript,
    host_software,
    megatron_arguments,
    megatron_environment,
)
from maya.validate.rows import Row

MEGATRON = "megatron/pretrain_gpt.py"
FSDP = "fsdp/train.py"
_ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@dataclass(frozen=True)
class Mapped:
    script: str  # below the folder of examples
    argv: tuple[str, ...]
    cluster: Cluster
    world: int
    environment: tuple[tuple[str, str], ...]
    # Kind of operation -> how many times longer the measured software takes for it than what the example calls.
    slower: tuple[tuple[str, float], ...] = ()
    torchscript: bool = False  # what the measured software fused kernels with; the example has torch.compile

    @property
    def software(self) -> WhatIf:
        return WhatIf(scale=dict(self.slower))

    def as_measured(self, trace: JobTrace) -> JobTrace:
        """With kernels of PyTorch's compiler standing in for TorchScript's: they take what their bytes do. How many
        instructions they have, and which candidate was taken for how they go through memory, is the compiler's own."""
        if not self.torchscript:
            return trace
        return replace(trace, operations=tuple(map(_by_its_bytes, trace.operations)))


def _by_its_bytes(operation: Operation) -> Operation:
    return replace(operation, work=None) if isinstance(operation, Kernel) else operation


@dataclass(frozen=True)
class Unmapped:
    reason: str


Family = tuple[str, str]


def family(row: Row, mapped: Mapped) -> Family:
    """Rows that are judged together, as a search's trials are: of one source (named first) and one script."""
    return row.source, mapped.script


def map_row(row: Row) -> Mapped | Unmapped:
    """What to run for `row`, or why nothing can be."""
    try:
        cluster = _cluster(row)
        slower = tuple(SLOWER.get((row.source, cluster.device.key), {}).items())
        if "FSDP" in row.text("framework"):
            script, argv, environment = FSDP, _fsdp(row), _fsdp_environment(row)
        elif re.search("megatron|nemo|internevo", row.text("framework"), re.IGNORECASE):
            script, argv = MEGATRON, megatron_arguments(row)
            environment = _ONE_CONNECTION | megatron_environment(row, argv)
        else:
            return Unmapped(f"no example for {row.text('framework')}")
        torchscript = script == MEGATRON and fuses_with_torchscript(row)
        return Mapped(
            script, argv, cluster, row.number("gpus"), tuple(environment.items()), slower, torchscript
        )
    except KeyError as missing:
        return Unmapped(f"the source does not state {missing.args[0]}")
    except MappingError as error:
        return Unmapped(str(error))


def _fsdp_environment(row: Row) -> dict[str, str]:
    """Variables that the source's launcher sets."""
    if "torchtitan" in row.text("framework"):  # run_llama_train.sh of 2024, run_train.sh since
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return _ONE_CONNECTION


def _fsdp(row: Row) -> tuple[str, ...]:
    flags: dict[str, Any] = {
        "--layers": row.number("layers"),
        "--hidden": row.number("hidden"),
        "--ffn": ffn_size(row),
        "--heads": row.number("heads"),
        "--kv-heads": row.number("kv_heads", row.number("heads")),
        "--seq": row.number("seq"),
        "--vocab": vocabulary(row),
        "--iterations": 500000,
    }
    return flat(flags | _fsdp_batch(row) | _fsdp_parallelism(row) | _fsdp_software(row))


def _fsdp_batch(row: Row) -> dict[str, Any]:
    pipeline = row.number("pp", 1)
    replicas = row.number("gpus") // (row.number("tp", 1) * row.number("cp", 1) * pipeline)
    micro_batch, accumulation = row.number("mbs"), row.number("gbs") / replicas / row.number("mbs")
    if accumulation != int(accumulation):
        raise MappingError(
            f"gbs ({row.number('gbs')}) / replicas ({replicas}) / mbs ({row.number('mbs')}) = "
            f"{accumulation:g} micro-batches, no whole number"
        )
    if pipeline > 1 and accumulation == 1:
        # torchtitan's batch_size is what a pipeline gets at once; it is cut into as many micro-batches as the pipeline
        # has ranks (the default of pipeline_parallel_microbatches in 2024).
        if micro_batch % pipeline:
            raise MappingError(
                f"a batch of {micro_batch} sequences is not divisible by {pipeline} micro-batches"
            )
        micro_batch, accumulation = micro_batch // pipeline, pipeline
    return {"--micro-batch-size": micro_batch, "--accumulation-steps": int(accumulation)}


def _fsdp_parallelism(row: Row) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    if row.number("tp", 1) > 1:
        flags["--tensor-parallel"] = row.number("tp")
        if "async" in row.text("comm_overlap").lower():
            flags["--async-tensor-parallel"] = True
    if row.number("cp", 1) > 1:
        flags["--context-parallel"] = row.number("cp")
    if row.number("pp", 1) > 1:
        flags["--pipeline-parallel"] = row.number("pp")
        if "interleaved" in row.text("notes").lower():
            flags["--stages-a-rank"] = row.number("vp", 2)  # torchtitan's default
            flags["--step-by-step"] = True  # all such rows are of 2024
    if row.text("sharding") == "SHARD_GRAD_OP":
        flags["--no-reshard-after-forward"] = True
    return flags


def _fsdp_software(row: Row) -> dict[str, Any]:
    framework = row.text("framework")
    flags: dict[str, Any] = {}
    for kind in ("full", "selective"):
        if row.text("recompute").startswith(kind):
            flags["--recompute"] = kind
    if "llama" in row.text("model").lower():
        flags["--llama"] = True
        if "torch.compile" not in framework:
            # Fused since PyTorch 2.9 (pytorch/pytorch#153666), before which all rows were measured.
            flags["--unfused-norm"] = True
    if re.search("fp8|float8", row.text("precision"), re.IGNORECASE):
        if "llm-foundry" in framework:  # fc_type of its submit_benchmarks.py: te
            flags["--float8"] = "delayed"
        else:
            flags["--float8"] = "rowwise" if "rowwise" in row.text("precision") else "tensorwise"
    if "torch.compile" in framework:
        flags["--compile"] = True
    if re.search("torchtitan|llm-foundry", framework) and "h100" in row.text("gpu").lower():
        flags["--flash-attention"] = True  # cuDNN's, today's default there, is newer
    if "llm-foundry" in framework:  # its loss_fn is fused_crossentropy, flash-attn's
        flags["--fused-cross-entropy"] = True
    if row.text("precision").endswith("PURE"):  # Composer: gradients too are reduced in bf16
        flags["--reduce-dtype"] = "bfloat16"
    return flags


def _cluster(row: Row) -> Cluster:
    """The node and fabric that a source describes, from the nearest shipped cluster."""
    gpu = row.text("gpu").lower()
    base = next((name for key, name in GPUS.items() if key in gpu), None)
    if base is None:
        raise MappingError(f"no cluster is known for {row.text('gpu')!r}")
    cluster = load(base)
    node = cluster.node.model_copy(update={"gpus": row.number("gpus_per_node", cluster.node.gpus)})
    for key, fabric in FABRICS.items():
        if key in row.source:
            node = node.model_copy(update=fabric)
    if (share := reached(row)) is not None:
        node = reaching(node, share)
    return cluster.model_copy(
        update={
            "node": node,
            "device": _device(cluster.device, gpu),
            "host_speed": _host_speed(row, cluster),
        }
    )


def _host_speed(row: Row, cluster: Cluster) -> float:
    here = cluster.device.key, host_software(row)
    speeds = (
        speed for (key, *there), speed in HOST_SPEEDS.items() if key in row.source and (*there,) == here
    )
    return next(speeds, cluster.host_speed * (PARTS if here[1].endswith(IN_PARTS) else 1.0))


def reached(row: Row) -> float | None:
    """What share of their rate its NICs reached on that day, where it was fitted on whole iterations."""
    latest = None
    for (key, since), share in REACHED_SINCE.items():
        if key in row.source and row.date >= since:
            latest = share
    return latest


def reaching(node: Node, share: float) -> Node:
    """With NICs that reach that share of their rate."""
    return node.model_copy(update={"nic": node.nic.model_copy(update={"efficiency": share})})


def _device(device: Device, gpu: str) -> Device:
    """With the memory that the source's name of the GPU states, where that is another model's."""
    update: dict[str, Any] = {}
    memory = re.search(r"(\d+) ?gb", gpu)
    if memory and abs(int(memory.group(1)) - device.memory_bytes / 1e9) > 8:
        update["memory_bytes"] = int(int(memory.group(1)) * 2**30 * 0.99)
        if bandwidth := BANDWIDTHS.get((device.key, int(memory.group(1)))):
            update["memory_bandwidth"] = bandwidth
    if stated := re.search(r"([\d.]+) ?tb/s", gpu):
        update["memory_bandwidth"] = float(stated.group(1)) * 1e12
    if device.power_w and (cap := re.search(r"(\d+) ?w cap", gpu)):
        update["power_cap_w"] = float(cap.group(1))
    return device.model_copy(update=update)


# B/s of models with less memory, of equal peak rates (NVIDIA A100 40GB datasheet, SXM).
BANDWIDTHS = {("a100_sxm", 40): 1.555e12}


# Of the measured hosts over the reference host, and of their software over PyTorch 2.11 with torch.compile where it is
# older, by source, device and the host's software: fitted on the fit share where it has three rows (scripts/fit/host).
HOST_SPEEDS = {
    ("vtrain", "a100_sxm", ""): 0.394,  # Megatron-DeepSpeed of 2021 with TorchScript
    ("megatron_lm_golden", "a100_sxm", "24.01"): 0.261,
    ("megatron_lm_golden", "a100_sxm", "24.01, parts"): 0.346,
    ("megatron_lm_golden", "a100_sxm", "25.05"): 0.22,
    ("megatron_lm_golden", "a100_sxm", "25.06, parts"): 0.354,
}
# Of software without a speed of its own that keeps experts or contexts in parts, over a cluster's speed: the geometric
# mean of both that have one, over their cluster's 0.30 (scripts/fit/host).
PARTS = 1.17

# How much longer 2023's FlashAttention 1, and its cuBLAS on a Hopper, took than today's: fitted on the fit share of
# llm-foundry's rows on a device (scripts/fit/software). InternEvo's images have FlashAttention 1.0.5, too
# (its doc/en/install.md): what was fitted on the A100s of llm-foundry is taken for it.
_FLASH_ATTENTION_1 = {"attention": 1.95}
SLOWER = {
    ("llm_foundry_fsdp_h100_a100", "a100_sxm"): _FLASH_ATTENTION_1,
    ("llm_foundry_fsdp_h100_a100", "h100_sxm"): _FLASH_ATTENTION_1 | {"gemm": 1.15},
    ("internevo_7b_a100", "a100_sxm"): _FLASH_ATTENTION_1,
    # All-reduces while it trained, over what vTrain timed of them alone: fitted on the fit share, likewise. Its rows on
    # several nodes do not show it.
    ("vtrain_single_node_a100", "a100_sxm"): {"all_reduce": 1.7},
}

GPUS = {"h200": "dgx-h200", "h100": "dgx-h100", "a100": "dgx-a100", "v100": "dgx-v100", "a40": "a40-8"}


def _timings(name: str) -> dict[str, dict[int, Any]]:
    """What a source timed of collectives within its nodes, as `Node.collectives`."""
    stored = json.loads((files("maya.validate") / name).read_text(encoding="utf-8"))["collectives"]
    return {
        collective: {int(ranks): tuple(map(tuple, points)) for ranks, points in of.items()}
        for collective, of in stored.items()
    }


_GBIT = 1e9 / 8
# What the sources say of the network between nodes, and of collectives within them.
FABRICS: dict[str, dict[str, Any]] = {
    # vTrain (MICRO 2024), section V: four 200 Gb/s HDR a node
    "vtrain": {
        "nics": 4,
        "nic": Link(kind="infiniband", bandwidth=200 * _GBIT, latency_s=3e-6),
        "collectives": _timings("vtrain_collectives.json"),
    },
    # Jean Zay: 4 x Omni-Path 100 Gb/s. The BLOOM chronicles measured an all-reduce bus bandwidth over 4 nodes of
    # 5.07 GB/s of A100s and 10.6 GB/s of V100s, of 50.
    "bigscience_bloom": {
        "nics": 4,
        "nic": Link(kind="omni-path", bandwidth=100 * _GBIT, latency_s=3e-6, efficiency=0.10),
    },
    # Its nodes of four V100s: two NVLinks between any two (NV2 in nvidia-smi topo -m). Bus bandwidths of all-reduces in
    # experiments/bandwidth of the same repository: 993 Gb/s on one, 124 of 150 GB/s; 84.7 Gb/s on four, 10.6 of 50 GB/s
    # a node, in January 2022. (54.2 Gb/s on 16 in May 2021; what these rows send goes among two to four.)
    "bigscience_v100": {
        "link": Link(kind="nvlink", bandwidth=150e9, latency_s=1.5e-6, efficiency=0.83),
        "mesh": tuple((a, b, 2) for a, b in itertools.combinations(range(4), 2)),
        "nics": 4,
        "nic": Link(kind="omni-path", bandwidth=100 * _GBIT, latency_s=3e-6, efficiency=0.21),
    },
    "internevo": {"nics": 4, "nic": Link(kind="roce", bandwidth=100 * _GBIT, latency_s=4e-6)},
}

# The share of its NICs' rate that a network reached from a day on until the next, fitted on the fit share's rows of
# these days (scripts/fit/network). The 5.07 GB/s of Jean Zay's A100s are of January 2022.
REACHED_SINCE = {
    ("bigscience_bloom", "02-20"): 0.18,
    ("bigscience_bloom", "02-25"): 0.30,
}
