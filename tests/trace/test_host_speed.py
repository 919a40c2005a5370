"""How fast the recording machine was, by the spans of PyTorch's operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maya.launch.layout import WITHIN_NS
from maya.launch.types import Run
from maya.trace import collate
from maya.trace.host_speed import FEWEST, OBSERVING_NS, host_speed, reference
from maya.trace.types import JobTrace, Spans

KNOWN = ("aten::bmm", "aten::add", "aten::sub", "aten::gelu")


def spans(times: dict[str, float]) -> dict[str, Spans]:
    return {
        operator: Spans(reference()[operator].within_ns * slower, 100) for operator, slower in times.items()
    }


def recorded(rank_writer: Any, directory: Path, slower: float, host_ns: float, ranges: int = 0) -> JobTrace:
    """A job whose operators took `slower` times what the reference takes, with one kernel after `host_ns` more."""
    rank = rank_writer()
    for _ in range(3):
        for _ in range(FEWEST):
            for operator in KNOWN:
                within = reference()[operator].within_ns * slower
                rank.kernel("k", operator=operator, host_ns=round(within), within=round(within / WITHIN_NS))
        rank.kernel("other", host_ns=round(host_ns), ranges=ranges)
        rank.step()
    rank.write(directory)
    return collate(Run("traced", directory, 1, 1, (0,), (1, 3)))


def test_speed_is_that_of_most_operators() -> None:
    assert host_speed(spans(dict.fromkeys(KNOWN, 4.0))) == pytest.approx(0.25)
    one_goes_another_way = dict.fromkeys(KNOWN, 4.0) | {"aten::gelu": 40.0}
    assert host_speed(spans(one_goes_another_way)) == pytest.approx(0.25, rel=0.15)


@given(slower=st.lists(st.floats(0.5, 2.0), min_size=3, max_size=4))
def test_speed_lies_among_what_operators_tell(slower: list[float]) -> None:
    speed = host_speed(spans(dict(zip(KNOWN, slower, strict=False))))
    assert speed is not None
    assert 1 / max(slower) * 0.999 <= speed <= 1 / min(slower) * 1.001


def test_no_single_operator_decides() -> None:
    """Operators that tell two speeds, as many each: the one in the middle would say either."""
    told = dict(zip(KNOWN, (1.0, 1.0, 2.0, 2.0), strict=True))
    speed = host_speed(spans(told))
    assert speed is not None
    assert 0.55 < speed < 0.95


def test_few_operators_tell_no_speed() -> None:
    assert host_speed(spans(dict.fromkeys(KNOWN[:2], 4.0))) is None
    assert host_speed({"mine::operator": Spans(5.0, 1000)}) is None


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slower=st.floats(0.3, 10.0))
def test_a_slower_machine_records_the_same_host_time(rank_writer: Any, tmp_path: Path, slower: float) -> None:
    job = recorded(rank_writer, tmp_path, slower, host_ns=50_000 * slower)
    assert job.host_speed == pytest.approx(1 / slower, rel=0.01)
    assert job.ranks[0].records["host_ns"][-2] == pytest.approx(50_000, rel=0.01)


def test_observing_is_left_out(rank_writer: Any, tmp_path: Path) -> None:
    job = recorded(rank_writer, tmp_path, 1.0, host_ns=50_000, ranges=10)
    assert job.ranks[0].records["host_ns"][-2] == pytest.approx(50_000 - 10 * OBSERVING_NS, rel=0.01)
    job = recorded(rank_writer, tmp_path, 1.0, host_ns=50, ranges=10)
    assert job.ranks[0].records["host_ns"][-2] == 0


def test_a_script_that_does_not_tell_has_its_own_host_time_and_a_note(
    rank_writer: Any, tmp_path: Path
) -> None:
    rank = rank_writer()
    for _ in range(3):
        rank.kernel("a", host_ns=1000)
        rank.step()
    rank.write(tmp_path)
    job = collate(Run("traced", tmp_path, 1, 1, (0,), (1, 3)))
    assert job.host_speed is None
    assert job.ranks[0].records["host_ns"][0] == 1000
    assert any("how fast this machine is" in note for note in job.notes)
