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

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "train.py"
MODEL = (
    "--layers",
    "24",
    "--hidden",
    "2048",
    "--heads",
    "16",
    "--micro-batch-size",
    "1",
    "--iterations",
    "1",
)
RANKS = 8

# Runs the example; at the end of its first optimizer step, waits for the other ranks and weighs itself.
SCRIPT = """
import os, pathlib, runpy, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
folder, script, rank, world = pathlib.Path(sys.argv[1]), sys.argv[2], os.environ.get("RANK", "0"), int(sys.argv[3])

def weigh(*_):
    (folder / f"here-{rank}").touch()
    while len(list(folder.glob("here-*"))) < world:
        time.sleep(0.05)
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    pss = next(line.split()[1] for line in lines if line.startswith("Pss:"))
    (folder / f"pss-{rank}").write_text(pss)
    while len(list(folder.glob("pss-*"))) < world:
        time.sleep(0.05)

register_optimizer_step_post_hook(weigh)
sys.argv = [script, *sys.argv[4:]]
runpy.run_path(script, run_name="__main__")
"""


def forked(work: Path) -> list[float]:
    """PSS of each of RANKS ranks that run at once, in MB."""
    folder = work / "forked"
    folder.mkdir()
    arguments = (str(folder), str(TRAIN), str(RANKS), *MODEL)
    with ForkServer(load("dgx-h100")) as server:
        run = server.run(Job(str(work / "weigh.py"), arguments, RANKS, ranks="all"), work / "run")
    if run.status != "traced":
        sys.exit(run.traceback)
    return weights(folder)


def alone(work: Path) -> float:
    """PSS of the same rank in a process that shares nothing, in MB."""
    folder, library = work / "alone", work / "library"
    folder.mkdir()
    library.mkdir()
    (work / "config").write_text(f"trace_dir {folder}\n")
    environment = {**preloaded(dict(os.environ), library), "MAYA_CONFIG": str(work / "config")}
    command = [sys.executable, str(work / "weigh.py"), str(folder), str(TRAIN), "1", *MODEL]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return weights(folder)[0]


def weights(folder: Path) -> list[float]:
    return [int(path.read_text()) * 1024 / 1e6 for path in sorted(folder.glob("pss-*"))]  # kB of 1,024 bytes


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="maya-bench-") as name:
        work = Path(name)
        (work / "weigh.py").write_text(SCRIPT)
        one = alone(work)
        many = forked(work)
    median = statistics.median(many)
    print(f"process of its own   {one:7.0f} MB PSS")
    print(
        f"forked rank          {median:7.0f} MB PSS, median of {len(many)} ({min(many):.0f} to {max(many):.0f})"
    )
    print(f"ratio                {one / median:7.1f}")


if __name__ == "__main__":
    main()
