"""What each of Maya's savings is worth: the same prediction without it, and the same search without it.

Predictions of a Megatron job (TP 2, PP 4, the rest data parallel) on ever more virtual H100s: every rank run to the
end; ranks of equal work merged after their first iteration; representatives only; and representatives whose ranks
import everything themselves. The same job once more, as in a search, with and without what it told the first time.
Searches by grid of a model that is too large for some configurations, with and without
dominance pruning. Wall time and peak memory of each; every prediction has a fork server of its own, as `maya predict`
would.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from weight import weighed

from maya.clusters import load
from maya.launch import ForkServer
from maya.launch.trust import Trust
from maya.launch.types import Job, Ranks
from maya.predict import Predictor, judge_trace
from maya.search.algorithms import sampler_for
from maya.search.driver import Search
from maya.search.journal import Journal
from maya.search.judging import ScriptJudges
from maya.search.objective import Objective
from maya.search.space import parse_space
from maya.search.types import Outcome
from maya.trace import collate

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "megatron" / "pretrain_gpt.py"
MODEL = {
    "--num-layers": 8,
    "--hidden-size": 4096,
    "--num-attention-heads": 32,
    "--seq-length": 2048,
    "--micro-batch-size": 1,
    "--bf16": True,
    "--mock-data": True,
    "--train-iters": 500,
}
# 9.7 billion parameters: 174 GB of weights, gradients and Adam's state where nothing shards them.
LARGE = MODEL | {"--num-layers": 12, "--hidden-size": 8192, "--num-attention-heads": 64}
SPACE = """
gpus: {gpus}
args: {args}
knobs:
  tp: {{flag: --tensor-model-parallel-size, values: [1, 2]}}
  recompute:
    values:
      none: []
      full: [--recompute-granularity, full, --recompute-method, uniform, --recompute-num-layers, 1]
  distributed_optimizer: {{flag: --use-distributed-optimizer, values: [false, true]}}
derived: {{--global-batch-size: gpus}}
search: {{algorithm: grid}}
stop: {{patience: 1000}}
dominance: {dominance}
"""


class WithoutWarmth(ForkServer):
    """Forks ranks that have nothing imported yet."""

    def _warm(self, job: Job) -> None:
        self._start_server(())


@dataclass(frozen=True)
class Figure:
    wall_s: float
    peak_bytes: int
    launched: int  # ranks, or trials
    answer: str


def _job(gpus: int, ranks: Ranks) -> Job:
    flags = {**MODEL, "--tensor-model-parallel-size": 2, "--pipeline-model-parallel-size": 4}
    argv = _argv({**flags, "--global-batch-size": 4 * gpus // 8})
    return Job(str(SCRIPT), argv, gpus, ranks=ranks, timeout_s=1800)


def predicted(gpus: int, ranks: Ranks, server: type[ForkServer] = ForkServer) -> Figure:
    job, cluster = _job(gpus, ranks), load("dgx-h100")
    started = time.perf_counter()
    with weighed() as weight, server(cluster) as launcher, tempfile.TemporaryDirectory() as directory:
        run = launcher.run(job, Path(directory))
        if run.status == "traced":
            time_s = judge_trace(collate(run), cluster).prediction.iteration_time_s
    wall = time.perf_counter() - started
    return Figure(
        wall, weight.peak_bytes, run.launched, f"{time_s:.4f} s" if run.status == "traced" else run.status
    )


def again(gpus: int, trust: Trust | None) -> Figure:
    """The job's second prediction by the same fork server; with trust, of what the first told."""
    job = _job(gpus, "representatives")
    with weighed() as weight, Predictor(load("dgx-h100"), trust=trust) as predictor:
        predictor.predict(job)
        started = time.perf_counter()
        prediction = predictor.predict(job).prediction
        wall = time.perf_counter() - started
    answer = f"{prediction.iteration_time_s:.4f} s" if prediction.iteration_time_s else prediction.verdict
    return Figure(wall, weight.peak_bytes, prediction.ranks["launched"], answer)


def searched(gpus: int, dominance: str) -> Figure:
    text = SPACE.format(gpus=gpus, args=json.dumps(LARGE), dominance=dominance)
    space = parse_space(text, "the ablation's space", {})
    judges = ScriptJudges(str(SCRIPT), load("dgx-h100"), str(Path.cwd()), timeout_s=1800, cache=False)
    started = time.perf_counter()
    with weighed() as weight, tempfile.TemporaryDirectory() as directory, judges() as judge:
        journal = Journal.create(Path(directory) / "search", {})
        search = Search(space, sampler_for(space), Objective(space), journal)
        while (assignment := search.next()) is not None:
            search.finish(assignment.trial, Outcome.of(judge(assignment)))
    best = f"{search.ranking()[0].objective:.4f} s, {len(search.trials)} judged"
    return Figure(time.perf_counter() - started, weight.peak_bytes, search.counts.launched, best)


def _argv(flags: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(
        part for flag, value in flags.items() for part in ((flag,) if value is True else (flag, str(value)))
    )


PREDICTIONS: dict[str, Callable[[int], Figure]] = {
    "every rank to the end": lambda gpus: predicted(gpus, "all"),
    "deduplication": lambda gpus: predicted(gpus, "dedup"),
    "representatives": lambda gpus: predicted(gpus, "representatives"),
    "representatives, no warm fork server": lambda gpus: predicted(gpus, "representatives", WithoutWarmth),
    "representatives, once more": lambda gpus: again(gpus, None),
    "representatives, once more, trusting": lambda gpus: again(gpus, Trust(1)),
}
SEARCHES: dict[str, Callable[[int], Figure]] = {
    "search by grid, no pruning": lambda gpus: searched(gpus, "[]"),
    "search by grid, pruning": lambda gpus: searched(gpus, "megatron"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpus", type=int, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--predictions", action="store_true", help="leave out the searches")
    arguments = parser.parse_args()
    rows = PREDICTIONS if arguments.predictions else PREDICTIONS | SEARCHES
    predicted(8, "dedup")  # fills the caches of torch.compile, which no row should pay for
    table = Table("", "GPUs", "launched", "wall, s", "of the first row", "peak, GiB", "answer")
    for gpus in arguments.gpus:
        first: float | None = None
        for name, measure in rows.items():
            figure = measure(gpus)
            first = figure.wall_s if first is None or name == "search by grid, no pruning" else first
            table.add_row(
                name, str(gpus), str(figure.launched), f"{figure.wall_s:.1f}", f"{figure.wall_s / first:.2f}",
                f"{figure.peak_bytes / 2**30:.1f}", figure.answer,
            )  # fmt: skip
            print(name, gpus, figure, flush=True)
        table.add_section()
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
