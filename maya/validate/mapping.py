"""From a row to the script, arguments and cluster that reproduce it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from maya.clusters import load
from maya.clusters.types import Cluster, Device, Link
from maya.simulate.whatif import WhatIf
from maya.validate.rows import Row

MEGATRON = "megatron/pretrain_gpt.py"
FSDP = "fsdp/train.py"


@dataclass(frozen=True)
class Mapped:
    script: str  # below the folder of examples
    argv: tuple[str, ...]
    cluster: Cluster
    world: int
    environment: tuple[tuple[str, str], ...] = (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)
    # Kind of operation -> how many times longer the measured software takes for it than what the example calls.
    slower: tuple[tuple[str, float], ...] = ()

    @property
    def software(self) -> WhatIf:
        return WhatIf(scale=dict(self.slower))


@dataclass(frozen=True)
class Unmapped:
    reason: str


def map_row(row: Row) -> Mapped | Unmapped:
    """What to run for `row`, or why nothing can be."""
    try:
        cluster = _cluster(row)
        if "fp8" in row.text("precision").lower() or "float8" in row.text("precision").lower():
            return Unmapped("FP8 needs Transformer Engine or torchao, which the examples do without")
        experts = _experts(row)
        if row.number("cp", 1) > 1 and not _newer(row):
            return Unmapped("context parallelism without cuDNN attention: the example rings with that alone")
        if "FSDP" in row.text("framework"):
            slower = SLOWER.get((row.source, cluster.device.key), {})
            return Mapped(FSDP, _fsdp(row), cluster, row.number("gpus"), slower=tuple(slower.items()))
        if not re.search("megatron|nemo|internevo", row.text("framework"), re.IGNORECASE):
            return Unmapped(f"no example for {row.text('framework')}")
        return Mapped(MEGATRON, _megatron(row, experts), cluster, row.number("gpus"))
    except KeyError as missing:
        return Unmapped(f"the source does not state {missing.args[0]}")
    except _MappingError as error:
        return Unmapped(str(error))


class _MappingError(Exception):
    pass


def _megatron(row: Row, experts: dict[str, Any]) -> tuple[str, ...]:
    llama = bool(re.search("llama|internlm", row.text("model"), re.IGNORECASE))
    nemotron = "nemotron" in row.text("model").lower()
    flags: dict[str, Any] = {
        "--num-layers": row.number("layers"),
        "--hidden-size": row.number("hidden"),
        "--ffn-hidden-size": _ffn(row),
        "--num-attention-heads": row.number("heads"),
        "--seq-length": row.number("seq"),
        "--max-position-embeddings": row.number("seq"),
        "--vocab-size": _vocabulary(row),
        "--micro-batch-size": row.number("mbs"),
        "--global-batch-size": row.number("gbs"),
        "--tensor-model-parallel-size": row.number("tp", 1),
        "--pipeline-model-parallel-size": row.number("pp", 1),
        "--context-parallel-size": row.number("cp", 1),
        "--attention-backend": "flash" if row.text("attention") == "flash" else "unfused",
        "--train-iters": 500000,
        "--mock-data": True,
    }
    flags |= _precision(row) | _software(row)
    flags |= _virtual_pipeline(row) | _recomputation(row) | _sharing(row)
    if row.number("kv_heads", row.number("heads")) != row.number("heads"):
        flags |= {"--group-query-attention": True, "--num-query-groups": row.number("kv_heads")}
    if llama:
        flags |= {"--swiglu": True, "--normalization": "RMSNorm"}
    if nemotron:  # Nemotron-4 15B technical report, table 1
        flags |= {"--squared-relu": True, "--rotary-percent": 0.5}
    if llama or nemotron:
        flags |= {
            "--position-embedding-type": "rope",
            "--disable-bias-linear": True,
            "--untie-embeddings-and-output-weights": True,
            "--attention-dropout": 0.0,
            "--hidden-dropout": 0.0,
        }
    return _flat(flags | experts)


def _experts(row: Row) -> dict[str, Any]:
    """Of a mixture of experts; empty: the row has none.

    A functional test of Megatron-LM is named in `model`; tests/functional_tests/test_cases/*/NAME/model_config.yaml
    tells what the row does not.
    """
    name, notes = row.text("model").lower(), row.text("notes")
    if row.number("ep", 1) == 1 and not re.search("moe|expert", name):
        return {}
    for sign, reason in UNMAPPED_EXPERTS.items():
        if sign in name or sign in notes:
            raise _MappingError(f"mixture of experts with {reason}")
    config = next((config for part, config in EXPERTS.items() if part in name), None)
    stated = re.search(r"num-experts=(\d+)", notes)
    if config is None or stated is None:
        raise _MappingError("mixture of experts of which the source states no router")
    flags: dict[str, Any] = {"--num-experts": int(stated[1]), "--disable-bias-linear": True, **config}
    flags["--expert-model-parallel-size"] = row.number("ep", 1)
    for flag in ("expert-tensor-parallel-size", "moe-token-dispatcher-type"):
        if found := re.search(rf"{flag}=(\w+)", notes):
            flags[f"--{flag}"] = found[1]
    if "swiglu=True" in notes:
        flags["--swiglu"] = True
        if row.values["ffn"] is None:
            flags["--ffn-hidden-size"] = 64 * (8 * row.number("hidden") // 3 // 64)
    return flags


# What else a mixture of experts has that the example does not.
UNMAPPED_EXPERTS = {
    "multi-latent-attention=True": "latent attention: the example has none",
    "use-megatron-fsdp=True": "Megatron's FSDP: the example has none",
    "muon": "the Muon optimizer: the example has Adam's alone",
    "multi_dist_optimizer_instances": "several instances of the distributed optimizer: the example has one",
}

_SINKHORN = {"--moe-router-load-balancing-type": "sinkhorn", "--moe-router-topk": 1}
_TOP_2 = {"--moe-router-load-balancing-type": "aux_loss", "--moe-router-topk": 2}
# Routers of Megatron-LM's functional tests, by a part of their names.
EXPERTS: dict[str, dict[str, Any]] = {
    "4experts": _SINKHORN,
    "8experts2parallel": _SINKHORN,
    "8experts_etp1_ep4": _TOP_2 | {"--moe-aux-loss-coeff": 1e-2},
    "ep8_resume_torch_dist_dist_optimizer": _TOP_2
    | {"--moe-router-dtype": "fp32", "--moe-ffn-hidden-size": 1024},
    "ep2_etp2_pp2_resume_torch_dist_dist_optimizer": _TOP_2
    | {
        "--moe-router-dtype": "fp32",
        "--moe-ffn-hidden-size": 1024,
        "--moe-shared-expert-intermediate-size": 512,
    },
}


def _precision(row: Row) -> dict[str, Any]:
    """Sources that state no precision (vTrain: parameters of two bytes in its simulator) trained in fp16."""
    stated = row.text("precision").lower()
    flags: dict[str, Any] = {"--bf16" if "bf16" in stated else "--fp16": True}
    if "bf16" in stated and "fp32 grad" not in stated and _newer(row):
        flags["--grad-reduce-in-bf16"] = True
    return flags


def _newer(row: Row) -> bool:
    """NeMo on Megatron-Core: fused attention of cuDNN, gradients in bf16 (recipes of dgxc-benchmarking)."""
    return "nemo" in row.text("framework").lower()


def _software(row: Row) -> dict[str, Any]:
    """What the framework of that source fuses and waits for: flags of Megatron-LM."""
    framework = row.text("framework")
    if _newer(row):
        return {"--attention-backend": "fused"}
    unfused = {"--no-gradient-accumulation-fusion": True}
    # Each functional test's model_config.yaml says so.
    if "functional test" in framework or "InternEvo" in framework:
        return unfused
    # Megatron-LM until 2022 and its DeepSpeed fork time every forward and backward pass, waiting for the device around
    # each (_Timer in megatron/global_vars.py); the tensor ranks of a stage each send a part of what it hands on; loss
    # scaling finds what is not finite.
    flags = {
        "--timing-log-level": 2,
        "--no-barrier-with-level-1-timing": True,
        "--no-check-for-nan-in-loss-and-grad": True,
    }
    if row.text("seq_parallel").lower() != "true":
        flags["--scatter-gather-tensors-in-pipeline"] = True
    if "Korthikanti" in framework:
        return flags
    # Before 2022 each weight's gradient was added to what was there, and an input's was summed over the tensor ranks
    # after it, not beside it (ColumnParallelLinear in megatron/mpu/layers.py).
    return flags | unfused | {"--no-async-tensor-model-parallel-allreduce": True}


def _virtual_pipeline(row: Row) -> dict[str, Any]:
    stages = row.number("vp", 1)
    if stages <= 1:
        return {}
    layers = row.number("layers") // (row.number("pp") * stages)
    return {"--num-layers-per-virtual-pipeline-stage": layers}


def _recomputation(row: Row) -> dict[str, Any]:
    stated = row.text("recompute").lower()
    if stated.startswith("full"):
        return {
            "--recompute-granularity": "full",
            "--recompute-method": "uniform",
            "--recompute-num-layers": 1,
        }
    return {"--recompute-granularity": "selective"} if stated.startswith("selective") else {}


def _sharing(row: Row) -> dict[str, Any]:
    """Sequence parallelism, optimizer state and overlap."""
    flags: dict[str, Any] = {}
    if row.text("seq_parallel").lower() == "true":
        flags["--sequence-parallel"] = True
    sharded = row.text("dist_opt").lower()
    if sharded == "true" or sharded.startswith("zero-1"):
        flags["--use-distributed-optimizer"] = True
    overlap = row.text("comm_overlap")
    if "InternEvo" in row.text("framework"):  # overlap_sync_grad of its configs/7B_sft.py
        flags["--overlap-grad-reduce"] = True
    if "overlap-grad-reduce" in overlap or "grad/param sync overlap" in overlap:
        flags["--overlap-grad-reduce"] = True
    if "overlap-param-gather" in overlap or "grad/param sync overlap" in overlap:
        flags["--overlap-param-gather"] = True
    return flags


def _fsdp(row: Row) -> tuple[str, ...]:
    if row.number("tp", 1) * row.number("pp", 1) > 1:
        raise _MappingError("FSDP with tensor or pipeline parallelism: no example has both")
    per_gpu = row.number("gbs") / row.number("gpus")
    accumulation = per_gpu / row.number("mbs")
    if accumulation != int(accumulation):
        raise _MappingError(
            f"gbs ({row.number('gbs')}) / gpus ({row.number('gpus')}) / mbs ({row.number('mbs')}) = "
            f"{accumulation:g} micro-batches, no whole number"
        )
    flags: dict[str, Any] = {
        "--layers": row.number("layers"),
        "--hidden": row.number("hidden"),
        "--ffn": _ffn(row),
        "--heads": row.number("heads"),
        "--kv-heads": row.number("kv_heads", row.number("heads")),
        "--seq": row.number("seq"),
        "--vocab": _vocabulary(row),
        "--micro-batch-size": row.number("mbs"),
        "--accumulation-steps": int(accumulation),
        "--iterations": 500000,
    }
    for kind in ("full", "selective"):
        if row.text("recompute").startswith(kind):
            flags["--recompute"] = kind
    if "llama" in row.text("model").lower():
        flags["--llama"] = True
    if "torch.compile" in row.text("framework"):
        flags["--compile"] = True
    if re.search("torchtitan|llm-foundry", row.text("framework")) and "h100" in row.text("gpu").lower():
        flags["--flash-attention"] = True  # cuDNN's, today's default there, is newer
    if "llm-foundry" in row.text("framework"):  # its loss_fn is fused_crossentropy, flash-attn's
        flags["--fused-cross-entropy"] = True
    if row.text("precision").endswith("PURE"):  # Composer: gradients too are reduced in bf16
        flags["--reduce-dtype"] = "bfloat16"
    if row.text("sharding") == "SHARD_GRAD_OP":
        flags["--no-reshard-after-forward"] = True
    return _flat(flags)


def _flat(flags: dict[str, Any]) -> tuple[str, ...]:
    words: list[str] = []
    for flag, value in flags.items():
        words += [flag] if value is True else [flag, str(value)]
    return tuple(words)


def _ffn(row: Row) -> int:
    if row.values["ffn"] is not None:
        return row.number("ffn")
    if "internlm" in row.text("model").lower():
        return 256 * round(8 / 3 * row.number("hidden") / 256 + 0.4999)  # 8/3 hidden, to a multiple of 256
    return 4 * row.number("hidden")


def _vocabulary(row: Row) -> int:
    """The source's, or the tokenizer's of the model family."""
    families = {"llama": 128256, "nemotron": 256000, "internlm": 103168, "megatron": 51200, "turing": 51200}
    for family, size in families.items():
        if family in row.text("model").lower():
            return row.number("vocab", size)
    return row.number("vocab", 50257)


def _cluster(row: Row) -> Cluster:
    """The node and fabric that a source describes, from the nearest shipped cluster."""
    gpu = row.text("gpu").lower()
    base = next((name for key, name in GPUS.items() if key in gpu), None)
    if base is None:
        raise _MappingError(f"no cluster is known for {row.text('gpu')!r}")
    cluster = load(base)
    node = cluster.node.model_copy(update={"gpus": row.number("gpus_per_node", cluster.node.gpus)})
    for key, fabric in FABRICS.items():
        if key in row.source:
            node = node.model_copy(update=fabric)
    speed = next((speed for key, speed in HOST_SPEEDS.items() if key in row.source), cluster.host_speed)
    return cluster.model_copy(
        update={"node": node, "device": _device(cluster.device, gpu), "host_speed": speed}
    )


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


# Of the measured host and its software over the reference host and PyTorch 2.11 with torch.compile, where the software
# is not that of the examples: fitted on the fit share (scripts/fit/host).
HOST_SPEEDS = {"vtrain": 0.595}  # Megatron-DeepSpeed of 2021 with TorchScript

# How much longer 2023's FlashAttention 1, and its cuBLAS on a Hopper, took than today's: fitted on the fit share of a
# source's rows on a device (scripts/fit/software).
SLOWER = {
    ("llm_foundry_fsdp_h100_a100", "a100_sxm"): {"attention": 1.9},
    ("llm_foundry_fsdp_h100_a100", "h100_sxm"): {"attention": 1.9, "gemm": 1.3},
}

GPUS = {"h200": "dgx-h200", "h100": "dgx-h100", "a100": "dgx-a100", "v100": "dgx-v100", "a40": "a40-8"}

_GBIT = 1e9 / 8
# What the sources say of the network between nodes.
FABRICS: dict[str, dict[str, Any]] = {
    # vTrain (MICRO 2024), section V: four 200 Gb/s HDR a node
    "vtrain": {"nics": 4, "nic": Link(kind="infiniband", bandwidth=200 * _GBIT, latency_s=3e-6)},
    # Jean Zay: 4 x Omni-Path 100 Gb/s. The BLOOM chronicles measured an all-reduce bus bandwidth over 4 nodes of
    # 5.07 GB/s of A100s and 10.6 GB/s of V100s, of 50.
    "bigscience_bloom": {
        "nics": 4,
        "nic": Link(kind="omni-path", bandwidth=100 * _GBIT, latency_s=3e-6, efficiency=0.10),
    },
    "bigscience_v100": {
        "nics": 4,
        "nic": Link(kind="omni-path", bandwidth=100 * _GBIT, latency_s=3e-6, efficiency=0.21),
    },
    "internevo": {"nics": 4, "nic": Link(kind="roce", bandwidth=100 * _GBIT, latency_s=4e-6)},
}
