"""What a long iteration of a deep pipeline costs to predict: 100 billion parameters on 384 virtual A100s, tensor
parallel 4, pipeline parallel 12, a hundred micro-batches a pipeline.

Every rank compared by its second iteration and run to the third, as short iterations are; compared by the first, and
the second taken as steady; and with those stages left out that others tell of, as `maya predict` does it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from weight import weighed

import maya.launch.along
import maya.launch.watch
from maya.clusters import load
from maya.launch import ForkServer
from maya.launch.types import Job
from maya.predict import judge_trace
from maya.trace import collate

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "megatron" / "pretrain_gpt.py"
GPUS = 384
ARGUMENTS = """
    --num-layers 72 --hidden-size 10752 --num-attention-heads 84 --seq-length 2048 --micro-batch-size 1
    --global-batch-size 800 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 --bf16 --mock-data
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --train-iters 500
"""
NEVER = 1 << 62


@contextmanager
def as_if(long_iteration: int, long_pipeline: int) -> Iterator[None]:
    """Iterations and pipelines count as long from there on."""
    before = maya.launch.watch.LONG_ITERATION, maya.launch.along.LONG_PIPELINE
    maya.launch.watch.LONG_ITERATION = long_iteration
    maya.launch.along.LONG_PIPELINE = long_pipeline
    try:
        yield
    finally:
        maya.launch.watch.LONG_ITERATION, maya.launch.along.LONG_PIPELINE = before


def main() -> None:
    long_iteration = maya.launch.watch.LONG_ITERATION
    long_pipeline = maya.launch.along.LONG_PIPELINE
    job = Job(str(SCRIPT), tuple(ARGUMENTS.split()), GPUS, timeout_s=3600)
    rows = {
        "as short iterations": (NEVER, NEVER),
        "as long iterations, every stage": (long_iteration, NEVER),
        "as long iterations, five stages": (long_iteration, long_pipeline),
    }
    table = Table("", "launched", "wall, s", "of the first row", "peak, GiB", "answer")
    first = None
    for name, limits in rows.items():
        cluster = load("dgx-a100")
        started = time.perf_counter()
        with (
            weighed() as weight,
            as_if(*limits),
            ForkServer(cluster) as server,
            tempfile.TemporaryDirectory() as out,
        ):
            run = server.run(job, Path(out))
            emulated = time.perf_counter() - started
            answer = (
                run.traceback or f"{judge_trace(collate(run), cluster).prediction.iteration_time_s:.3f} s"
            )
        first = first or emulated
        ratio, peak = f"{emulated / first:.2f}", f"{weight.peak_bytes / 2**30:.1f}"
        table.add_row(name, str(run.launched), f"{emulated:.1f}", ratio, peak, answer)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
