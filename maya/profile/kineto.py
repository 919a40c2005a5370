"""Reads the trace that PyTorch's profiler exports (Chrome's trace event format, as Kineto writes it)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from maya.errors import MayaError
from maya.profile.types import Activity
from maya.trace.types import Operator

DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
OPERATOR_KINDS = ("cpu_op", "user_annotation")


def read_activities(path: Path) -> list[Activity]:
    """What the device did, in its order. Raises MayaError when the profiler saw no device."""
    try:
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MayaError(f"{path}: not a trace of PyTorch's profiler: {error}") from error
    operators = dict(_operators(events))
    activities = [
        _activity(event, operators) for event in sorted(_on_device(events), key=lambda event: event["ts"])
    ]
    if not activities:
        raise MayaError(
            "PyTorch's profiler saw no device activity: it needs CUPTI, and the right to use it "
            "(https://developer.nvidia.com/nvidia-development-tools-solutions-err_nvgpuctrperm-permission-issue-performance-counters)"
        )
    return activities


def _on_device(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (event for event in events if event.get("ph") == "X" and event.get("cat") in DEVICE_KINDS)


def _operators(events: Iterable[dict[str, Any]]) -> Iterator[tuple[int, Operator]]:
    """By external id, which a device activity shares with the innermost operator that caused it."""
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in OPERATOR_KINDS:
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


def _activity(event: dict[str, Any], operators: dict[int, Operator]) -> Activity:
    arguments = event.get("args", {})
    call = int(arguments.get("External id", 0))
    return Activity(
        kind=DEVICE_KINDS[event["cat"]],
        name=str(event["name"]),
        seconds=float(event["dur"]) * 1e-6,
        operator=operators.get(call, Operator()),
        call=call,
        grid=tuple(arguments.get("grid", ())),
        block=tuple(arguments.get("block", ())),
        bytes=int(arguments.get("bytes", 0)),
    )
