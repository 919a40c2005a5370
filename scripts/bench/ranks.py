"""Prints the PSS (proc(5), smaps_rollup) of forked ranks and of one process of its own, and their ratio."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from maya.clusters import load
from maya.launch import ForkServer, Job
from maya.launch.environment import preloaded

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = {  # 1.3 B parameters
    "gpt": "gpt/train.py --layers 24 --hidden 2048 --heads 16 --micro-batch-size 1 --iterations 1",
    "megatron": "megatron/pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --tensor-model-parallel-size 2 "
    "--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 --bf16 --mock-data "
    "--no-bias-gelu-fusion --no-bias-dropout-fusion --train-iters 1",
}
RANKS = 8

# Goes before the example's own text: after the first optimizer step, waits for the other ranks and weighs itself.
HOOK = """
import os as _os, pathlib as _pathlib, time as _time
from torch.optim.optimizer import register_optimizer_step_post_hook as _hook

def _weigh(*_):
    folder, rank = _pathlib.Path(_os.environ["WEIGHTS"]), _os.environ.get("RANK", "0")
    world = int(_os.environ.get("WORLD_SIZE", "1"))
    (folder / f"here-{rank}").touch()
    while len(list(folder.glob("here-*"))) < world:
        _time.sleep(0.05)
    lines = _pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    pss = next(line.split()[1] for line in lines if line.startswith("Pss:"))
    (folder / f"pss-{rank}").write_text(pss)
    while len(list(folder.glob("pss-*"))) < world:
        _time.sleep(0.05)

_hook(_weigh)
"""


def weighing(script: str, work: Path) -> Path:
    """The example with HOOK before it, and its own modules beside it."""
    original = EXAMPLES / script
    for module in original.parent.glob("*.py"):
        (work / module.name).symlink_to(module)
    (work / "weigh.py").write_text(HOOK + original.read_text())
    return work / "weigh.py"


def forked(work: Path, script: Path, argv: list[str]) -> list[float]:
    """PSS of each of RANKS ranks that run at once, in MB."""
    folder = work / "forked"
    folder.mkdir()
    job = Job(str(script), tuple(argv), RANKS, environment={"WEIGHTS": str(folder)}, ranks="all")
    with ForkServer(load("dgx-h100")) as server:
        run = server.run(job, work / "run")
    if run.status != "traced":
        sys.exit(run.traceback)
    return weights(folder)


def alone(work: Path, script: Path, argv: list[str]) -> float:
    """PSS of one rank in a process that shares nothing, in MB."""
    folder, library = work / "alone", work / "library"
    folder.mkdir()
    library.mkdir()
    (work / "config").write_text(f"trace_dir {folder}\n")
    environment = {**preloaded(dict(os.environ), library), "WEIGHTS": str(folder)}
    environment["MAYA_CONFIG"] = str(work / "config")
    command = [sys.executable, str(script), *argv]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return weights(folder)[0]


def weights(folder: Path) -> list[float]:
    return [int(path.read_text()) * 1024 / 1e6 for path in sorted(folder.glob("pss-*"))]  # kB of 1,024 bytes


def compare(name: str) -> None:
    script, *argv = SCRIPTS[name].split()
    with tempfile.TemporaryDirectory(prefix="maya-bench-") as folder:
        work = Path(folder)
        weighed = weighing(script, work)
        many = forked(work, weighed, argv)
        one = alone(work, weighed, argv) if name == "gpt" else None  # Megatron's split needs its ranks
    median = statistics.median(many)
    print(f"{name:9s} forked rank        {median:7.0f} MB PSS, median of {RANKS}", end=" ")
    print(f"({min(many):.0f} to {max(many):.0f})", flush=True)
    if one is not None:
        print(f"{name:9s} process of its own {one:7.0f} MB PSS, ratio {one / median:.1f}", flush=True)


def main() -> None:
    for name in sys.argv[1:] or SCRIPTS:
        compare(name)


if __name__ == "__main__":
    main()
