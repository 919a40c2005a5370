"""Whatever lies on disk, reading it gives a rank or a TraceError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maya.launch.layout import HEADER, HEADER_BYTES, RAW_RECORD
from maya.trace import TraceError, read_rank
from maya.trace.format import signatures
from maya.trace.types import RecordKind

TMP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


def some_rank(rank_writer: Any) -> Any:
    rank = rank_writer(1, 4)
    rank.communicator(0, "all", 4, 1)
    rank.kernel("a", operator="aten::mm")
    rank.collective("all_reduce")
    rank.step()
    return rank


def test_layout_is_the_emulators() -> None:
    assert RAW_RECORD.itemsize == 64
    fields = RAW_RECORD.fields
    assert fields is not None
    names = ("host_ns", "size", "arg", "sequence", "peer", "group", "ranges", "hash")
    assert {n: fields[n][1] for n in names} == {
        "host_ns": 16,
        "size": 24,
        "arg": 32,
        "sequence": 40,
        "peer": 44,
        "group": 48,
        "ranges": 52,
        "hash": 56,
    }
    header = HEADER.fields
    assert header is not None
    assert (header["records"][1], header["unsupported_count"][1]) == (24, 96)


def test_reads_what_was_written(rank_writer: Any, tmp_path: Path) -> None:
    raw = read_rank(some_rank(rank_writer).write(tmp_path))
    assert (raw.rank, raw.world, len(raw.records)) == (1, 4, 3)
    assert raw.communicators[0].size == 4
    assert raw.capacity_bytes == 80 << 30


def test_refused_and_uncovered_calls_are_listed_once(rank_writer: Any, tmp_path: Path) -> None:
    rank = some_rank(rank_writer)
    rank.lines += [{"unsupported": "cudnnFoo", "library": "cudnn"}] * 2 + [{"uncovered": "why"}]
    raw = read_rank(rank.write(tmp_path))
    assert raw.unsupported == ("cudnn.cudnnFoo",)
    assert raw.uncovered == ("why",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": b"NOTTRACE"}, "not a rank trace"),
        ({"version": 9}, "version 9"),
        ({"records": 4}, "header says 4 records, file holds 3"),
        ({"rank": 4}, "rank 4 of a world of 4"),
    ],
)
def test_foreign_headers_are_named(
    rank_writer: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = some_rank(rank_writer).write(tmp_path)
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, HEADER, count=1)
    for name, value in change.items():
        header[name] = value
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message):
        read_rank(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"kind": 13}, "record kind 13"),
        ({"op": 99}, "operation 99"),
        ({"context": 7}, "context 7"),
        ({"kind": RecordKind.COLLECTIVE, "op": 1, "arg": 5}, "communicator 5"),
        (
            {"kind": RecordKind.COLLECTIVE, "op": 1, "peer": 4},
            "peer 4 of communicator 0, which has 4 members",
        ),
    ],
)
def test_dangling_references_are_named(
    rank_writer: Any, tmp_path: Path, columns: dict[str, int], message: str
) -> None:
    rank = some_rank(rank_writer)
    rank.record(**{"kind": RecordKind.KERNEL, **columns})
    with pytest.raises(TraceError, match=message):
        read_rank(rank.write(tmp_path))


def test_half_a_last_line_is_forgiven(rank_writer: Any, tmp_path: Path) -> None:
    path = some_rank(rank_writer).write(tmp_path)
    ops = path.with_suffix(".ops")
    ops.write_text(ops.read_text() + '{"op": 17, "kind": "ker')
    assert len(read_rank(path).records) == 3


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_rank(tmp_path / "rank-00000.trace")


@TMP
@given(data=st.data())
def test_damaged_traces_never_crash(rank_writer: Any, tmp_path: Path, data: st.DataObject) -> None:
    path = some_rank(rank_writer).write(tmp_path)
    damaged = data.draw(st.sampled_from([path, path.with_suffix(".ops")]))
    content = bytearray(damaged.read_bytes())
    interesting = [*range(HEADER.itemsize), *range(HEADER_BYTES, len(content))]
    positions = interesting if damaged is path else range(len(content))
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.sampled_from(positions))] = data.draw(st.integers(0, 255))
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        raw = read_rank(path)
    except TraceError:
        return
    assert len(signatures(raw, raw.records["stream"])) == len(raw.records)


@TMP
@given(trace=st.binary(max_size=5000), ops=st.binary(max_size=200))
def test_garbage_is_no_trace(tmp_path: Path, trace: bytes, ops: bytes) -> None:
    path = tmp_path / "rank-00000.trace"
    path.write_bytes(trace)
    path.with_suffix(".ops").write_bytes(ops)
    with pytest.raises(TraceError):
        read_rank(path)


def test_signature_ignores_times_and_addresses(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    rank.kernel("a", host_ns=5, arg=1)
    rank.kernel("a", host_ns=9, arg=2)
    rank.kernel("b", host_ns=9)
    raw = read_rank(rank.write(tmp_path))
    first, second, third = signatures(raw, raw.records["stream"])
    assert first == second != third
