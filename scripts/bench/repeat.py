"""Prints how well a job's host time repeats when it is recorded again and again, alone on this machine and two jobs at
a time: as recorded, over the machine's speed as it was measured each time, as its calls tell besides, and as all of
these recordings tell together; then how much longer two at a time took.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maya.clusters import load
from maya.estimate.host import undisturbed
from maya.estimate.recordings import Recording, ScriptTimes
from maya.launch import ForkServer, Job
from maya.trace import collate
from maya.trace.types import JobTrace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMANDS = {
    "GPT": "gpt/train.py --layers 12 --hidden 768 --heads 12 --seq 256 --micro-batch-size 1 --iterations 500000",
    "Megatron": "megatron/pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 --mock-data "
    "--tensor-model-parallel-size 4 --train-iters 500000",
}
GPUS = 4
WAYS = ("recorded", "over the speed", "as calls tell", "as all tell")


def record(name: str, times: int) -> NDArray[np.float64]:
    """[times, 4] Of rank 0's iteration: host ms as recorded, over the speed of this machine, as its calls tell, and as
    all recordings tell."""
    script, *argv = COMMANDS[name].split()
    job = Job(str(EXAMPLES / script), tuple(argv), world=GPUS)
    traces = []
    with ForkServer(load("dgx-a100")) as server:
        for _ in range(times):
            with tempfile.TemporaryDirectory(prefix="maya-bench-") as work:
                run = server.run(job, Path(work))
                if run.status != "traced":
                    raise SystemExit(run.traceback)
                trace = collate(run)
            if trace.host_speed is None:
                raise SystemExit("how fast this machine is was not measured")
            traces.append(trace)
    together = ScriptTimes.of([Recording.of(trace) for trace in traces])
    if together is None:
        raise SystemExit("the recordings have no call in common")
    return np.array([in_all_ways(trace, together) for trace in traces])


def in_all_ways(trace: JobTrace, script: ScriptTimes) -> tuple[float, float, float, float]:
    scaled_ms = host_ms(trace)
    told_ms, together_ms = host_ms(undisturbed(trace).trace), host_ms(script.undisturbed(trace).trace)
    return scaled_ms / (trace.host_speed or 1.0), scaled_ms, told_ms, together_ms


def host_ms(trace: JobTrace) -> float:
    return float(trace.ranks[0].records["host_ns"].sum()) / 1e6


def scatter(values: NDArray[np.float64]) -> float:
    """Standard deviation of the logarithm."""
    return float(np.log(values).std(ddof=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=8)
    times = parser.parse_args().times
    with ProcessPoolExecutor(len(COMMANDS)) as pool:
        alone = {name: pool.submit(record, name, times).result() for name in COMMANDS}
        together = dict(zip(COMMANDS, pool.map(record, COMMANDS, [times] * len(COMMANDS)), strict=True))
    for name in COMMANDS:
        for how, found in (("alone", alone[name]), ("two at a time", together[name])):
            columns = ", ".join(
                f"{label} {np.median(column):.2f} ms, scatter {scatter(column):.1%}"
                for label, column in zip(WAYS, found.T, strict=True)
            )
            print(f"{name:8s} {how:13s} {times} times: host {columns}")
        ratios = np.median(together[name], axis=0) / np.median(alone[name], axis=0)
        print(f"{name:8s} two at a time to alone: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
