"""A recording's calls tell how disturbed it was, and what is its script's own stays."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from host_times import SOFTWARE, host_s, times_of
from hypothesis import given
from hypothesis import strategies as st

from maya.estimate.host import (
    BEFORE,
    MACHINE,
    ODD_SCRIPT,
    VERSIONS,
    CallTimes,
    shipped,
    shipped_for,
    slowness,
    tally,
    undisturbed,
    weighted_median,
)
from maya.trace.pipelines import Pipeline
from maya.trace.types import JobTrace, Kernel


def a_job(slower: float = 1.0, slower_last: float = 1.0) -> JobTrace:
    """Its calls take `slower` times as long, the last of each rank `slower_last` times that."""
    job = Pipeline(2, 3, 10, 20).job().build()
    ranks = []
    for rank in job.ranks:
        records = rank.records.copy()
        records["host_ns"] = np.arange(1, len(records) + 1) * 100_000 * slower
        records["host_ns"][-1] *= slower_last
        ranks.append(replace(rank, records=records))
    return replace(job, ranks=tuple(ranks), host_speed=0.5, software=SOFTWARE)


@given(slower=st.floats(0.8, 1.25), recording=st.floats(0.1, 0.3), script=st.floats(0.01, 0.3))
def test_of_a_disturbed_recording_the_likely_share_is_taken_out(
    slower: float, recording: float, script: float
) -> None:
    told = undisturbed(a_job(slower), times_of(a_job(), recording, script))
    job = told.trace
    noise = recording**2 + MACHINE**2
    left = slower ** (1 - noise / (noise + script**2))
    assert host_s(job) == pytest.approx(host_s(a_job()) * left, rel=0.03)
    assert job.host_speed == pytest.approx(0.5 * host_s(job) / host_s(a_job(slower)), rel=1e-3)
    assert not told.notes


@given(slower=st.floats(0.2, 5.0))
def test_where_the_machine_s_speed_is_not_known_the_calls_tell_most_of_it(slower: float) -> None:
    told = undisturbed(replace(a_job(slower), host_speed=None), times_of(a_job()))
    job = told.trace
    assert abs(np.log(host_s(job) / host_s(a_job()))) <= 0.5 * abs(np.log(slower)) + 1e-3
    assert job.host_speed == pytest.approx(host_s(job) / host_s(a_job(slower)), rel=1e-3)
    assert not told.notes


def test_a_script_like_no_other_stays_as_it_is() -> None:
    odd = a_job(7.0)
    times = times_of(a_job())
    noise = times.noise(True) ** 2
    left = 7.0 ** -(noise / (noise + ODD_SCRIPT**2))  # hardly less than all
    assert host_s(undisturbed(odd, times).trace) == pytest.approx(host_s(odd) * left, rel=0.03)


@given(slower=st.floats(0.7, 1.4))
def test_a_processor_that_the_measured_speed_does_not_fit_comes_out_as_others_do(slower: float) -> None:
    job = undisturbed(a_job(slower), times_of(a_job(), recording=0.05, script=0.05)).trace
    assert abs(np.log(host_s(job) / host_s(a_job()))) <= 0.15 * abs(np.log(slower)) + 1e-3


@given(recordings=st.floats(1, 1000))
def test_however_many_recordings_a_machine_s_speed_stays_unsure(recordings: float) -> None:
    times = times_of(a_job(), recording=0.1)
    assert MACHINE < times.noise(True, recordings) <= times.noise(True) < times.noise(False, recordings)


@given(log=st.floats(-3, 3), noise=st.floats(0.01, 1.0), script=st.floats(0.001, 0.5))
def test_never_more_is_taken_out_than_there_is(log: float, noise: float, script: float) -> None:
    share = times_of(a_job(), script=script).of_recording(log, np.array([0.5, 0.3, 0.0]), noise)
    least, most = sorted((0.0, log))
    assert least - 1e-12 <= share <= most + 1e-12


def test_calls_that_a_script_makes_slow_stay_slow() -> None:
    slow = a_job(slower_last=3.0)
    job = undisturbed(slow, times_of(a_job())).trace
    assert host_s(job) == host_s(slow)


@pytest.mark.parametrize("software", ["", "PyPy 3.11, PyTorch 2.11"])
def test_of_software_that_is_not_known_host_time_is_as_recorded(software: str) -> None:
    told = undisturbed(replace(a_job(2.0), software=software))
    (note,) = told.notes
    assert host_s(told.trace) == host_s(a_job(2.0))
    assert SOFTWARE in note and software in note


@pytest.mark.parametrize("software", [times.software for times in shipped()])
def test_each_software_has_its_own_times(software: str) -> None:
    assert shipped_for(software).software == software
    assert not shipped_for(software).notes


@pytest.mark.parametrize(
    ("software", "nearest"),
    [
        ("CPython 3.13, PyTorch 2.11", "CPython 3.11, PyTorch 2.11"),
        ("CPython 3.11, PyTorch 2.6", "CPython 3.11, PyTorch 2.11"),
        ("CPython 3.14, PyTorch 2.14", "CPython 3.11, PyTorch 2.15"),
        ("CPython 3.14, PyTorch 3.0", "CPython 3.11, PyTorch 2.15"),
    ],
)
def test_other_software_borrows_of_the_nearest_and_is_told_by_it_less(software: str, nearest: str) -> None:
    times, own = shipped_for(software), shipped_for(nearest)
    assert times.software == software
    assert times.script == pytest.approx([math.hypot(each, VERSIONS) for each in own.script])
    (note,) = times.notes
    assert nearest in note and software in note
    assert undisturbed(a_job(), replace(times_of(a_job()), borrowed=nearest)).notes


def test_of_unknown_calls_host_time_is_as_recorded_and_a_note_says_so() -> None:
    none = replace(times_of(a_job()), alike=np.array([5], np.int64), host_ns=np.array([1.0]))
    told = undisturbed(a_job(2.0), none)
    (note,) = told.notes
    assert host_s(told.trace) == host_s(a_job(2.0))
    assert "known of 0%" in note
    (note,) = undisturbed(replace(a_job(2.0), host_speed=None), none).notes
    assert "as recorded" in note


def test_a_call_is_told_by_those_before_it_and_not_by_shapes() -> None:
    job = a_job()
    operations = tuple(
        replace(operation, grid=(9, 9, 9)) if isinstance(operation, Kernel) else operation
        for operation in job.operations
    )
    assert operations != job.operations
    log, known = slowness(tally(replace(job, operations=operations)), times_of(job))
    assert (log, *known) == (0.0, pytest.approx(1.0), 0.0, 0.0)
    other = Pipeline(2, 5, 10, 20).job().build()
    assert not np.array_equal(tally(other).alike, tally(job).alike)


@pytest.mark.parametrize("number", range(len(BEFORE)))
def test_what_is_known_after_more_calls_counts_before_what_is_after_fewer(number: int) -> None:
    job = tally(a_job())
    times = [times_of(a_job(), before=before) for before in range(number, len(BEFORE))]
    alike = np.concatenate([each.alike for each in times])
    host_ns = np.concatenate([each.host_ns * (1 + before) for before, each in enumerate(times)])
    order = np.argsort(alike)
    both = replace(times[0], alike=alike[order], host_ns=host_ns[order])
    _, known = slowness(job, both)
    assert known[number] == pytest.approx(1.0) and known.sum() == pytest.approx(1.0)


def test_what_scripts_differ_in_more_says_less_of_a_recording() -> None:
    times = replace(times_of(a_job()), recording=0.1, script=(0.1, 0.2, 0.4))
    shares = [times.of_recording(0.1, known, 0.1) for known in np.eye(len(BEFORE))]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] < times.of_recording(0.1, np.array([0.5, 0.5, 0.0]), 0.1) < shares[0]


def test_times_are_read_as_they_were_written(tmp_path: Path) -> None:
    times = times_of(a_job())
    times.write(tmp_path)
    again = CallTimes.read(tmp_path / "host_calls_cpython_3.11_pytorch_2.11.npz")
    assert np.array_equal(again.alike, times.alike)
    assert again.host_ns == pytest.approx(times.host_ns, rel=1e-6)
    assert (again.software, again.recording, again.script) == (SOFTWARE, times.recording, times.script)


@pytest.mark.parametrize("times", shipped(), ids=lambda times: times.software)
def test_the_shipped_times_are_of_many_kinds_and_told_apart_from_scripts(times: CallTimes) -> None:
    assert len(times.alike) > 1000
    assert (np.diff(times.alike) > 0).all() and (times.host_ns > 0).all()
    first, *fewer = [times.of_recording(0.1, known, times.noise(True)) for known in np.eye(len(BEFORE))]
    assert 0.1 > first > 0.06
    assert all(0.02 < share < 0.05 for share in fewer)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 10)), min_size=1, max_size=30))
def test_half_of_the_weight_lies_on_either_side_of_the_median(pairs: list[tuple[float, float]]) -> None:
    values, weights = map(np.array, zip(*pairs, strict=True))
    median = weighted_median(values, weights)
    half = weights.sum() / 2 * (1 + 1e-9)
    assert weights[values < median].sum() <= half and weights[values > median].sum() <= half
