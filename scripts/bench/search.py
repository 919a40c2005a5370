"""How well each sampler searches the analytic model of the tests: usage search.py [ALGORITHMS] [SEEDS].

Prints the grid's optimum, then for each sampler over the seeds 0, 1, ...: how many searches ended within 2 % of
it, the worst, how many trials were launched, and which share of the points needed no launch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "search"))

from synthetic import make_search, run_inline

from maya.search.driver import Search


def searched(**overrides: Any) -> Search:
    with tempfile.TemporaryDirectory() as directory:
        return run_inline(make_search(Path(directory) / "search", **overrides))


def lines(algorithms: list[str], seeds: int) -> Iterator[str]:
    grid = searched(search__algorithm="grid", stop__patience=10**6)
    optimum = grid.ranking()[0].objective or 0.0
    yield f"grid: {optimum:.4f} s, {len(grid.trials)} admissible, {grid.counts.launched} launched"
    for algorithm in algorithms:
        found = [searched(search__algorithm=algorithm, search__seed=seed) for seed in range(seeds)]
        ratios = [(search.ranking()[0].objective or 0.0) / optimum for search in found]
        launches = [search.counts.launched for search in found]
        asked = sum(search.counts.asked for search in found)
        yield (
            f"{algorithm}: {sum(ratio <= 1.02 for ratio in ratios)}/{seeds} within 2 %, worst "
            f"{max(ratios) - 1:.1%} over; launched {sum(launches) / seeds:.0f} on average, {max(launches)} at most; "
            f"{1 - sum(launches) / asked:.0%} of the points proposed needed no launch"
        )


if __name__ == "__main__":
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else ["cma", "random", "tpe"]
    for line in lines(names, int(sys.argv[2]) if len(sys.argv) > 2 else 20):
        print(line, flush=True)
