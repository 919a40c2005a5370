"""Which operation, as the virtual device recorded it, each measured kernel belongs to.

A kernel that PyTorch launches itself has the same name, grid and block on both devices. A library call (a matrix
product, a convolution) is one operation to the recorder, and one or more kernels of the library's choice on the real
device: what an operator's calls leave over on both sides belongs together, when that is one operation, or when the
kernels' names tell which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeGuard

from maya.profile.names import direction, layout
from maya.profile.types import Activity, Matched
from maya.trace.types import Convolution, Gemm, Kernel, Memcpy, Memset, Operation, Operator

COPY_DIRECTIONS = {"HtoD": "h2d", "DtoH": "d2h", "DtoD": "d2d", "PtoP": "p2p"}


Samples = dict[Operation, list[float]]


def match(recorded: Mapping[Operation, int], activities: Iterable[Activity], iterations: int) -> Matched:
    """`recorded`: how often an iteration does each operation; `activities`: of `iterations` iterations."""
    samples, left = _by_launch(recorded, list(activities), lambda operator: operator)
    # PyTorch's profiler cuts long lists of tensors short: then the operator's name has to do.
    missing = [operation for operation in recorded if operation not in samples]
    cut, left = _by_launch(missing, left, lambda operator: operator.name)
    samples |= cut
    missing = [operation for operation in missing if operation not in samples]
    # It calls what Triton compiled by the kernel's name, and the recorder by the compiled region's.
    triton = [
        operation for operation in missing if isinstance(operation, Kernel) and "triton_" in operation.name
    ]
    compiled, left = _by_launch(_same_work(triton), left, lambda operator: None)
    samples |= compiled
    missing = [operation for operation in missing if operation not in samples]
    calls, left = _by_operator({operation: recorded[operation] for operation in missing}, left, iterations)
    samples |= calls
    unmatched: dict[str, float] = defaultdict(float)
    for activity in left:
        unmatched[f"{activity.name} in {activity.operator.name or 'no operator'}"] += activity.seconds
    return Matched(
        samples, dict(unmatched), tuple(operation for operation in missing if operation not in samples)
    )


def _by_launch(
    operations: Iterable[Operation], activities: list[Activity], of: Callable[[Operator], object]
) -> tuple[Samples, list[Activity]]:
    """Samples of the operations that were launched as the activities were, by what `of` takes of the operator; and the
    activities left over."""
    launched: dict[object, list[Operation]] = defaultdict(list)
    for operation in operations:
        launched[_launch(operation, of)].append(operation)
    samples: Samples = defaultdict(list)
    left = []
    for activity in activities:
        same = launched.get(_measured_launch(activity, of), ())
        for operation in same:
            samples[operation].append(activity.seconds)
        if not same:
            left.append(activity)
    return samples, left


def _same_work(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Those of which all of one name, grid and block move the same bytes."""
    launched: dict[object, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        launched[kernel.name, kernel.grid, kernel.block].append(kernel)
    alike = (
        same for same in launched.values() if len({(kernel.bytes, kernel.elements) for kernel in same}) == 1
    )
    return [kernel for same in alike for kernel in same]


def _by_operator(
    recorded: Mapping[Operation, int], activities: list[Activity], iterations: int
) -> tuple[Samples, list[Activity]]:
    """Samples of library calls, alone in their operator or told apart by name; and the activities left over."""
    missing: dict[Operator, list[Operation]] = defaultdict(list)
    for operation in recorded:
        if isinstance(operation, Kernel | Gemm | Convolution):
            missing[operation.operator].append(operation)
    of_operator: dict[Operator, list[Activity]] = defaultdict(list)
    for activity in activities:
        of_operator[activity.operator].append(activity)
    samples: Samples = {}
    left = []
    for operator, own in of_operator.items():
        candidates = missing.get(operator, [])
        calls = iterations * recorded[candidates[0]] if len(candidates) == 1 else 0
        if seconds := _library_calls(own, calls):
            samples[candidates[0]] = seconds
        elif told := _by_name(candidates, own):
            samples |= told
        else:
            left += own
    return samples, left


def _by_name(candidates: list[Operation], own: list[Activity]) -> Samples:
    """Samples of an operator's several library calls, where every kernel's name tells whose it is."""
    kinds = {_kind(candidate): candidate for candidate in candidates}
    if None in kinds or len(kinds) < len(candidates):
        return {}
    channels_last = all(
        isinstance(each, Gemm) or each.layout == "nhwc" for each in candidates if _is_library(each)
    )
    seconds: dict[Operation, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    calls: dict[int, list[Activity]] = defaultdict(list)
    for activity in own:
        calls[activity.call].append(activity)
    for call, activities in calls.items():
        for activity, kind in zip(activities, _kinds(activities, channels_last), strict=True):
            if kind not in kinds:
                return {}
            seconds[kinds[kind]][call] += activity.seconds
    return {operation: list(of_calls.values()) for operation, of_calls in seconds.items()}


def _is_library(operation: Operation) -> TypeGuard[Gemm | Convolution]:
    return isinstance(operation, Gemm | Convolution)


def _kind(operation: Operation) -> str | None:
    """What a kernel's name would tell of that call."""
    match operation:
        case Gemm():
            return "NT"[operation.transpose_a] + "NT"[operation.transpose_b]
        case Convolution():
            return operation.direction
        case _:
            return None


def _kinds(activities: list[Activity], channels_last: bool) -> list[str | None]:
    """Of one operator's kernels, in order. One that adds up parts belongs to the product before it; of others whose
    names do not tell, all must be one kind's."""
    told = [
        direction(a.name, channels_last) if "convolution" in a.operator.name else layout(a.name)
        for a in activities
    ]
    known = {kind for kind in told if kind}
    if len(known) == 1:
        return [*known] * len(told)
    for place, activity in enumerate(activities[1:], 1):
        if told[place] is None and "splitK" in activity.name:
            told[place] = told[place - 1]
    return told


def _library_calls(rest: list[Activity], calls: int) -> list[float]:
    """Seconds of each library call, one or several of which an operator's call makes; empty when `calls`, those of
    the recording, are no multiple of the measured operator's."""
    spent: dict[int, float] = defaultdict(float)
    for activity in rest:
        spent[activity.call] += activity.seconds
    if not calls or calls % len(spent):
        return []
    each = calls // len(spent)
    return [seconds / each for seconds in spent.values() for _ in range(each)]


def _launch(operation: Operation, of: Callable[[Operator], object]) -> object:
    match operation:
        case Kernel():
            return (_plain(operation.name), operation.grid, operation.block, of(operation.operator))
        case Memcpy():
            return ("memcpy", operation.direction, operation.bytes, operation.pinned)
        case Memset():
            return ("memset", operation.bytes)
        case _:
            return operation  # a library call launches kernels of its own choice


def _measured_launch(activity: Activity, of: Callable[[Operator], object]) -> object:
    if activity.kind == "memset":
        return ("memset", activity.bytes)
    if activity.kind == "memcpy":
        words = activity.name.split()
        direction = COPY_DIRECTIONS.get(words[1] if len(words) > 1 else "", "")
        return ("memcpy", direction, activity.bytes, "Pageable" not in activity.name)
    return (_plain(activity.name), activity.grid, activity.block, of(activity.operator))


def _plain(name: str) -> str:
    """Demanglers differ in spaces."""
    return name.replace(" ", "")
