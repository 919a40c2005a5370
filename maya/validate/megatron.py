"""From a row to the arguments of the Megatron example, which are Megatron-LM's."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from maya.validate.flags import MappingError, ffn_size, flat, vocabulary
from maya.validate.nemo import nemo_precision, nemo_software, of_nemo
from maya.validate.rows import Row


def megatron_arguments(row: Row) -> tuple[str, ...]:
    """Raises MappingError where the example cannot do what the row states, KeyError for what it does not state."""
    if _functional_test(row):
        return flat(ENDLESS | _tested(row))
    flags = _model(row) | _parallelism(row) | _precision(row) | _software(row) | _recomputation(row)
    if row.number("ep", 1) > 1 or re.search("moe|expert", row.text("model"), re.IGNORECASE):
        raise MappingError("mixture of experts of which the source states no router")
    cudnn = flags["--attention-backend"] == "fused"
    if row.number("cp", 1) > 1 and not cudnn and flags.get("--transformer-impl") != "transformer_engine":
        raise MappingError("context parallelism without cuDNN attention: the example rings with that alone")
    return flat(flags | ENDLESS)


def megatron_environment(row: Row, argv: tuple[str, ...]) -> dict[str, str]:
    """Variables that the source states, and those that the example's arguments need here."""
    if "BLOOM" in row.text("framework"):
        # Without it models of more than 100 billion parameters hung ("dealing with JZ hanging on the large model" in
        # the chronicles, before all topologies that were timed; and in every training script).
        return {"CUDA_LAUNCH_BLOCKING": "1"}
    stated = _stated(row, "environment") if _functional_test(row) else {}
    # Transformer Engine's user buffers: virtual devices have no multicast (docs/limits.md).
    needed = {"UB_SKIPMC": "1"} if "--tp-comm-overlap" in argv else {}
    return needed | {name: str(value) for name, value in stated.items()}


# Maya stops a run once its iterations repeat.
ENDLESS: dict[str, Any] = {"--train-iters": 500000, "--mock-data": True}


def _functional_test(row: Row) -> bool:
    """Of Megatron-LM's own."""
    return "functional test" in row.text("framework")


@cache
def _functional_tests() -> dict[str, dict[str, dict[str, Any]]]:
    """What each test's model_config.yaml states, and what it did when a file of times came, by folder and file
    (`scripts/fit/functional_tests`)."""
    text = files("maya.validate").joinpath("functional_tests.json").read_text(encoding="utf-8")
    tables: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return tables


def _when_measured(row: Row) -> dict[str, Any]:
    file = "/".join(PurePosixPath(row.text("source_path")).parts[-2:])
    return _functional_tests()["times"].get(file, {})


IN_PARTS = ", parts"


def host_software(row: Row) -> str:
    """What a functional test's host ran: the version of NVIDIA's PyTorch image, as "25.09", and whether experts or
    contexts are kept in parts, "25.09, parts": that code has changed more from version to version than the rest. Empty
    for other rows."""
    if not _functional_test(row):
        return ""
    parts = row.number("cp", 1) > 1 or "--num-experts" in _stated(row, "arguments")
    return str(_when_measured(row).get("image", "")) + (IN_PARTS if parts else "")


def _stated(row: Row, kind: str) -> dict[str, Any]:
    """The `arguments` or the `environment` of the row's test when it was measured."""
    tests, test = _functional_tests()["tests"], row.text("model")
    if test not in tests:
        raise MappingError(f"a functional test whose configuration is not known: {test}")
    stated = tests[test][kind] | _when_measured(row).get(kind, {})
    return {name: value for name, value in stated.items() if value is not None}


def _tested(row: Row) -> dict[str, Any]:
    """The test's own arguments: the example has Megatron-LM's."""
    arguments = _as_released(_stated(row, "arguments"))
    for name, reason in UNMAPPED_FLAGS.items():
        if name in arguments:
            raise MappingError(reason)
    if {"--use-megatron-fsdp", "--overlap-moe-expert-parallel-comm"} <= arguments.keys():
        raise MappingError(
            "experts' communication beside another micro-batch's computation, under Megatron FSDP: "
            "megatron-core 0.16.1 gathers no weights for it"
        )
    return {name: _words(value) for name, value in arguments.items()}


def _as_released(arguments: dict[str, Any]) -> dict[str, Any]:
    """Megatron-LM's development branch has Muon's shared layers by flags that megatron-core 0.16.1 has another for."""
    if arguments.get("--optimizer") != "muon" or "--use-distributed-optimizer" not in arguments:
        return arguments
    beside = ("--use-distributed-optimizer", "--no-use-layer-wise-param-layout")  # which 0.16.1 does without
    kept = {name: value for name, value in arguments.items() if name not in beside}
    return kept | {"--optimizer": "dist_muon"}


def _words(value: Any) -> Any:
    """The tests' configuration writes several words to a flag as "[attn mlp]". What a file has stands in its place."""
    if isinstance(value, dict):
        return json.dumps(value)
    several = re.fullmatch(r"\[([\w ]+)\]", value) if isinstance(value, str) else None
    return several[1].split() if several else value


UNMAPPED_FLAGS = {
    "--use-transformer-engine-op-fuser": (
        "Transformer Engine's fused operations for experts: megatron-core 0.16.1 fuses dense layers alone"
    ),
}


def _model(row: Row) -> dict[str, Any]:
    llama = bool(re.search("llama|internlm", row.text("model"), re.IGNORECASE))
    nemotron = "nemotron" in row.text("model").lower()
    flags: dict[str, Any] = {
        "--num-layers": row.number("layers"),
        "--hidden-size": row.number("hidden"),
        "--num-attention-heads": row.number("heads"),
        "--seq-length": row.number("seq"),
        "--max-position-embeddings": row.number("seq"),
        "--vocab-size": vocabulary(row),
        "--attention-backend": "flash" if row.text("attention") == "flash" else "unfused",
        "--ffn-hidden-size": ffn_size(row),
    }
    if _vtrain_node(row):
        flags["--make-vocab-size-divisible-by"] = 1
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
    return flags


def _parallelism(row: Row) -> dict[str, Any]:
    flags = {
        "--micro-batch-size": row.number("mbs"),
        "--global-batch-size": row.number("gbs"),
        "--tensor-model-parallel-size": row.number("tp", 1),
        "--pipeline-model-parallel-size": row.number("pp", 1),
        "--context-parallel-size": row.number("cp", 1),
    }
    return flags | _uneven_pipeline(row) | _virtual_pipeline(row) | _sharing(row)


def _uneven_pipeline(row: Row) -> dict[str, Any]:
    """BLOOM's `--pp-partition-method type:transformer|embedding`: embedding and loss count as a layer each.

    DeepSpeed then looks for the least that the fullest stage can have, and fills the stages with that in turn
    (partition_balanced in deepspeed/runtime/utils.py): the last has what is left.
    """
    layers, stages = row.number("layers"), row.number("pp", 1)
    if layers % stages == 0:
        return {}
    if "BLOOM" not in row.text("framework"):
        raise MappingError("pipeline stages of unequal layers: the source does not state which has how many")
    fullest = -(-(layers + 2) // stages)
    first = fullest - 1
    last = layers - first - (stages - 2) * fullest
    if last < 1:
        raise MappingError(f"pipeline stages of unequal layers: of {fullest} each, none is left for the last")
    return {"--decoder-first-pipeline-num-layers": first, "--decoder-last-pipeline-num-layers": last}


def _precision(row: Row) -> dict[str, Any]:
    """Sources that state no precision (vTrain: parameters of two bytes in its simulator) trained in fp16."""
    stated = row.text("precision").lower()
    if of_nemo(row):
        return nemo_precision(row) | (FP8 if "fp8" in stated else {})
    if "fp8" in stated:
        return {"--bf16": True, "--grad-reduce-in-bf16": True} | FP8
    flags: dict[str, Any] = {"--bf16" if "bf16" in stated else "--fp16": True}
    # InternEvo's HybridZeroOptimizer reduces gradients as they are.
    if "bf16" in stated and "fp32 grad" not in stated and "InternEvo" in row.text("framework"):
        flags["--grad-reduce-in-bf16"] = True
    return flags


# As NeMo's recipes have it (dgxc-benchmarking, llama3.1_8b.yaml and nemotron4-15b-synth.yaml). bf16_with_fp8_mixed
# keeps weights in FP8, and so nemotron's README asks for half as many devices as for BF16.
FP8 = {
    "--transformer-impl": "transformer_engine",
    "--fp8-format": "hybrid",
    "--fp8-amax-history-len": 1024,
    "--fp8-amax-compute-algo": "max",
    "--fp8-param-gather": True,
}


def fuses_with_torchscript(row: Row) -> bool:
    """Megatron-LM and what descends from it, before PyTorch 2.2 (megatron/core/jit.py)."""
    return not of_nemo(row) and not _functional_test(row)


def _software(row: Row) -> dict[str, Any]:
    """What the framework of that source fuses and waits for: flags of Megatron-LM."""
    framework = row.text("framework")
    if of_nemo(row):
        return nemo_software(row)
    unfused = {"--no-gradient-accumulation-fusion": True}
    if "InternEvo" in framework:
        return unfused
    # Loss scaling finds what is not finite.
    flags = {"--no-check-for-nan-in-loss-and-grad": True} | _exchanges(row)
    if "Korthikanti" in framework:
        return flags
    # Before 2022 each weight's gradient was added to what was there, and an input's was summed over the tensor ranks
    # after it, not beside it (ColumnParallelLinear in megatron/mpu/layers.py).
    return flags | unfused | {"--no-async-tensor-model-parallel-allreduce": True}


def _exchanges(row: Row) -> dict[str, Any]:
    """How the stages of Megatron-LM until 2022, and of its forks, hand on, and what they wait for."""
    framework = row.text("framework")
    if "BLOOM" in framework:
        return {"--deepspeed-pipeline": "parts"}
    if "+ DeepSpeed" in framework:
        # The source names the engine's branch, megatron2.4-3d of ShadenSmith/DeepSpeed, where gradients went whole
        # until a096d32 of 11 June 2021. All such rows are of about the 10th; those that say 07-10 were published on
        # 12 June (0b3d1d5 of bigscience-workshop/bigscience).
        return {"--deepspeed-pipeline": "whole-gradients"}
    # Every forward and backward pass is timed, waiting for the device around each (_Timer in megatron/global_vars.py);
    # the tensor ranks of a stage each send a part of what it hands on.
    flags: dict[str, Any] = {"--timing-log-level": 2, "--no-barrier-with-level-1-timing": True}
    if row.text("seq_parallel").lower() != "true":
        flags["--scatter-gather-tensors-in-pipeline"] = True
    return flags


def _virtual_pipeline(row: Row) -> dict[str, Any]:
    stages = row.number("vp", 1)
    if stages <= 1:
        return {}
    layers = row.number("layers") // (row.number("pp") * stages)
    return {"--num-layers-per-virtual-pipeline-stage": layers}


def _vtrain_node(row: Row) -> bool:
    """vTrain's on one node. Its repository states its simulator's configuration for all its rows, with recomputation.

    The fit share says that nothing was recomputed there (with it, those of hidden size 2,048 would have run at 180
    TFLOP/s, where Narayanan et al. reached 137 at 2,304) and that the vocabulary of 50,257 was not padded (padded,
    it comes out 6 % too fast, not 1 % too slow); of vTrain's rows on several nodes it says neither.
    """
    return row.source.startswith("vtrain_single_node")


def _recomputation(row: Row) -> dict[str, Any]:
    if _vtrain_node(row):
        return {}
    stated = row.text("recompute").lower()
    if stated.startswith("full"):
        flags = {
            "--recompute-granularity": "full",
            "--recompute-method": "uniform",
            "--recompute-num-layers": 1,
        }
        return flags | ({"--distribute-saved-activations": True} if _partitions_activations(row) else {})
    if stated.startswith("selective"):
        return {"--recompute-granularity": "selective"}
    # dropout_selective_checkpoint of InternEvo's layers, which are not otherwise computed again.
    return {"--recompute-norms-in-fp32": True} if "InternEvo" in row.text("framework") else {}


def _partitions_activations(row: Row) -> bool:
    """Jean Zay's table that says "also added `--partition-activations`"; the next says "PA=disabled"."""
    return re.search(r"experiments/gpt2\.md#L21[345]$", row.text("source_path")) is not None


def _sharing(row: Row) -> dict[str, Any]:
    """Sequence parallelism, optimizer state and overlap."""
    flags: dict[str, Any] = {}
    if row.text("seq_parallel").lower() == "true":
        flags["--sequence-parallel"] = True
    sharded = row.text("dist_opt").lower()
    named = "zero-1" in row.text("framework").lower() and row.number("dp") > 1
    if named or sharded == "true" or sharded.startswith("zero-1"):
        flags["--use-distributed-optimizer"] = True
        if _sums_gradients_whole(row):
            flags["--all-reduce-gradients"] = True
    flags |= _optimizer_instances(row)
    overlap = row.text("comm_overlap")
    if "InternEvo" in row.text("framework"):  # overlap_sync_grad of its configs/7B_sft.py
        flags["--overlap-grad-reduce"] = True
    if "overlap-grad-reduce" in overlap or "grad/param sync overlap" in overlap:
        flags["--overlap-grad-reduce"] = True
    if "overlap-param-gather" in overlap or "grad/param sync overlap" in overlap:
        flags["--overlap-param-gather"] = True
    return flags


def _sums_gradients_whole(row: Row) -> bool:
    """As DeepSpeed's ZeRO stage 1 did in fp16 (reduce_ipg_grads, in megatron2.4-3d's stage2.py and in stage_1_and_2.py
    of February 2022). Its optimizer of bf16 sums fp32 gradients in bf16, which moves as much as a reduce-scatter."""
    return "DeepSpeed" in row.text("framework") and row.number("dp") > 1 and "--fp16" in _precision(row)


def _optimizer_instances(row: Row) -> dict[str, Any]:
    """How often the sharded optimizer state is there: once in all, or once in so many data-parallel ranks."""
    within = re.search(r"zero1=(\d+)|ZeRO-1 within (\d+)", row.text("dist_opt"))
    if within is None:
        return {}
    # InternEvo's `zero1.size` of its data-parallel ranks.
    instances = row.number("dp") // int(within[1] or within[2])
    return {"--num-distributed-optimizer-instances": instances} if instances > 1 else {}
