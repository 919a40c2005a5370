"""A job on disk is the job."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from maya.trace import TraceError, read_job, write_job
from maya.trace.pipelines import Pipeline
from maya.trace.types import (
    ALLOCATION,
    Convolution,
    Gemm,
    JobTrace,
    Kernel,
    Lapack,
    Memcpy,
    Memset,
    Operator,
    RankTrace,
)


def a_job() -> JobTrace:
    job = Pipeline(2, 3, 10, 20, gradient_ns=6, replicas=2).job().build()
    operator = Operator("aten::mm", ((2, 3), ()))
    first = job.ranks[0]
    allocations = np.array([(0, 0, 4096)], ALLOCATION)
    rank = RankTrace(first.rank, first.records, 10, 20, allocations, (3,))
    more = (
        Kernel("k", (1, 2, 3), (4, 5, 6), 7, 8, None, operator),
        Gemm(1, 2, 3, operator=operator),
        Convolution(
            "forward", (1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 8, 8), (1, 1), (1, 1), (1, 1), 1, "fp32", "nchw"
        ),
        Lapack("ormqr", 4, 3, 2, 5, "fp64", vectors=True, batched=True, operator=operator),
        Memcpy("h2d", 5, pinned=False),
        Memset(9),
    )
    return JobTrace(
        world=job.world,
        ranks=(rank, *job.ranks[1:]),
        class_of_rank=job.class_of_rank,
        launched=2,
        operations=(*job.operations, *more),
        communicators=job.communicators,
        iterations_recorded=3,
        iterations_per_cycle=2,
        unsupported=("cudnn.foo",),
        uncovered=("bar",),
        host_speed=1.25,
        loading_s=0.5,
        software="CPython 3.11, PyTorch 2.11",
        notes=("note",),
    )


def test_reads_what_was_written(tmp_path: Path) -> None:
    job = a_job()
    write_job(job, tmp_path / "job")
    again = read_job(tmp_path / "job")
    assert again.operations == job.operations
    assert again.communicators == job.communicators
    assert (again.world, again.launched) == (4, 2)
    assert (again.iterations_recorded, again.iterations_per_cycle) == (3, 2)
    assert (again.host_speed, again.loading_s, again.software) == (1.25, 0.5, job.software)
    assert (again.unsupported, again.uncovered, again.notes) == (job.unsupported, job.uncovered, job.notes)
    assert np.array_equal(again.class_of_rank, job.class_of_rank)
    for one, other in zip(again.ranks, job.ranks, strict=True):
        assert np.array_equal(one.records, other.records)
        assert (one.rank, one.blocking_streams, one.peak_reserved_bytes) == (
            other.rank,
            other.blocking_streams,
            other.peak_reserved_bytes,
        )
    assert again.ranks[0].allocations is not None


def test_another_version_is_refused(tmp_path: Path) -> None:
    write_job(a_job(), tmp_path)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    with pytest.raises(TraceError, match="version 99"):
        read_job(tmp_path)


@pytest.mark.parametrize("name", ["job.json", "records.npz"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b"garbage"])
def test_damage_is_a_trace_error(tmp_path: Path, name: str, content: bytes | None) -> None:
    write_job(a_job(), tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError):
        read_job(tmp_path)
