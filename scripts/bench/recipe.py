"""The search of GPT-3 18.4 B on 64 H100s, and how far its best is from the grid's: usage recipe.py DIR.

Runs CMA-ES with an empty trace cache, then the grid, which takes from the cache what the search has recorded, so that
both judge a configuration alike. Goes on where it was stopped. Prints docs/search.md's tables: what each search took,
and the grid's best configuration for each division of a model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
SPACE = ROOT / "examples" / "megatron" / "gpt3-18b.yaml"
SCRIPT = ROOT / "examples" / "megatron" / "pretrain_gpt.py"
KNOBS = [
    "micro_batch_multiplier",
    "virtual_stages",
    "recompute",
    "sequence_parallel",
    "distributed_optimizer",
]


def searched(directory: Path, name: str, *options: str) -> pd.DataFrame:
    """The trials of the search `name`, run now unless it is done."""
    out = directory / name
    if not (out / "trials.csv").exists():
        start: list[str | Path] = ["--space", directory / f"{name}.yaml", "--out", out, *options, SCRIPT]
        command = [
            Path(sys.executable).parent / "maya-search",
            *(["--resume", out] if out.exists() else start),
        ]
        environment = {**os.environ, "MAYA_CACHE": str(directory / "cache")}
        # One directory for both: the cache tells jobs apart by where they ran.
        subprocess.run(command, env=environment, cwd=directory, check=True)
    return pd.read_csv(out / "trials.csv")


def main() -> None:
    directory = Path(sys.argv[1]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    text = SPACE.read_text()
    stop = next(line for line in text.splitlines() if line.startswith("stop:"))
    (directory / "cma.yaml").write_text(text)
    (directory / "grid.yaml").write_text(text.replace(stop, "stop: {patience: 1000000}"))  # every point
    cma = searched(directory, "cma")
    grid = searched(directory, "grid", "--algorithm", "grid")
    print(
        "| search | judged | fit | out of memory | pruned | best, s |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for name, trials in (("CMA-ES", cma), ("grid", grid)):
        count = trials["verdict"].value_counts()
        ran = [int(count.get(verdict, 0)) for verdict in ("FITS", "OOM", "PRUNED")]
        print(
            f"| {name} | {len(trials)} | {' | '.join(map(str, ran))} | {fastest(trials)['iteration_time_s']:.3f} |"
        )
    print(
        f"\n{fastest(cma)['iteration_time_s'] / fastest(grid)['iteration_time_s'] - 1:.2%} from the grid's best\n"
    )
    columns = ["tp", "pp", *KNOBS]
    print(f"| {' | '.join(columns)} | iteration, s | memory, GiB |\n{'| ---: ' * (len(columns) + 2)}|")
    for _, rows in grid[grid["verdict"] == "FITS"].groupby(["knob.tp", "knob.pp"]):
        best = fastest(rows)
        knobs = " | ".join(str(best[f"knob.{name}"]) for name in columns)
        print(f"| {knobs} | {best['iteration_time_s']:.3f} | {best['peak_memory_bytes'] / 2**30:.1f} |")


def fastest(trials: pd.DataFrame) -> pd.Series:
    fits = trials[trials["verdict"] == "FITS"]
    return fits.iloc[int(fits["iteration_time_s"].argmin())]


if __name__ == "__main__":
    main()
