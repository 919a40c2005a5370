"""Reads the trace that PyTorch's profiler exports (Chrome's trace event format, as Kineto writes it)."""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from maya.errors import MayaError
from maya.profile.types import Activity
from maya.trace.types import Operator

DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
OPERATOR_KINDS = ("cpu_op", "user_annotation")
CALL_KINDS = ("cuda_runtime", "cuda_driver")
# From the end of a kernel to the start of the next, which waits for it: the medians of 542 to 7,944 neighbours in each
# of six jobs of scripts/measure on an H200 were 1.1 to 2.3 us. Of traces that have too few such neighbours.
SPACING_S = 1.3e-6
FEWEST_NEIGHBOURS = 30


def read_activities(path: Path) -> list[Activity]:
    """What the device did, in its order, each with the time until the next can begin: what a kernel takes in a stream
    that never runs dry. Raises MayaError when the profiler saw no device, or `path` is none of its traces."""
    try:
        activities = _activities(read_events(path))
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise MayaError(f"{path}: not a trace of PyTorch's profiler: {error!r}") from error
    if not activities:
        raise MayaError(
            "PyTorch's profiler saw no device activity: it needs CUPTI, and the right to use it "
            "(https://developer.nvidia.com/nvidia-development-tools-solutions-err_nvgpuctrperm-permission-issue-performance-counters)"
        )
    return activities


def read_events(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = json.loads(content.decode(errors="replace"))["traceEvents"]
    return events


def _activities(events: Sequence[dict[str, Any]]) -> list[Activity]:
    on_device = sorted(of_kinds(events, DEVICE_KINDS), key=lambda event: float(event["ts"]))
    operators = dict(_operators(events))
    spacing_s = _spacing_s(events, on_device)
    return [_activity(event, operators, spacing_s) for event in on_device]


def _spacing_s(events: Iterable[dict[str, Any]], on_device: Sequence[dict[str, Any]]) -> float:
    """Seconds between two kernels of a stream, the second of which had been launched before the first began."""
    launched_us = {
        event["args"]["correlation"]: event["ts"] + event["dur"]
        for event in of_kinds(events, CALL_KINDS)
        if "correlation" in event.get("args", {})
    }
    streams: dict[object, list[dict[str, Any]]] = defaultdict(list)
    for event in on_device:
        streams[event.get("args", {}).get("stream")].append(event)
    gaps_us = [
        after["ts"] - before["ts"] - before["dur"]
        for stream in streams.values()
        for before, after in pairwise(stream)
        if launched_us.get(after.get("args", {}).get("correlation"), float("inf")) < before["ts"]
    ]
    return max(statistics.median(gaps_us), 0.0) * 1e-6 if len(gaps_us) >= FEWEST_NEIGHBOURS else SPACING_S


def of_kinds(events: Iterable[dict[str, Any]], kinds: Collection[str]) -> Iterator[dict[str, Any]]:
    """Those that have a duration, of these categories."""
    return (event for event in events if event.get("ph") == "X" and event.get("cat") in kinds)


def _operators(events: Iterable[dict[str, Any]]) -> Iterator[tuple[int, Operator]]:
    """By external id, which a device activity shares with the innermost operator that caused it."""
    for event in of_kinds(events, OPERATOR_KINDS):
        arguments = event.get("args", {})
        if "External id" in arguments:
            sizes = tuple(_shapes(arguments.get("Input Dims", ())))
            yield int(arguments["External id"]), Operator(str(event["name"]), sizes)


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    """Lists of tensors are laid flat, as the recorder lays them."""
    for entry in value:
        if isinstance(entry, list) and any(isinstance(inner, list) for inner in entry):
            yield from _shapes(entry)
        else:
            yield tuple(entry) if isinstance(entry, list) else ()


def _activity(event: dict[str, Any], operators: dict[int, Operator], spacing_s: float) -> Activity:
    arguments = event.get("args", {})
    call = int(arguments.get("External id", 0))
    return Activity(
        kind=DEVICE_KINDS[event["cat"]],
        name=str(event["name"]),
        seconds=float(event["dur"]) * 1e-6 + spacing_s,
        operator=operators.get(call, Operator()),
        call=call,
        grid=tuple(arguments.get("grid", ())),
        block=tuple(arguments.get("block", ())),
        bytes=int(arguments.get("bytes", 0)),
    )
