"""A space like the paper's and an analytic judge for it, so that searches can be tested without a script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maya.search.algorithms import sampler_for
from maya.search.driver import Search
from maya.search.journal import Journal
from maya.search.objective import Objective
from maya.search.space import Space, parse_space
from maya.search.types import Assignment, Judge, Outcome
from maya.simulate.types import Prediction

SPACE = """
cluster: dgx-h100
gpus: 32
args: {--num-layers: 40, --global-batch-size: 256}
knobs:
  tp: {flag: --tensor-model-parallel-size, values: [1, 2, 4, 8]}
  pp: {flag: --pipeline-model-parallel-size, values: [1, 2, 4, 8]}
  micro_batches: {values: [1, 2, 4, 6, 8]}
  virtual: {values: [1, 2, 4], when: pp > 1}
  recompute: {values: {off: [], on: [--recompute-granularity, full]}}
  sequence_parallel: {flag: --sequence-parallel, values: [false, true], when: tp > 1}
  distributed_optimizer: {flag: --use-distributed-optimizer, values: [false, true]}
let: {dp: gpus // (tp * pp), micro_batch_size: global_batch_size // (dp * pp * micro_batches)}
derived:
  --micro-batch-size: micro_batch_size
  --num-layers-per-virtual-pipeline-stage: {value: num_layers // (pp * virtual), when: virtual > 1}
constraints:
  - gpus % (tp * pp) == 0
  - global_batch_size % (dp * pp * micro_batches) == 0
  - num_layers % (pp * virtual) == 0
dominance: megatron
"""

GIB = 2**30


def analytic(assignment: Assignment) -> Prediction:
    """Time and memory of an 18 B model in the manner of Megatron's papers; smooth, but with cliffs."""
    argv = assignment.argv
    given = {flag: value for flag, value in zip(argv, (*argv[1:], ""), strict=True) if flag.startswith("--")}
    tp, pp = int(given["--tensor-model-parallel-size"]), int(given["--pipeline-model-parallel-size"])
    micro, layers = int(given["--micro-batch-size"]), int(given["--num-layers"])
    virtual = layers // pp // int(given.get("--num-layers-per-virtual-pipeline-stage", layers // pp))
    recompute, sequence = "--recompute-granularity" in given, "--sequence-parallel" in given
    dp = assignment.world // (tp * pp)
    count = int(given["--global-batch-size"]) // (dp * micro)
    optimizer = 12.0 / (dp if "--use-distributed-optimizer" in given else 1)
    kept = 0.13 if recompute else (1.1 / tp if sequence else 0.4 + 0.7 / tp)
    weights = 18.4 / (tp * pp) * (6 + optimizer) * 0.93
    memory = weights + micro * layers * kept * (1 + 0.1 * (virtual > 1))
    if memory > 80:
        short = int((memory - 80) * GIB)
        return Prediction("OOM", shortfall_bytes=short, peak_memory_bytes={"max": 79 * GIB})
    work = 256 * 2048 * 6 * 18.4e9 / assignment.world / 989e12 * (4 / 3 if recompute else 1)
    compute = work / (0.75 * micro / (micro + 0.3) / (1 + 0.06 * tp))
    tensor = count * micro * layers / pp * (tp - 1) / tp * 1.9e-3 * (0.9 if sequence else 1)
    bubble = (pp - 1) / (count * virtual)
    data = 0.72 * (dp - 1) / dp / (tp * pp)
    time = (compute + tensor) * (1 + bubble) + data + 0.002 * count * virtual * (pp > 1)
    return Prediction("FITS", iteration_time_s=time, peak_memory_bytes={"max": int(memory * GIB)})


@contextlib.contextmanager
def analytic_judges() -> Iterator[Judge]:
    yield analytic


def outcome_of(assignment: Assignment, judge: Judge = analytic) -> Outcome:
    return Outcome.of(judge(assignment))


def make_search(directory: Path, resume: bool = False, **overrides: Any) -> Search:
    space = make_space(**overrides)
    journal = Journal.resume(directory) if resume else Journal.create(directory, {"space": SPACE})
    return Search(space, sampler_for(space), Objective(space, price_per_gpu_hour=2.0), journal)


def make_space(text: str = SPACE, **overrides: Any) -> Space:
    return parse_space(
        text, "space.yaml", {key.replace("__", "."): value for key, value in overrides.items()}
    )


def run_inline(search: Search, judge: Judge = analytic) -> Search:
    """One trial at a time, in this process."""
    while (assignment := search.next()) is not None:
        search.finish(assignment.trial, outcome_of(assignment, judge))
    return search
