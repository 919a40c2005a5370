"""A search is a function of space, seed and outcomes, whatever order the outcomes come in."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import analytic, analytic_judges, make_search, outcome_of, run_inline

from maya.search.driver import Search
from maya.search.space import SpaceError
from maya.search.types import Assignment, Outcome
from maya.simulate.types import Prediction

NewSearch = Callable[..., Search]


@pytest.fixture(params=["cma", "random", "grid", "tpe"])
def algorithm(request: pytest.FixtureRequest) -> str:
    if request.param == "tpe":
        pytest.importorskip("optuna", reason="the tpe extra is not installed")
    return str(request.param)


def story(search: Search) -> list[tuple[object, ...]]:
    return [
        (trial.number, trial.point, trial.verdict, trial.objective, trial.pruning) for trial in search.trials
    ]


def run_out_of_order(search: Search, concurrency: int, numbers: random.Random) -> Search:
    running: list[Assignment] = []
    while True:
        while len(running) < concurrency and (assignment := search.next()) is not None:
            running.append(assignment)
        if not running:
            return search
        done = running.pop(numbers.randrange(len(running)))
        search.finish(done.trial, outcome_of(done))


def test_no_configuration_is_launched_twice(new_search: NewSearch, algorithm: str) -> None:
    launched: list[tuple[str, ...]] = []

    def judge(assignment: Assignment) -> Prediction:
        launched.append(assignment.argv)
        return analytic(assignment)

    search = run_inline(new_search(search__algorithm=algorithm, search__max_trials=150), judge)
    assert len(launched) == len(set(launched)) > 20
    assert len(launched) + search.counts.verdicts["PRUNED"] == len(search.trials)


def test_every_launched_configuration_is_admissible(new_search: NewSearch, algorithm: str) -> None:
    search = run_inline(new_search(search__algorithm=algorithm, search__max_trials=60))
    assert all(search.space.admissible(trial.point) for trial in search.trials)


def test_same_seed_same_search_and_numpys_generator_is_left_alone(
    new_search: NewSearch, algorithm: str
) -> None:
    stories = []
    for disturbance in (1, 2):
        np.random.seed(disturbance)
        before = np.random.get_state()[1].tolist()  # type: ignore[union-attr,index]
        stories.append(story(run_inline(new_search(search__algorithm=algorithm, search__max_trials=80))))
        assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr,index]
    assert stories[0] == stories[1]


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(concurrency=st.integers(2, 7), order=st.randoms(use_true_random=False))
def test_completion_order_changes_nothing(
    new_search: NewSearch, concurrency: int, order: random.Random
) -> None:
    alone = run_inline(new_search(search__max_trials=70))
    beside = run_out_of_order(new_search(search__max_trials=70), concurrency, order)
    assert story(beside) == story(alone)
    assert beside.ended == alone.ended


def test_small_space_is_exhausted_and_the_optimum_found(new_search: NewSearch, algorithm: str) -> None:
    args = {"--num-layers": 40, "--global-batch-size": 16}
    grid = run_inline(new_search(search__algorithm="grid", args=args, stop__patience=10_000))
    search = run_inline(new_search(search__algorithm=algorithm, args=args, stop__patience=10_000))
    assert search.ended == "every admissible configuration is known"
    assert len(search.trials) == len(list(search.space.points()))
    assert search.ranking()[0].objective == grid.ranking()[0].objective


def test_pruned_trials_would_have_had_the_implied_outcome(new_search: NewSearch) -> None:
    """The analytic judge obeys the memory tactics, so what is said of a pruned trial must hold."""
    search = run_inline(new_search(search__algorithm="random", stop__patience=10_000))
    implied = [trial for trial in search.trials if trial.pruning and trial.pruning.implies == "OOM"]
    assert len(implied) > 20
    for trial in implied:
        assignment = Assignment(0, search.space.argv(trial.point), search.space.world(trial.point))
        assert analytic(assignment).verdict == "OOM"


def test_equal_runtime_is_inherited_from_the_trial_that_tells(new_search: NewSearch) -> None:
    search = run_inline(new_search(search__algorithm="random", stop__patience=10_000))
    same = [trial for trial in search.trials if trial.pruning and trial.pruning.implies == "FITS"]
    assert same
    for trial in same:
        assert trial.pruning is not None
        source = search.trials[trial.pruning.by]
        assert source.number < trial.number and trial.objective == source.objective is not None


def test_search_stops_when_the_best_are_unchanged(new_search: NewSearch) -> None:
    search = run_inline(new_search(search__algorithm="random", stop__patience=7, stop__top=2))
    ran = [trial for trial in search.trials if trial.ran_and_fits]
    best = sorted(ran, key=lambda trial: (trial.objective, trial.number))[:2]
    assert search.ended == "the best 2 are unchanged over 7 trials that fit"
    assert all(trial.number <= ran[-8].number for trial in best)


def test_first_trials_that_all_fail_alike_end_the_search(new_search: NewSearch) -> None:
    search = run_inline(new_search(), lambda _: Prediction("FAILED", message="rank 0: File x\nKeyError: 'a'"))
    assert search.ended == "the first 5 trials all fail with: KeyError: 'a'"
    assert not search.ranking()


def test_a_failing_configuration_does_not_end_the_search(new_search: NewSearch) -> None:
    def judge(assignment: Assignment) -> Prediction:
        if "--sequence-parallel" in assignment.argv:
            return Prediction("FAILED", message="ValueError: no")
        return analytic(assignment)

    search = run_inline(new_search(search__max_trials=80), judge)
    assert search.counts.verdicts["FAILED"] and search.counts.verdicts["FITS"] and search.ranking()


def test_everything_out_of_memory_is_exhausted_without_a_best(new_search: NewSearch) -> None:
    args = {"--num-layers": 40, "--global-batch-size": 16}
    search = run_inline(new_search(args=args), lambda _: Prediction("OOM", shortfall_bytes=1))
    assert search.ended == "every admissible configuration is known" and not search.ranking()
    assert search.counts.verdicts["PRUNED"] > 0 < search.counts.verdicts["OOM"]


def test_a_search_of_astronomic_space_goes_on_to_its_limit(new_search: NewSearch) -> None:
    many = {f"k{i}": {"flag": f"--k{i}", "values": list(range(10))} for i in range(10)}
    search = new_search(knobs=many, derived={}, constraints=[], let={}, dominance=[], search__max_trials=40)
    run_inline(search, lambda a: Prediction("FITS", iteration_time_s=1.0 + sum(map(int, a.argv[5::2]))))
    assert search.space.size == 10**10 and len(search.trials) <= 40


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        ({"metric": "throughput", "work": "global_batch_size"}, 128.0),
        ({"metric": "cost"}, 2.0 * 32 * 2.0 / 3600),
        ({"metric": "cost", "price_per_gpu_hour": 3.6, "work": "256"}, 2.0 * 32 * 3.6 / 3600 / 256),
        ({"metric": "iteration_time"}, 2.0),
    ],
)
def test_objectives(tmp_path: Path, objective: dict[str, object], value: float) -> None:
    search = make_search(tmp_path / "one", objective=objective, search__max_trials=1)
    run_inline(search, lambda _: Prediction("FITS", iteration_time_s=2.0))
    assert search.ranking()[0].objective == pytest.approx(value)


def test_out_of_memory_is_told_as_finite_and_worse_the_more_it_lacks(new_search: NewSearch) -> None:
    search = new_search(search__max_trials=30)
    short = iter(range(1, 100))
    while (assignment := search.next()) is not None:
        peak = {"max": 1000}
        search.finish(
            assignment.trial, Outcome("OOM", {"shortfall_bytes": next(short), "peak_memory_bytes": peak})
        )
    losses = [search.objective.loss(trial) for trial in search.trials if trial.verdict == "OOM"]
    assert np.isfinite(losses).all() and sorted(losses) == losses and len(set(losses)) == len(losses)


def test_cma_finds_the_optimum_of_a_space_that_is_mostly_out_of_memory(new_search: NewSearch) -> None:
    """As `scripts/bench/search` does over 20 seeds."""
    optimum = run_inline(new_search(search__algorithm="grid", stop__patience=10**6)).ranking()[0].objective
    assert optimum is not None
    for seed in (0, 6, 9):
        search = run_inline(new_search(search__seed=seed))
        best = search.ranking()[0].objective
        launched = sum(trial.outcome is not None for trial in search.trials)
        assert best is not None and best <= 1.02 * optimum and launched < 300
        assert launched < 0.8 * search.counts.asked


def test_a_pruned_trial_is_told_to_lack_what_the_one_it_follows_from_did(new_search: NewSearch) -> None:
    search = run_inline(new_search(search__max_trials=80))
    spared = [trial for trial in search.trials if trial.pruning and trial.pruning.implies == "OOM"]
    assert spared
    for trial in spared:
        assert trial.pruning is not None
        source = search.trials[trial.pruning.by]
        assert search.objective.loss(trial, source) == search.objective.loss(source)


def test_what_may_spare_others_is_numbered_before_them(new_search: NewSearch) -> None:
    search = run_inline(new_search(search__algorithm="grid", stop__patience=10**6))
    assert sum(trial.pruning is not None for trial in search.trials) > 0.5 * len(search.trials)


def test_work_that_is_no_positive_number_ends_the_search_before_anything_runs(new_search: NewSearch) -> None:
    for work, told in (("tp - 1", "is 0, not positive"), ("note", "is '512', not positive")):
        args = {"--num-layers": 40, "--global-batch-size": 256, "--note": "512"}
        search = new_search(args=args, objective={"metric": "throughput", "work": work})
        with pytest.raises(SpaceError, match=f"objective.work: .*{told}, at tp="):
            run_inline(search)


def test_what_a_search_raises_ends_rays_run_too(new_search: NewSearch) -> None:
    from maya.search.tuning import run_search

    search = new_search(objective={"metric": "throughput", "work": "tp - 1"}, search__algorithm="grid")
    with pytest.raises(SpaceError, match="not positive"):
        run_search(search, analytic_judges, concurrency=1)
