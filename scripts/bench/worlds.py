"""GPT-3 175B, TP 8, PP 8, on ever more virtual H100s: ranks launched, wall time and memory of one prediction each.

Every world gets a fork server of its own, as `maya predict` would.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from weight import weighed

from maya.clusters import load
from maya.launch.types import Job
from maya.predict import Predictor
from maya.simulate.types import Prediction

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "megatron" / "pretrain_gpt.py"
MODEL = (
    *("--num-layers", "96", "--hidden-size", "12288", "--num-attention-heads", "96", "--seq-length", "2048"),
    *("--tensor-model-parallel-size", "8", "--pipeline-model-parallel-size", "8", "--sequence-parallel"),
    *("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
    *(
        "--use-distributed-optimizer",
        "--micro-batch-size",
        "1",
        "--bf16",
        "--mock-data",
        "--train-iters",
        "500",
    ),
)
MICRO_BATCHES = 6  # of each pipeline, whatever the world: the same work for every rank


def predict(gpus: int) -> tuple[Prediction, float, int]:
    """(prediction, wall seconds, peak bytes) of one world."""
    batch = ("--global-batch-size", str(MICRO_BATCHES * gpus // 64))
    started = time.perf_counter()
    with weighed() as weight, Predictor(load("dgx-h100")) as predictor:
        prediction = predictor.predict(Job(str(SCRIPT), (*MODEL, *batch), gpus)).prediction
    return prediction, time.perf_counter() - started, weight.peak_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpus", type=int, nargs="*", default=[1024, 4096, 16384])
    table = Table(
        "GPUs", "verdict", "iteration, s", "launched", "checked", "unique", "wall, s", "ratio", "peak, GiB"
    )
    first: float | None = None
    for gpus in parser.parse_args().gpus:
        prediction, wall, peak = predict(gpus)
        first = first or wall
        ranks = [f"{prediction.ranks.get(key, 0):,}" for key in ("launched", "checked", "unique")]
        iteration = f"{prediction.iteration_time_s:.3f}" if prediction.iteration_time_s else ""
        table.add_row(
            f"{gpus:,}", prediction.verdict, iteration, *ranks, f"{wall:.1f}", f"{wall / first:.2f}",
            f"{peak / 2**30:.1f}",
        )  # fmt: skip
        if prediction.message:
            print(prediction.message)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
