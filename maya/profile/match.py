"""Which operation, as the virtual device recorded it, each measured kernel belongs to.

A kernel that PyTorch launches itself has the same name, grid and block on both devices. A library call (a matrix
product, a convolution) is one operation to the recorder, and one or more kernels of the library's choice on the real
device: what an operator's calls leave over on both sides belongs together, when that is one operation, or when the
kernels' names tell which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from maya.profile.libraries import serve
from maya.profile.types import Activity, Matched
from maya.trace.types import Convolution, Gemm, Kernel, Lapack, Memcpy, Memset, Operation, Operator

COPY_DIRECTIONS = {"HtoD": "h2d", "DtoH": "d2h", "DtoD": "d2d", "PtoP": "p2p"}

Samples = dict[Operation, list[float]]
Found = tuple[Samples, list[Activity]]  # and the activities left over


def match(recorded: Mapping[Operation, int], activities: Iterable[Activity], iterations: int) -> Matched:
    """`recorded`: how often an iteration does each operation; `activities`: of `iterations` iterations."""
    known = _known_by_name(recorded)
    alike = _same_work(known)
    steps: tuple[Callable[[Mapping[Operation, int], list[Activity]], Found], ...] = (
        lambda missing, left: _by_launch(missing, left, lambda operator: operator),
        # PyTorch's profiler cuts long lists of tensors short: then the operator's name has to do.
        lambda missing, left: _by_launch(missing, left, lambda operator: operator.name),
        lambda missing, left: _by_launch(filter(alike.__contains__, missing), left, lambda operator: None),
        lambda missing, left: _by_name(known, missing, left, iterations),
        lambda missing, left: _by_operator(missing, left, iterations),
    )
    samples: Samples = {}
    left = list(activities)
    for step in steps:
        found, left = step({each: times for each, times in recorded.items() if each not in samples}, left)
        samples |= found
    unmatched: dict[str, float] = defaultdict(float)
    for activity in left:
        unmatched[f"{activity.name} in {activity.operator.name or 'no operator'}"] += activity.seconds
    return Matched(samples, dict(unmatched), tuple(each for each in recorded if each not in samples))


def _by_launch(
    operations: Iterable[Operation], activities: list[Activity], of: Callable[[Operator], object]
) -> Found:
    """Samples of the operations that were launched as the activities were, by what `of` takes of the operator."""
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


def _known_by_name(recorded: Iterable[Operation]) -> dict[str, list[Kernel]]:
    """Kernels whose own name has to do, by that: what Triton compiled is in a compiled region when recorded, and the
    real device chooses grids of Triton's and of CUB's."""
    known: dict[str, list[Kernel]] = defaultdict(list)
    for each in recorded:
        if isinstance(each, Kernel) and (each.name.startswith("triton_") or "detail::cub::" in each.name):
            known[_plain(each.name)].append(each)
    return known


def _same_work(known: Mapping[str, list[Kernel]]) -> set[Operation]:
    """Those of which all of one name, grid and block are known to do the same."""
    launched: dict[object, list[Kernel]] = defaultdict(list)
    for kernel in (kernel for kernels in known.values() for kernel in kernels):
        launched[_launch(kernel, lambda operator: None)].append(kernel)
    work = {launch: {(each.bytes, each.elements) for each in same} for launch, same in launched.items()}
    return {
        kernel
        for launch, same in launched.items()
        for kernel in same
        if len(same) == 1 or (len(work[launch]) == 1 and (None, None) not in work[launch])
    }


def _by_name(
    known: Mapping[str, list[Kernel]],
    missing: Mapping[Operation, int],
    activities: list[Activity],
    iterations: int,
) -> Found:
    """Samples of kernels whose grid and block the real device chose, by Triton's trials or by how many blocks it
    holds at once: one of the name was recorded, and as many were launched, all by one operator in one way."""
    launched: dict[str, list[Activity]] = defaultdict(list)
    for activity in activities:
        launched[_plain(activity.name)].append(activity)
    samples: Samples = {}
    for name, kernels in known.items():
        ways = {(each.grid, each.block, each.operator) for each in launched[name]}
        times = iterations * missing.get(kernels[0], 0)
        if len(kernels) == len(ways) == 1 and len(launched[name]) == times:
            samples[kernels[0]] = [activity.seconds for activity in launched.pop(name)]
    return samples, [activity for activity in activities if _plain(activity.name) in launched]


def _by_operator(missing: Mapping[Operation, int], activities: list[Activity], iterations: int) -> Found:
    """Samples of library calls, alone in their operator or told apart by the names of their kernels."""
    of_operator: dict[Operator, list[Operation]] = defaultdict(list)
    for operation in missing:
        if isinstance(operation, Kernel | Gemm | Convolution | Lapack):
            of_operator[operation.operator].append(operation)
    calls: dict[Operator, dict[int, list[Activity]]] = defaultdict(lambda: defaultdict(list))
    for activity in activities:
        calls[activity.operator][activity.call].append(activity)
    samples: Samples = {}
    left = []
    for operator, own in calls.items():
        candidates = of_operator.get(operator, [])
        seconds = _served(candidates, list(own.values()))
        each = {one: _library_calls(seconds[one], iterations * missing[one]) for one in candidates if seconds}
        if each and all(each.values()):
            samples |= each
        else:
            left += [activity for call in own.values() for activity in call]
    return samples, left


def _served(candidates: Sequence[Operation], calls: Iterable[list[Activity]]) -> Samples:
    """Seconds of each call of an operator by the candidate that it serves; empty unless that is known of all."""
    seconds: Samples = {candidate: [] for candidate in candidates}
    for call in calls:
        served = serve(candidates, call)
        if not served:
            return {}
        for candidate, kernels in served.items():
            seconds[candidate].append(sum(kernel.seconds for kernel in kernels))
    return seconds


def _library_calls(spent: list[float], calls: int) -> list[float]:
    """Seconds of each library call, one or several of which an operator's call makes; empty when `calls`, those of
    the recording, are no multiple of the measured operator's."""
    if not spent or calls % len(spent):
        return []
    each = calls // len(spent)
    return [seconds / each for seconds in spent for _ in range(each)]


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
