"""Writes a `JobTrace` to a directory and reads it back: `job.json` and `records.npz`."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maya.trace.format import TraceError
from maya.trace.types import (
    ALLOCATION,
    RECORD,
    Collective,
    Communicator,
    Convolution,
    Gemm,
    JobTrace,
    Kernel,
    Lapack,
    Memcpy,
    Memset,
    Operation,
    Operator,
    RankTrace,
    Work,
)

VERSION: Final = 2
_KINDS: Final[dict[str, type[Any]]] = {
    "kernel": Kernel,
    "gemm": Gemm,
    "convolution": Convolution,
    "lapack": Lapack,
    "memcpy": Memcpy,
    "memset": Memset,
    "collective": Collective,
}
_KIND_OF: Final = {kind: name for name, kind in _KINDS.items()}


def write_job(trace: JobTrace, directory: Path) -> None:
    """Leaves `job.json` and `records.npz` in `directory`, which is made when missing."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = {"class_of_rank": trace.class_of_rank}
    for number, rank in enumerate(trace.ranks):
        arrays[f"records_{number}"] = rank.records
        if rank.allocations is not None:
            arrays[f"allocations_{number}"] = rank.allocations
        if rank.passes is not None:
            arrays[f"passes_{number}"] = rank.passes
    np.savez_compressed(directory / "records.npz", allow_pickle=False, **arrays)
    (directory / "job.json").write_text(json.dumps(_job(trace)), encoding="utf-8")


def holds_job(directory: Path) -> bool:
    return (directory / "job.json").exists()


def read_job(directory: Path) -> JobTrace:
    """The job that `write_job` left in `directory`. Raises TraceError when it is not there or damaged."""
    path = directory / "job.json"
    try:
        job = json.loads(path.read_text(encoding="utf-8"))
        if job.get("version") != VERSION:
            raise TraceError(f"{path}: job version {job.get('version')}, this reader knows {VERSION}")
        with np.load(directory / "records.npz", allow_pickle=False) as arrays:
            return _restore(job, dict(arrays))
    except OSError as error:
        raise TraceError(f"{error.filename or path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: damaged ({type(error).__name__}: {error})") from error


def _job(trace: JobTrace) -> dict[str, Any]:
    return {
        "version": VERSION,
        "world": trace.world,
        "launched": trace.launched,
        "checked": trace.checked,
        "host_speed": trace.host_speed,
        "loading_s": trace.loading_s,
        "software": trace.software,
        "iterations_recorded": trace.iterations_recorded,
        "iterations_per_cycle": trace.iterations_per_cycle,
        "ranks": [
            {
                "rank": rank.rank,
                "peak_reserved_bytes": rank.peak_reserved_bytes,
                "capacity_bytes": rank.capacity_bytes,
                "blocking_streams": rank.blocking_streams,
            }
            for rank in trace.ranks
        ],
        "operations": [{"kind": _KIND_OF[type(op)], **asdict(op)} for op in trace.operations],
        "communicators": [asdict(communicator) for communicator in trace.communicators],
        "unsupported": trace.unsupported,
        "uncovered": trace.uncovered,
        "notes": trace.notes,
    }


def _restore(job: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> JobTrace:
    ranks = []
    for number, members in enumerate(job["ranks"]):
        allocations = arrays.get(f"allocations_{number}")
        passes = arrays.get(f"passes_{number}")
        _check_dtype(arrays[f"records_{number}"], RECORD)
        if allocations is not None:
            _check_dtype(allocations, ALLOCATION)
        if passes is not None:
            _check_dtype(passes, np.dtype(np.uint8))
        members["blocking_streams"] = tuple(members["blocking_streams"])
        records = arrays[f"records_{number}"]
        ranks.append(RankTrace(records=records, allocations=allocations, passes=passes, **members))
    return JobTrace(
        world=job["world"],
        ranks=tuple(ranks),
        class_of_rank=arrays["class_of_rank"],
        launched=job["launched"],
        checked=job["checked"],
        host_speed=job["host_speed"],
        loading_s=job.get("loading_s", 0.0),
        software=job.get("software", ""),
        operations=tuple(_operation(members) for members in job["operations"]),
        communicators=tuple(_communicator(members) for members in job["communicators"]),
        iterations_recorded=job["iterations_recorded"],
        iterations_per_cycle=job.get("iterations_per_cycle", 1),
        unsupported=tuple(job["unsupported"]),
        uncovered=tuple(job["uncovered"]),
        notes=tuple(job["notes"]),
    )


def _check_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> None:
    if array.dtype != dtype:
        raise ValueError(f"columns {array.dtype.names}, expected {dtype.names}")


def _operation(members: dict[str, Any]) -> Operation:
    kind = _KINDS[members.pop("kind")]
    if "operator" in {field.name for field in fields(kind)}:
        operator = members.pop("operator")
        members["operator"] = Operator(operator["name"], tuple(map(tuple, operator["sizes"])))
    if members.get("work") is not None:
        members["work"] = Work(*members["work"])
    operation: Operation = kind(**_tuples(members))
    return operation


def _communicator(members: dict[str, Any]) -> Communicator:
    everyone = tuple(map(tuple, members.pop("all_members", ())))
    return Communicator(**_tuples(members), all_members=everyone)


def _tuples(members: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in members.items()}
