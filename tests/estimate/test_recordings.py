"""Several recordings of a script tell what its calls take; what is a configuration's own stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from host_times import SOFTWARE, host_s, times_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from maya.estimate.host import BEFORE, CallTimes
from maya.estimate.recordings import MEDIAN, Calls, Recording, ScriptTimes
from maya.trace.pipelines import Pipeline
from maya.trace.types import JobTrace

RECORDING = 0.1


def a_job(slower: float = 1.0, calls: NDArray[np.float64] | None = None) -> JobTrace:
    """Its calls take `slower` times as long, each of a rank (in turn) besides what `calls` says."""
    job = Pipeline(2, 3, 10, 20).job().build()
    ranks = []
    for rank in job.ranks:
        records = rank.records.copy()
        each = np.ones(len(records)) if calls is None else np.resize(calls, len(records))
        records["host_ns"] = np.rint(100_000 * slower * each)
        ranks.append(replace(rank, records=records))
    return replace(job, ranks=tuple(ranks), host_speed=0.5, software=SOFTWARE)


def no_times() -> CallTimes:
    return CallTimes("another", np.array([5], np.int64), np.array([1.0]), RECORDING, (0.1,) * len(BEFORE))


def script_of(jobs: Sequence[JobTrace], times: CallTimes | None = None) -> ScriptTimes:
    times = times or no_times()
    script = ScriptTimes.of([Recording.of(job, times) for job in jobs], times)
    assert script is not None
    return script


@given(st.lists(st.floats(0.85, 1.2), min_size=3, max_size=12))
@settings(max_examples=30)
def test_how_slow_each_recording_was_is_taken_out(slower: list[float]) -> None:
    jobs = [a_job(each) for each in slower]
    script = script_of(jobs)
    times = [host_s(script.undisturbed(job).trace) for job in jobs]
    assert times == pytest.approx([host_s(a_job(float(np.median(slower))))] * len(jobs), rel=0.02)


@pytest.mark.parametrize("slower", [0.64, 1.55])
def test_a_recording_that_was_disturbed_badly_is_no_configuration_of_its_own(slower: float) -> None:
    jobs = [*(a_job(each) for each in np.linspace(0.95, 1.05, 9)), a_job(slower)]
    assert host_s(script_of(jobs).undisturbed(jobs[-1]).trace) == pytest.approx(host_s(a_job()), rel=0.06)


def test_software_of_which_no_call_is_known_is_enough_but_a_note_says_what_is_not() -> None:
    script = script_of([a_job(), a_job(1.2)])
    undisturbed = script.undisturbed(a_job(1.2))
    (note,) = undisturbed.notes
    assert "what calls take is known of another" in note
    assert host_s(undisturbed.trace) == pytest.approx(host_s(a_job(1.2**0.5)), rel=0.02)
    assert undisturbed.trace.host_speed == pytest.approx(0.5 * 1.2**-0.5, rel=0.02)


def test_a_call_that_was_disturbed_alone_takes_what_it_takes_in_the_others() -> None:
    disturbed = np.ones(9)
    disturbed[4] = 1.15
    jobs = [*(a_job() for _ in range(5)), a_job(calls=disturbed)]
    records = script_of(jobs).undisturbed(jobs[-1]).trace.ranks[0].records
    assert records["host_ns"] == pytest.approx(100_000, rel=0.01)


def test_a_call_that_takes_what_no_disturbance_explains_keeps_that() -> None:
    slow = np.ones(9)
    slow[4] = 5.0
    jobs = [*(a_job() for _ in range(5)), a_job(calls=slow)]
    trace = script_of(jobs).undisturbed(jobs[-1]).trace
    assert trace.ranks[0].records["host_ns"][4] == pytest.approx(500_000, rel=0.05)
    assert trace.ranks[0].records["host_ns"][3] == pytest.approx(100_000, rel=0.02)


def test_a_call_whose_times_go_by_configuration_keeps_its_own() -> None:
    jobs = []
    for factor in np.linspace(0.4, 1.6, 13):  # as of an optimizer of more or fewer tensors
        calls = np.ones(9)
        calls[4] = factor
        jobs.append(a_job(calls=calls))
    own = [job.ranks[0].records["host_ns"][4] for job in jobs]
    script = script_of(jobs)
    kept = [script.undisturbed(job).trace.ranks[0].records["host_ns"][4] for job in jobs]
    assert kept == pytest.approx(own, rel=0.1)


@pytest.mark.parametrize("slower", [7.0, 1 / 7])
def test_a_configuration_like_no_other_stays_as_it_is(slower: float) -> None:
    jobs = [*(a_job(each) for each in np.linspace(0.95, 1.05, 9)), a_job(slower)]
    assert host_s(script_of(jobs).undisturbed(jobs[-1]).trace) == pytest.approx(host_s(jobs[-1]), rel=0.1)


@pytest.mark.parametrize("count", [2, 8, 64])
def test_what_all_have_in_common_is_the_machine_s_but_for_what_scripts_differ_in(count: int) -> None:
    times = times_of(a_job(), RECORDING)
    noise = times.noise(True, count / MEDIAN) ** 2
    script = times.script[0] ** 2
    trace = script_of([a_job(1.2)] * count, times).undisturbed(a_job(1.2)).trace
    assert host_s(trace) == pytest.approx(host_s(a_job()) * 1.2 ** (script / (noise + script)), rel=0.02)


def test_of_a_machine_whose_speed_is_not_known_the_calls_tell_it_however_many_there_are() -> None:
    times = times_of(a_job(), RECORDING)
    jobs = [replace(a_job(1.5), host_speed=None)] * 20
    trace = script_of(jobs, times).undisturbed(jobs[0]).trace
    assert host_s(trace) == pytest.approx(host_s(a_job()), rel=0.1)
    assert trace.host_speed == pytest.approx(1 / 1.5, rel=0.1)


def test_one_of_other_software_is_judged_alone() -> None:
    other = replace(a_job(1.2), software="something else")
    assert script_of([a_job(), a_job()]).undisturbed(other).trace is other


def test_recordings_without_a_call_in_common_tell_nothing() -> None:
    one, other = (Recording.of(job, no_times()) for job in (a_job(), a_job()))
    assert ScriptTimes.of([], no_times()) is None
    assert ScriptTimes.of([one], no_times()) is None
    assert ScriptTimes.of([one, replace(other, alike=other.alike + 1)], no_times()) is None
    assert ScriptTimes.of([one, replace(other, software="another")], no_times()) is None


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.floats(-2, 2)), min_size=1, max_size=8),
        min_size=1,
        max_size=6,
    )
)
def test_medians_of_kinds_are_numpy_s(recordings: list[list[tuple[int, float]]]) -> None:
    kinds = []
    for each in recordings:
        of = dict(each)
        alike = np.array(sorted(of), np.int64)
        kinds.append((alike, np.array([of[kind] for kind in alike.tolist()]), np.full(len(of), 1 / len(of))))
    calls = Calls.of(kinds, np.arange(len(kinds)), least=1)
    for kind, median in zip(calls.alike.tolist(), calls.medians(calls.log_ns), strict=True):
        values = [value[alike == kind] for alike, value, _ in kinds]
        assert median == pytest.approx(np.median(np.concatenate(values)))
