"""Prints the host time of an iteration while PyTorch's operators are observed, against that of the same script's
silent iterations: what observing costs must not be in it. Both are the reference host's; what was not kept out, over
the number of operators, is what maya.trace.host_speed.OBSERVING_NS is short of."""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from maya.clusters import load
from maya.launch import ForkServer, Job
from maya.launch.layout import rank_path
from maya.trace.format import read_rank
from maya.trace.host_speed import host_speed, on_reference
from maya.trace.types import RecordKind

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PAIRS = 28
STEPS = f"{2 * PAIRS + 4}"  # the first two iterations compile and allocate
COMMANDS = {
    "GPT": f"gpt/train.py --layers 12 --hidden 768 --heads 12 --seq 256 --micro-batch-size 1 --iterations {STEPS}",
    "Megatron": "megatron/pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 4 --bf16 --mock-data "
    f"--no-bias-gelu-fusion --no-bias-dropout-fusion --train-iters {STEPS}",
}

# Runs the example, observing in every other iteration: whatever else slows this machine slows both.
ALTERNATING = """
import runpy, sys
import torch
from pathlib import Path
from maya.launch import operators
from torch.optim.optimizer import register_optimizer_step_post_hook

observed = True

def change(*_):
    global observed
    observed = not observed
    operators.observe(observed)  # the range of this step, once observed, is still to end

register_optimizer_step_post_hook(change)
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Measured:
    observed_ms: list[float]  # host time of iterations
    silent_ms: list[float]
    operators: int  # of an observed one
    host_speed: float


def measure(server: ForkServer, work: Path, command: str) -> Measured:
    (work / "alternating.py").write_text(ALTERNATING)
    script, *argv = command.split()
    job = Job(str(work / "alternating.py"), (str(EXAMPLES / script), *argv), iterations=PAIRS)
    run = server.run(job, work / "run")
    if run.status != "traced":
        sys.exit(run.traceback)
    raw = read_rank(rank_path(work / "run", 0))
    ends = np.flatnonzero(raw.records["kind"] == RecordKind.STEP)
    speed = host_speed(run.pace_ns)
    if speed is None:
        sys.exit("how fast this machine is was not measured")
    total = np.concatenate(([0], np.cumsum(on_reference(raw.records, speed).astype(np.int64))))
    iterations = np.diff(total[ends + 1]) / 1e6  # from the second on, which is silent
    operators = np.diff(np.cumsum(raw.records["ranges"].astype(np.int64))[ends])
    return Measured(iterations[3::2].tolist(), iterations[2::2].tolist(), int(operators.max()), speed)


def main() -> None:
    wanted = sys.argv[1:] or list(COMMANDS)
    for name in wanted:
        with (
            tempfile.TemporaryDirectory(prefix="maya-bench-") as work,
            ForkServer(load("dgx-h100")) as server,
        ):
            found = measure(server, Path(work), COMMANDS[name])
        ratios = [one / other for one, other in zip(found.observed_ms, found.silent_ms, strict=False)]
        short = (min(found.observed_ms) - min(found.silent_ms)) * 1e6 / found.operators
        print(
            f"{name:10s} silent {statistics.median(found.silent_ms):7.2f} ms"
            f"   observed {statistics.median(found.observed_ms):7.2f} ms"
            f"   median ratio {statistics.median(ratios):.3f} of {len(ratios)}"
            f" (quartiles {np.percentile(ratios, 25):.3f} to {np.percentile(ratios, 75):.3f})"
            f"   of the least {min(found.observed_ms) / min(found.silent_ms):.3f}: {short:+.0f} ns an operator"
            f"   host {found.host_speed:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
