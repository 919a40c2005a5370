"""Prints how well a job's host time repeats when it is recorded again and again, two jobs at a time on this machine: as
recorded, and over the machine's speed as it was measured each time, which must not scatter more than that. Then how
well that measurement of the speed repeats on the idle machine, against one span of 0.3 s."""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from maya.clusters import load
from maya.launch import ForkServer, Job, pace
from maya.trace import collate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMANDS = {
    "GPT": "gpt/train.py --layers 12 --hidden 768 --heads 12 --seq 256 --micro-batch-size 1 --iterations 500000",
    "Megatron": "megatron/pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 --mock-data "
    "--tensor-model-parallel-size 4 --train-iters 500000",
}
GPUS = 4


def record(name: str, times: int) -> list[tuple[float, float]]:
    """(host ms of rank 0's iteration as recorded, speed of this machine) of each time."""
    script, *argv = COMMANDS[name].split()
    job = Job(str(EXAMPLES / script), tuple(argv), world=GPUS)
    found = []
    with ForkServer(load("dgx-a100")) as server:
        for _ in range(times):
            with tempfile.TemporaryDirectory(prefix="maya-bench-") as work:
                run = server.run(job, Path(work))
                if run.status != "traced":
                    raise SystemExit(run.traceback)
                trace = collate(run)
            if trace.host_speed is None:
                raise SystemExit("how fast this machine is was not measured")
            scaled_ms = trace.ranks[0].records["host_ns"].sum() / 1e6
            found.append((scaled_ms / trace.host_speed, trace.host_speed))
    return found


def scatter(values: np.ndarray) -> float:
    """Standard deviation of the logarithm."""
    return float(np.log(values).std(ddof=1))


def speeds(times: int) -> tuple[list[int], list[int]]:
    """ns of the measured step: in one span of 0.3 s, and as Maya measures it; in turn, a second apart."""
    torch.set_num_threads(1)
    once, spans = [], []
    for _ in range(times):
        once.append(pace.span(pace.training(), 0.3))
        time.sleep(1)
        spans.append(pace.measure())
        time.sleep(1)
    return once, spans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=8)
    times = parser.parse_args().times
    with ProcessPoolExecutor(len(COMMANDS)) as pool:
        for name, found in zip(COMMANDS, pool.map(record, COMMANDS, [times] * len(COMMANDS)), strict=True):
            recorded, speed = np.array(found).T
            alone, scaled = scatter(recorded), scatter(recorded * speed)
            print(
                f"{name:10s} {times} times: host {np.median(recorded):7.2f} ms, scatter {alone:5.1%}"
                f"   over the speed {scaled:5.1%}   speed {speed.min():.2f} to {speed.max():.2f}"
                f"   ratio {scaled / alone:.2f}"
            )
    once, spans = (max(measured) / min(measured) for measured in speeds(2 * times))
    print(
        f"speed      {2 * times} times: slowest over fastest {once:.2f} of one span, {spans:.2f} as measured"
        f"   ratio {spans / once:.2f}"
    )


if __name__ == "__main__":
    main()
