"""Decodes operations: a line of the .ops table and an operator context become an `Operation`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.trace.format import RawRank, TraceError
from maya.trace.types import (
    DEVICE_WORK,
    Collective,
    Convolution,
    Gemm,
    Kernel,
    Lapack,
    Memcpy,
    Memset,
    Operation,
    Operator,
    RecordKind,
    Work,
)

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send",
    "recv",
)


class OperationTable:
    """The job's distinct operations, numbered as they are first seen."""

    def __init__(self) -> None:
        self._index: dict[Operation, int] = {}

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._index)

    def intern(
        self, raw: RawRank, records: NDArray[np.void], members: dict[int, tuple[int, ...]]
    ) -> NDArray[np.int32]:
        """[records] The job-wide operation of each of a rank's records, -1 for those that do no work.

        `members` are the global ranks of each of the rank's communicators, by local index.
        """
        work = np.isin(records["kind"], DEVICE_WORK)
        keys = _keys(records[work])
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        numbers = np.empty(len(distinct), np.int32)
        for row, key in enumerate(distinct):
            operation = _decode(raw, members, *map(int, key))
            numbers[row] = self._index.setdefault(operation, len(self._index))
        result = np.full(len(records), -1, np.int32)
        result[work] = numbers[inverse.reshape(-1)] if len(distinct) else 0
        return result


def _keys(records: NDArray[np.void]) -> NDArray[np.int64]:
    """[records, 5] What tells two pieces of work apart: op, context, size of copies, communicator, peer."""
    kind = records["kind"]
    kernel, collective = kind == RecordKind.KERNEL, kind == RecordKind.COLLECTIVE
    copy = (kind == RecordKind.MEMCPY) | (kind == RecordKind.MEMSET)
    keys = np.empty((len(records), 5), np.int64)
    keys[:, 0] = records["op"]
    keys[:, 1] = np.where(kernel, records["context"], 0)
    keys[:, 2] = np.where(copy, records["size"], 0)
    keys[:, 3] = np.where(collective, records["arg"].astype(np.int64), -1)
    keys[:, 4] = np.where(collective, records["peer"], -1)
    return keys


def _decode(
    raw: RawRank,
    members: dict[int, tuple[int, ...]],
    op: int,
    context: int,
    size: int,
    communicator: int,
    peer: int,
) -> Operation:
    line = raw.operations[op]
    try:
        operator = parse_operator(raw.contexts.get(context))
        match line["kind"]:
            case "kernel":
                return _kernel(line, operator)
            case "gemm":
                return _gemm(line, operator)
            case "convolution":
                return _convolution(line, operator)
            case "lapack":
                return _lapack(line, operator)
            case "memcpy":
                return Memcpy(line["direction"], size, bool(line.get("pinned", True)))
            case "memset":
                return Memset(size)
            case "collective":
                return _collective(line, members[communicator], peer, raw.rank)
            case other:
                raise ValueError(f"unknown kind {other!r}")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise TraceError(f"{raw.path.with_suffix('.ops')}: operation {op}: {what}") from error


def _kernel(line: dict[str, Any], operator: Operator) -> Kernel:
    return Kernel(
        name=str(line["kernel"]),
        grid=_triple(line["grid"]),
        block=_triple(line["block"]),
        shared_bytes=int(line.get("shared_bytes", 0)),
        elements=_optional(line.get("elements")),
        bytes=_optional(line.get("bytes")),
        operator=operator,
        attention=_attention(line["attention"]) if "attention" in line else None,
        work=Work(*map(int, line["work"])) if "work" in line else None,
    )


def _attention(sizes: list[int]) -> tuple[int, ...]:
    batch, heads, queries, keys, head_dim, causal = (int(size) for size in sizes)
    return batch, heads, queries, keys, head_dim, causal


def _gemm(line: dict[str, Any], operator: Operator) -> Gemm:
    return Gemm(
        m=int(line["m"]),
        n=int(line["n"]),
        k=int(line["k"]),
        batch=int(line.get("batch", 1)),
        dtype=str(line["dtype_a"]),
        dtype_out=str(line["dtype_c"]),
        compute=str(line["compute"]),
        transpose_a=bool(line.get("transpose_a", False)),
        transpose_b=bool(line.get("transpose_b", False)),
        epilogue=str(line.get("epilogue", "")),
        multiprocessors=int(line.get("multiprocessors", 0)),
        operator=operator,
    )


def _convolution(line: dict[str, Any], operator: Operator) -> Convolution:
    return Convolution(
        direction=line["direction"],
        input=_integers(line["input"]),
        filter=_integers(line["filter"]),
        output=_integers(line["output"]),
        padding=_integers(line["padding"]),
        stride=_integers(line["stride"]),
        dilation=_integers(line["dilation"]),
        groups=int(line.get("groups", 1)),
        dtype=str(line["dtype"]),
        layout=str(line["layout"]),
        operator=operator,
    )


def _lapack(line: dict[str, Any], operator: Operator) -> Lapack:
    return Lapack(
        routine=str(line["routine"]),
        m=int(line["m"]),
        n=int(line["n"]),
        k=int(line["k"]),
        batch=int(line["batch"]),
        dtype=str(line["dtype"]),
        vectors=bool(line["vectors"]),
        batched=bool(line["batched"]),
        operator=operator,
    )


def _collective(line: dict[str, Any], members: tuple[int, ...], peer: int, rank: int) -> Collective:
    name = str(line["collective"])
    if name not in COLLECTIVES:
        raise ValueError(f"unknown collective {name!r}")
    if (name in ("send", "recv")) != (peer >= 0):
        raise ValueError(f"a {name} with peer {peer}")
    return Collective(
        collective=name,
        dtype=str(line["dtype"]),
        bytes=int(line["bytes"]),
        members=members,
        peer=members[peer] if peer >= 0 else None,
        reduction=str(line.get("reduction", "")),
        rank=rank if peer >= 0 else None,
    )


def parse_operator(line: dict[str, Any] | None) -> Operator:
    """`{"operator": "aten::addmm", "sizes": "[[3072], [4096, 1024]]"}`; lists of tensors are laid flat."""
    if line is None:
        return Operator()
    return Operator(str(line["operator"]), _sizes(str(line.get("sizes", ""))))


@cache
def _sizes(text: str) -> tuple[tuple[int, ...], ...]:
    if not text:
        return ()
    try:
        return tuple(_shapes(json.loads(text)))
    except (ValueError, RecursionError):
        return ()  # cut off by the profiler: PyTorch shortens very long size lists


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, list) and any(isinstance(inner, list) for inner in entry):
            yield from _shapes(entry)
        elif isinstance(entry, list):
            yield _integers(entry)


def _integers(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _triple(values: Any) -> tuple[int, int, int]:
    x, y, z = _integers(values)
    return x, y, z


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)
