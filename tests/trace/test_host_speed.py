"""How fast the recording machine was, and host time as the reference host would have it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maya.launch.types import Run
from maya.trace import collate
from maya.trace.host_speed import OBSERVING_NS, REFERENCE_PACE_NS
from maya.trace.types import JobTrace


def recorded(
    rank_writer: Any, directory: Path, host_ns: float, ranges: int = 0, slower: float | None = 1.0
) -> JobTrace:
    """A job of one kernel after `host_ns`, on a machine that takes `slower` times what the reference takes."""
    rank = rank_writer()
    for _ in range(3):
        rank.kernel("a", host_ns=round(host_ns), ranges=ranges)
        rank.step()
    rank.write(directory)
    pace = slower and round(REFERENCE_PACE_NS * slower)
    return collate(Run("traced", directory, 1, 1, (0,), (1, 3), pace_ns=pace))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slower=st.floats(0.3, 10.0))
def test_a_slower_machine_records_the_same_host_time(rank_writer: Any, tmp_path: Path, slower: float) -> None:
    job = recorded(rank_writer, tmp_path, 50_000 * slower, slower=slower)
    assert job.host_speed == pytest.approx(1 / slower, rel=0.01)
    assert job.ranks[0].records["host_ns"][0] == pytest.approx(50_000, rel=0.01)


def test_observing_is_left_out(rank_writer: Any, tmp_path: Path) -> None:
    job = recorded(rank_writer, tmp_path, 50_000, ranges=10)
    assert job.ranks[0].records["host_ns"][0] == pytest.approx(50_000 - 10 * OBSERVING_NS, rel=0.01)
    job = recorded(rank_writer, tmp_path, 50, ranges=10)
    assert job.ranks[0].records["host_ns"][0] == 0


def test_of_a_machine_that_was_not_measured_host_time_is_as_recorded(
    rank_writer: Any, tmp_path: Path
) -> None:
    job = recorded(rank_writer, tmp_path, 1000, slower=None)
    assert job.host_speed is None
    assert job.ranks[0].records["host_ns"][0] == 1000


def test_says_what_software_recorded(rank_writer: Any, tmp_path: Path) -> None:
    assert re.fullmatch(r"CPython 3\.\d+, PyTorch \d+\.\d+", recorded(rank_writer, tmp_path, 1000).software)
