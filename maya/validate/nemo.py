"""What NVIDIA's recipes (dgxc-benchmarking) have NeMo and Megatron-Core do, as flags of Megatron-LM.

Until v25.02.02 a recipe is a configuration of NeMo 1 (llama3.1/llama3.1_8b.yaml, nemotron/nemotron4-15b-synth.yaml),
from v25.04 on a script of NeMo 2 at a commit that its setup.sh states (scripts/performance, and the recipes and
precision plugins of nemo/collections/llm).
"""

from __future__ import annotations

import re
from typing import Any

from maya.validate.rows import Row


def of_nemo(row: Row) -> bool:
    return "nemo" in row.text("framework").lower()


def nemo_software(row: Row) -> dict[str, Any]:
    """What it fuses, and how gradients are averaged: flags of Megatron-LM."""
    flags: dict[str, Any] = {
        "--transformer-impl": "transformer_engine",
        "--attention-backend": "fused",
        "--cross-entropy-loss-fusion": True,
        "--ddp-average-in-collective": True,
    }
    # Nemotron's recipes alone: ub_tp_comm_overlap, MegatronCommOverlapCallback.
    if row.number("tp", 1) > 1 and "userbuffer" in row.text("comm_overlap").lower():
        flags["--tp-comm-overlap"] = True
    version = _version(row)
    if version < (25, 4):
        flags["--no-check-for-nan-in-loss-and-grad"] = True  # check_for_nan_in_grad of megatron_gpt_model.py
    if version >= (25, 5):  # set_primary_perf_configs of scripts/performance/utils.py
        flags["--cross-entropy-fusion-impl"] = "te"
        if "fp8" not in row.text("precision").lower():
            flags["--use-precision-aware-optimizer"] = True
    return flags


def nemo_precision(row: Row) -> dict[str, Any]:
    """Products and gradients: flags of Megatron-LM."""
    flags: dict[str, Any] = {"--bf16": True}
    # v25.02.02 moved nemotron to Megatron-Core's optimizer without a word on what gradients are reduced in: fp32.
    in_fp32 = _version(row) == (25, 2) and "nemotron" in row.text("model").lower()
    if not in_fp32:
        flags["--grad-reduce-in-bf16"] = True
    return flags


def _version(row: Row) -> tuple[int, int]:
    """Of the recipe, as (25, 4); of others, the last that is NeMo 1's."""
    stated = re.search(r"recipe v(\d+)\.(\d+)", row.text("framework"))
    return (int(stated[1]), int(stated[2])) if stated else (25, 2)
