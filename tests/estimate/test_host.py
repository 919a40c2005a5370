"""A recording's calls tell how disturbed it was, and what is its script's own stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.estimate.host import CallTimes, shipped, slowness, tally, undisturbed, weighted_median
from maya.trace.pipelines import Pipeline
from maya.trace.types import JobTrace, Kernel

SOFTWARE = "CPython 3.11, PyTorch 2.11"


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


def times_of(job: JobTrace, recording: float = 0.1, script: float = 0.1) -> CallTimes:
    told = tally(job)
    return CallTimes(SOFTWARE, told.alike, told.host_ns, recording, script)


def host_s(job: JobTrace) -> float:
    return float(sum(rank.records["host_ns"].sum() for rank in job.ranks)) * 1e-9


@given(slower=st.floats(0.2, 5.0), recording=st.floats(0.01, 1.0), script=st.floats(0.01, 1.0))
def test_of_a_disturbed_recording_the_likely_share_is_taken_out(
    slower: float, recording: float, script: float
) -> None:
    times = times_of(a_job(), recording, script)
    job, notes = undisturbed(a_job(slower), times)
    left = slower ** (1 - recording**2 / (recording**2 + script**2))
    assert host_s(job) == pytest.approx(host_s(a_job()) * left, rel=1e-3)
    assert job.host_speed == pytest.approx(0.5 * left / slower, rel=1e-3)
    assert not notes


@given(slower=st.floats(0.2, 5.0))
def test_where_the_machine_s_speed_is_not_known_the_calls_tell_it(slower: float) -> None:
    job, notes = undisturbed(replace(a_job(slower), host_speed=None), times_of(a_job()))
    assert host_s(job) == pytest.approx(host_s(a_job()), rel=1e-3)
    assert job.host_speed == pytest.approx(1 / slower, rel=1e-3)
    assert not notes


def test_calls_that_a_script_makes_slow_stay_slow() -> None:
    slow = a_job(slower_last=3.0)
    job, _ = undisturbed(slow, times_of(a_job()))
    assert host_s(job) == host_s(slow)


def test_what_is_known_of_other_software_says_nothing() -> None:
    job, (note,) = undisturbed(replace(a_job(2.0), software="CPython 3.14, PyTorch 3.0"), times_of(a_job()))
    assert host_s(job) == host_s(a_job(2.0))
    assert SOFTWARE in note and "CPython 3.14, PyTorch 3.0" in note


def test_of_unknown_calls_host_time_is_as_recorded_and_a_note_says_so() -> None:
    none = CallTimes(SOFTWARE, np.array([5], np.int64), np.array([1.0]), 0.1, 0.1)
    job, (note,) = undisturbed(a_job(2.0), none)
    assert host_s(job) == host_s(a_job(2.0))
    assert "known of 0%" in note
    _, (note,) = undisturbed(replace(a_job(2.0), host_speed=None), none)
    assert "as recorded" in note


def test_a_call_is_told_by_those_before_it_and_not_by_shapes() -> None:
    job = a_job()
    operations = tuple(
        replace(operation, grid=(9, 9, 9)) if isinstance(operation, Kernel) else operation
        for operation in job.operations
    )
    assert operations != job.operations
    assert slowness(tally(replace(job, operations=operations)), times_of(job)) == (0.0, pytest.approx(1.0))
    other = Pipeline(2, 5, 10, 20).job().build()
    assert not np.array_equal(tally(other).alike, tally(job).alike)


def test_times_are_read_as_they_were_written(tmp_path: Path) -> None:
    times = times_of(a_job())
    times.write(tmp_path / "calls.npz")
    again = CallTimes.read(tmp_path / "calls.npz")
    assert np.array_equal(again.alike, times.alike)
    assert again.host_ns == pytest.approx(times.host_ns, rel=1e-6)
    assert (again.software, again.recording, again.script) == (SOFTWARE, times.recording, times.script)


def test_the_shipped_times_are_of_many_kinds_and_told_apart_from_scripts() -> None:
    times = shipped()
    assert len(times.alike) > 1000
    assert (np.diff(times.alike) > 0).all() and (times.host_ns > 0).all()
    assert 0 < times.weight < 1


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 10)), min_size=1, max_size=30))
def test_half_of_the_weight_lies_on_either_side_of_the_median(pairs: list[tuple[float, float]]) -> None:
    values, weights = map(np.array, zip(*pairs, strict=True))
    median = weighted_median(values, weights)
    half = weights.sum() / 2 * (1 + 1e-9)
    assert weights[values < median].sum() <= half and weights[values > median].sum() <= half
