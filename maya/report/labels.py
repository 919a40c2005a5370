"""What operations are called in front of people: a short label, a category, and the details behind it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Literal

from maya.trace.types import (
    Collective,
    Convolution,
    Gemm,
    Kernel,
    Lapack,
    Memcpy,
    Memset,
    Operation,
    RecordKind,
)

Category = Literal["compute", "communication", "copy"]

# What the host waits for in a call that returns when its work is done.
WORK_WAITS: dict[int, str] = {
    RecordKind.KERNEL: "wait for the kernel",
    RecordKind.MEMCPY: "wait for the copy",
    RecordKind.MEMSET: "wait for the fill",
    RecordKind.COLLECTIVE: "wait for the collective",
}
HOST_WAITS: dict[int, str] = {
    RecordKind.EVENT_SYNCHRONIZE: "cudaEventSynchronize",
    RecordKind.STREAM_SYNCHRONIZE: "cudaStreamSynchronize",
    RecordKind.DEVICE_SYNCHRONIZE: "cudaDeviceSynchronize",
}
_SCALES = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def label(operation: Operation) -> str:
    """A few words: `GEMM 4096x3072x1024 bf16`, `all_reduce 64.0 MiB`, `FillFunctor`."""
    match operation:
        case Gemm():
            batch = f"{operation.batch}x " if operation.batch > 1 else ""
            return f"GEMM {batch}{operation.m}x{operation.n}x{operation.k} {operation.dtype}"
        case Convolution():
            shape = "x".join(map(str, operation.filter))
            return f"convolution {operation.direction} {shape} {operation.dtype}"
        case Lapack():
            batch = f"{operation.batch}x " if operation.batch > 1 else ""
            columns = f"x{operation.k}" if operation.k else ""
            return f"{operation.routine} {batch}{operation.m}x{operation.n}{columns} {operation.dtype}"
        case Memcpy():
            return f"memcpy {operation.direction}"
        case Memset():
            return "memset"
        case Collective():
            peer = "" if operation.peer is None else f" (rank {operation.peer})"
            return f"{operation.collective} {size(operation.bytes)}{peer}"
        case Kernel():
            return kernel_label(operation.name)


def kernel_label(name: str) -> str:
    """The last component of a demangled name, and of a generic kernel the functor that tells it from others."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    own = re.split(r"[<(]", plain, maxsplit=1)[0].split("::")[-1]
    functor = re.search(r"(\w*(?:Functor|Ops|Op))\b", plain[len(own) :])
    return f"{own}<{functor.group(1)}>" if functor and functor.group(1) not in own else own or plain


def category(operation: Operation) -> Category:
    if isinstance(operation, Collective):
        return "communication"
    return "copy" if isinstance(operation, Memcpy | Memset) else "compute"


def operator_name(operation: Operation) -> str:
    """The framework's operator that made the call; empty when there was none."""
    return getattr(getattr(operation, "operator", None), "name", "")


def details(operation: Operation) -> dict[str, Any]:
    """Everything about the operation that fits an inspector panel; no empty entries."""
    found: dict[str, Any] = {}
    for name in operation.__dataclass_fields__:
        value = getattr(operation, name)
        if name == "operator":
            found |= (
                {"operator": value.name, "sizes": str([list(s) for s in value.sizes])} if value.name else {}
            )
        elif value not in (None, "", 0, ()):
            found[name] = list(value) if isinstance(value, tuple) else value
    if "name" in found:
        found["kernel"] = found.pop("name")
    return found


def duration(seconds: float, digits: int = 3) -> str:
    """So many significant digits with the fitting unit: `12.3 ms`."""
    if abs(seconds) >= 999.5:
        return f"{seconds:,.0f} s"
    scale, unit = time_unit(seconds, digits)
    if abs(seconds) < _rounding_to(scale, digits):
        return "0 s"
    return f"{seconds / scale:#.{digits}g}".rstrip(".") + f" {unit}"


def time_unit(seconds: float, digits: int = 3) -> tuple[float, str]:
    """The unit that fits: its seconds and its name."""
    fitting = (each for each in _SCALES if abs(seconds) >= _rounding_to(each[0], digits))
    return next(fitting, _SCALES[-1])


def _rounding_to(unit: float, digits: int) -> float:
    """The least that is shown as one of the unit."""
    return (1 - 0.5 * 10.0**-digits) * unit


def number(value: float, digits: int = 4) -> str:
    """So many significant digits, and more before the point where there are: `949,812`, `0.1234`."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.{digits}g}"


def size(count: float) -> str:
    """Binary units with one decimal: `64.0 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def counted(number: int, noun: str) -> str:
    """`1 trial`, `1,920 trials`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ranges(numbers: tuple[int, ...]) -> str:
    """Consecutive and evenly spaced numbers in short: `0-7`, `0, 2, … 14`, `0, 5`."""
    if len(numbers) > 3:
        steps = {b - a for a, b in pairwise(numbers)}
        if steps == {1}:
            return f"{numbers[0]}-{numbers[-1]}"
        if len(steps) == 1:
            return f"{numbers[0]}, {numbers[1]}, … {numbers[-1]}"
        if len(numbers) > 8:
            return ", ".join(map(str, numbers[:6])) + f", … {numbers[-1]}"
    return ", ".join(map(str, numbers))
