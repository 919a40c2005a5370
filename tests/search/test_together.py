"""Trials are judged once more when all are recorded, by all that their recordings tell of the script."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic
from synthetic import analytic, make_search, outcome_of, run_inline

from maya.clusters import load
from maya.errors import MayaError
from maya.estimate.host import BEFORE
from maya.estimate.recordings import Recording, ScriptTimes
from maya.search import revisions, tuning
from maya.search.driver import Search
from maya.search.journal import NAME
from maya.search.results import Experiment, write_results
from maya.search.timeline import earlier_timeline
from maya.search.types import Assignment, Judge, Outcome
from maya.simulate.types import Prediction

NewSearch = Callable[..., Search]
KINDS = np.arange(1, 6)
NOT_KNOWN = (0.0, np.zeros(len(BEFORE)), "its software")


def slowness(assignment: Assignment) -> float:
    """Up to a tenth, quicker or slower."""
    return 0.1 * math.sin(sum(ord(letter) * at for at, letter in enumerate(" ".join(assignment.argv))))


def scaled(prediction: Prediction, log: float) -> Prediction:
    time = prediction.iteration_time_s
    return prediction if time is None else replace(prediction, iteration_time_s=time * math.exp(log))


def disturbed(assignment: Assignment) -> Prediction:
    """As analytic, but for its recording, which was quicker or slower."""
    prediction = scaled(analytic(assignment), slowness(assignment))
    return replace(prediction, stages_s={"launch": 2.0}, notes=("a",))


class Kept:
    """`maya.search.types.Recordings`, of trials without recomputation."""

    def recording(self, assignment: Assignment) -> Recording:
        if "--recompute-granularity" in assignment.argv:
            raise LookupError("its trace is gone")
        host_ns = 1000.0 * KINDS * math.exp(slowness(assignment))
        return Recording(KINDS, host_ns, host_ns / host_ns.sum(), "software", True, NOT_KNOWN)

    def judge(self, assignment: Assignment, script: ScriptTimes) -> Prediction:
        apart = np.log(self.recording(assignment).host_ns / script.times.host_ns).mean()
        return replace(scaled(disturbed(assignment), -float(apart)), stages_s={"cache": 0.1}, notes=("b",))


def judged_again(search: Search) -> dict[int, Outcome | str]:
    """As undisturbed."""
    return {
        trial.number: trial.outcome.revised(analytic(search.assignment(trial.number)), "together")
        for trial in search.ranking()
        if trial.outcome
    }


def test_trials_judged_again_rank_by_what_is_said_then(new_search: NewSearch) -> None:
    wanted = {"search__algorithm": "grid", "search__max_trials": 120, "stop__patience": 1000}
    sound = run_inline(new_search(**wanted))
    search = run_inline(new_search(**wanted), disturbed)
    before = [trial.number for trial in search.ranking()]
    search.revise(judged_again(search))
    after = [trial.number for trial in search.ranking()]
    assert sorted(after) == sorted(before) and after != before
    assert after == [trial.number for trial in sound.ranking()]
    assert search.counts.together == len(after)


def test_what_follows_from_a_trial_follows_when_it_is_judged_again(new_search: NewSearch) -> None:
    search = run_inline(new_search(search__max_trials=80), disturbed)
    search.revise(judged_again(search))
    inherited = [trial for trial in search.trials if trial.pruning and trial.pruning.implies == "FITS"]
    assert inherited
    for trial in inherited:
        assert trial.pruning is not None
        source = search.trials[trial.pruning.by]
        assert (trial.iteration_time_s, trial.objective) == (source.iteration_time_s, source.objective)


def test_the_journal_keeps_what_was_said_first_and_how_it_was_recorded_stays(tmp_path: Path) -> None:
    search = run_inline(make_search(tmp_path, search__max_trials=30), disturbed)
    journal = (tmp_path / NAME).read_bytes()
    search.revise(judged_again(search))
    assert (tmp_path / NAME).read_bytes() == journal
    (best, *_) = search.ranking()
    assert best.outcome is not None
    assert best.outcome.prediction["stages_s"] == {"launch": 2.0} and not best.outcome.reused
    assert best.outcome.prediction["notes"] == ["a", "together"]


def test_trials_that_could_not_be_judged_again_stay_and_are_counted_by_the_reason(
    new_search: NewSearch,
) -> None:
    search = run_inline(new_search(search__max_trials=30), disturbed)
    before = search.trials
    search.revise({trial.number: "no trace" for trial in search.ranking()})
    assert search.trials == before
    assert search.counts.alone == {"no trace": len(search.ranking())}


def taken_up(directory: Path, **overrides: object) -> Search:
    """The search in `directory`, which this process still has open, in a copy."""
    copy = Path(tempfile.mkdtemp(dir=directory.parent))
    shutil.copytree(directory, copy, dirs_exist_ok=True)
    return make_search(copy, resume=True, **overrides)


def test_what_was_judged_together_stands_where_fewer_traces_are_left(tmp_path: Path) -> None:
    search = run_inline(make_search(tmp_path / "it", search__max_trials=30), disturbed)
    search.revise(judged_again(search), recordings=9)
    for now, recordings in (({}, 0), ({trial.number: "no trace" for trial in search.ranking()}, 0)):
        again = run_inline(taken_up(tmp_path / "it", search__max_trials=30))
        again.revise(now, recordings)
        assert again.ranking() == search.ranking() and not again.counts.alone
    fewer = {trial.number: trial.outcome for trial in again.ranking() if trial.outcome}
    again = run_inline(taken_up(tmp_path / "it", search__max_trials=30))
    again.revise({number: replace(outcome, verdict="INCOMPLETE") for number, outcome in fewer.items()}, 8)
    assert again.ranking() == search.ranking()
    again.revise({number: replace(outcome, verdict="INCOMPLETE") for number, outcome in fewer.items()}, 9)
    assert {trial.verdict for trial in again.ranking()} == {"INCOMPLETE"}  # as many tell as much


def test_a_search_that_goes_on_keeps_what_was_judged_together_and_what_steers_it(tmp_path: Path) -> None:
    whole = run_inline(make_search(tmp_path / "whole", search__max_trials=60), disturbed)
    part = run_inline(make_search(tmp_path / "part", search__max_trials=30), disturbed)
    part.revise(judged_again(part), recordings=9)
    more = taken_up(tmp_path / "part", search__max_trials=60)
    launched = 0
    while (assignment := more.next()) is not None:
        launched += 1
        more.finish(assignment.trial, outcome_of(assignment, disturbed))
    assert more.trials == whole.trials
    assert (more.counts.launched, more.counts.reused) == (launched, 0)
    assert launched + more.counts.replayed + more.counts.verdicts["PRUNED"] == len(more.trials)
    more.revise({})
    assert {trial.number: trial for trial in part.ranking()}.items() <= {
        trial.number: trial for trial in more.ranking()
    }.items()


def test_a_finished_search_is_replayed_before_anything_is_started(tmp_path: Path) -> None:
    search = run_inline(make_search(tmp_path / "it", search__max_trials=30), disturbed)
    again = taken_up(tmp_path / "it", search__max_trials=30)
    assert again.replay() is None and again.trials == search.trials and again.ended == search.ended
    assert again.counts.launched == 0


def test_a_damaged_record_of_the_end_is_one_line(tmp_path: Path) -> None:
    run_inline(make_search(tmp_path / "it", search__max_trials=5))
    (tmp_path / "it" / revisions.NAME).write_text("[{}]")
    with pytest.raises(MayaError, match="is damaged"):
        taken_up(tmp_path / "it")


def test_the_best_s_page_stays_as_long_as_it_shows_the_best(tmp_path: Path, new_search: NewSearch) -> None:
    search = run_inline(new_search(search__max_trials=30), disturbed)
    experiment = Experiment(search, load("dgx-h100"), "train.py", False, wall_s=1.0, concurrency=1)
    write_results(experiment, tmp_path)
    pages = [tmp_path / "best.html", tmp_path / "best.perfetto.json"]
    for page in pages:
        page.write_text("shows it")
    best, second, *_ = search.ranking()
    assert earlier_timeline(best, tmp_path) == pages
    assert earlier_timeline(second, tmp_path) == [] and not any(page.exists() for page in pages)


def test_ray_s_workers_judge_again_what_is_recorded(tmp_path: Path) -> None:
    for module in (sys.modules[__name__], synthetic):
        tuning.ray.cloudpickle.register_pickle_by_value(module)

    @contextlib.contextmanager
    def judges() -> Iterator[Judge]:
        yield disturbed

    search = make_search(tmp_path, search__max_trials=24)
    script = tuning.run_search(search, judges, concurrency=2, recordings=Kept())
    assert script is not None
    told, alone = [], []
    for trial in search.ranking():
        gone = "--recompute-granularity" in search.space.argv(trial.point)
        (alone if gone else told).append(trial)
    assert search.counts.together == len(told) == script.recordings > 3
    assert search.counts.alone == {"its trace is gone": len(alone)}
    apart = [
        math.log(
            (trial.iteration_time_s or 0.0)
            / (analytic(search.assignment(trial.number)).iteration_time_s or 1.0)
        )
        for trial in told
    ]
    assert apart == pytest.approx([apart[0]] * len(apart), abs=1e-9)
    for trial in told:
        assert trial.outcome is not None
        first, note = trial.outcome.prediction["notes"]
        assert first == "a" and f"{script.recordings} recordings" in note
    for trial in alone:
        log = slowness(search.assignment(trial.number))
        sound = analytic(search.assignment(trial.number)).iteration_time_s
        assert sound is not None and trial.iteration_time_s == pytest.approx(sound * math.exp(log))
