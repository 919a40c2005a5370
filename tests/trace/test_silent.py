"""Iterations whose operators were not observed tell what calls cost; those before tell in which operators they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from maya.launch.types import Run
from maya.trace import TraceError, collate
from maya.trace.types import Kernel, RecordKind

STEADY, SILENT = (1, 3), (3, 5)
OBSERVED_NS, SILENT_NS = 900_000, 1000


def run_of(directory: Path) -> Run:
    return replace(Run("traced", directory, 1, 1, (0,), STEADY), silent=SILENT)


def observed(rank: Any) -> None:
    rank.kernel("a", operator="aten::add", host_ns=OBSERVED_NS)
    rank.kernel("b", operator="aten::mul", host_ns=OBSERVED_NS)
    rank.step()


def silent(rank: Any, *names: str) -> None:
    for name in names:
        rank.kernel(name, host_ns=SILENT_NS)
    rank.step()


def recorded(rank_writer: Any, directory: Path, *iterations: Any) -> Any:
    rank = rank_writer()
    for iteration in (observed,) * STEADY[1] + iterations:
        iteration(rank)
    rank.write(directory)
    return collate(run_of(directory))


def operators(job: Any) -> list[str]:
    numbers = [each for each in job.ranks[0].records["operation"] if each >= 0]
    kernels = [job.operations[number] for number in numbers]
    return [kernel.operator.name for kernel in kernels if isinstance(kernel, Kernel)]


def test_host_time_is_of_the_silent_operators_of_the_observed(rank_writer: Any, tmp_path: Path) -> None:
    def alike(rank: Any) -> None:
        silent(rank, "a", "b")

    job = recorded(rank_writer, tmp_path, alike, alike)
    assert operators(job) == ["aten::add", "aten::mul"]
    assert job.ranks[0].records["host_ns"].tolist() == [SILENT_NS] * 3
    assert job.iterations_recorded == 2 and job.notes == ()


@pytest.mark.parametrize(
    "unlike", [("b", "a"), ("a", "c"), ("a",), ("a", "b", "b")], ids=["order", "kernel", "fewer", "more"]
)
def test_silent_iterations_unlike_the_observed_ones_are_left_out(
    rank_writer: Any, tmp_path: Path, unlike: tuple[str, ...]
) -> None:
    def other(rank: Any) -> None:
        silent(rank, *unlike)

    def alike(rank: Any) -> None:
        silent(rank, "a", "b")

    job = recorded(rank_writer, tmp_path, alike, other)
    assert operators(job) == ["aten::add", "aten::mul"]
    assert job.iterations_recorded == 1 and job.ranks[0].records["host_ns"].max() == SILENT_NS

    job = recorded(rank_writer, tmp_path, other, alike)
    assert operators(job) == ["aten::add", "aten::mul"]
    assert job.iterations_recorded == 2 and job.ranks[0].records["host_ns"].max() == OBSERVED_NS


def test_a_silent_step_that_is_not_there_is_an_error(rank_writer: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="ranks made 4 steps, recorded are 3"):
        recorded(rank_writer, tmp_path)


def test_what_the_allocator_asks_of_the_driver_does_not_count(rank_writer: Any, tmp_path: Path) -> None:
    def alike(rank: Any) -> None:
        rank.record(RecordKind.ALLOCATE, size=1 << 21, host_ns=500)
        silent(rank, "a", "b")

    job = recorded(rank_writer, tmp_path, alike, alike)
    assert operators(job) == ["aten::add", "aten::mul"]
    assert job.ranks[0].records["host_ns"].tolist() == [SILENT_NS + 500, SILENT_NS, SILENT_NS]
