"""Which operation, as the virtual device recorded it, each measured kernel belongs to.

A kernel that PyTorch launches itself has the same name, grid and block on both devices. A library call (a matrix
product, a convolution) is one operation to the recorder, and one or more kernels of the library's choice on the real
device: what an operator's calls leave over on both sides belongs together, when that is one operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

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


def _by_operator(
    recorded: Mapping[Operation, int], activities: list[Activity], iterations: int
) -> tuple[Samples, list[Activity]]:
    """Samples of library calls, each the only one of its operator; and the activities left over."""
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
        else:
            left += own
    return samples, left


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
