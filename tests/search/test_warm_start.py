"""A search can begin with what an earlier one found, and two searches can be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from synthetic import make_search, make_space, run_inline

from maya.clusters import load
from maya.search.algorithms import sampler_for
from maya.search.compare import render_comparison
from maya.search.driver import Search
from maya.search.journal import Journal
from maya.search.objective import Objective
from maya.search.pareto import pareto_front
from maya.search.results import Experiment, write_results
from maya.search.warmstart import WarmStart, best_configurations

NewSearch = Callable[..., Search]

GPUS_KNOB = """
cluster: dgx-h100
args: {--num-layers: 40, --global-batch-size: 256}
knobs:
  gpus: {values: [16, 32, 64]}
  tp: {flag: --tensor-model-parallel-size, values: [1, 2, 4, 8]}
  pp: {flag: --pipeline-model-parallel-size, values: [1, 2, 4, 8]}
  micro_batches: {values: [1, 2, 4, 8]}
  distributed_optimizer: {flag: --use-distributed-optimizer, values: [false, true]}
let: {dp: gpus // (tp * pp)}
derived: {--micro-batch-size: global_batch_size // (dp * pp * micro_batches)}
constraints:
  - gpus % (tp * pp) == 0
  - global_batch_size % (dp * pp * micro_batches) == 0
objective: {metric: time_cost, work: global_batch_size}
search: {algorithm: grid}
stop: {patience: 100000}
"""


def test_a_warm_start_begins_with_the_earlier_best_and_keeps_it(tmp_path: Path) -> None:
    earlier = run_inline(make_search(tmp_path / "earlier"))
    before = best_configurations(tmp_path / "earlier")
    assert before[0] == earlier.ranking()[0].configuration
    space = make_space(search__seed=5)
    journal = Journal.create(tmp_path / "later", {})
    sampler = WarmStart(sampler_for(space), space, before)
    later = run_inline(Search(space, sampler, Objective(space, price_per_gpu_hour=2.0), journal))
    assert {trial.number for trial in later.ranking()[:1]} <= set(range(len(before)))
    assert later.ranking()[0].configuration == before[0]


def test_a_warm_start_takes_from_another_space_what_this_one_has(tmp_path: Path) -> None:
    space = make_space()
    configuration = {"tp": 2, "pp": 2, "micro_batches": 4, "unknown": 7}
    (point,) = WarmStart(sampler_for(space), space, [configuration, configuration]).ask()
    assert space.configuration(point)["tp"] == 2 and space.admissible(point)


def test_no_trial_beats_one_of_the_front_in_time_and_cost(tmp_path: Path) -> None:
    space = make_space(GPUS_KNOB)
    journal = Journal.create(tmp_path / "search", {})
    search = run_inline(Search(space, sampler_for(space), Objective(space, price_per_gpu_hour=2.0), journal))
    front = pareto_front(search)
    assert len({space.world(trial.point) for trial, _, _ in front}) > 1
    objective = search.objective
    for trial in search.ranking():
        time = objective.time(trial.point, trial.iteration_time_s)
        cost = objective.cost(trial.point, trial.iteration_time_s)
        assert time is not None and cost is not None
        assert any(t <= time and c <= cost for _, t, c in front)
    best = search.ranking()[0]
    assert best.number in {trial.number for trial, _, _ in front}  # the least product lies on the front


def test_a_comparison_shows_both_bests_and_what_changed(tmp_path: Path, new_search: NewSearch) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        search = run_inline(new_search(search__seed=seed, search__max_trials=80))
        (tmp_path / name).mkdir()
        write_results(Experiment(search, load("dgx-h100"), "train.py", False, 1.0, 1), tmp_path / name)
    console = Console(record=True, width=200)
    render_comparison(tmp_path / "a", tmp_path / "b", console)
    text = console.export_text()
    assert "cma, seed 0" in text and "cma, seed 1" in text
    assert "configurations fit in both" in text and "takes 1 times as long" in text
