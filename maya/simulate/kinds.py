"""Kinds of operations, as results and what-if questions name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maya.estimate import attention, grouped, tensor_cores
from maya.trace.operations import COLLECTIVES
from maya.trace.types import Collective, Convolution, Gemm, Kernel, Lapack, Memcpy, Memset, Operation

COMPUTE: Final = ("gemm", "attention", "convolution", "lapack", "norm", "softmax", "optimizer", "elementwise")
MEMORY: Final = ("copy", "fill")
KINDS: Final = (*COMPUTE, *MEMORY, *COLLECTIVES)
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "compute": COMPUTE,
    "memory": MEMORY,
    "communication": COLLECTIVES,
    "p2p": ("send", "recv"),
}
# What a kernel's name tells; the first that matches. Everything else moves elements.
_NAMED: Final = (
    ("optimizer", re.compile(r"multi_tensor_apply|adam|lamb_stage|sgd", re.IGNORECASE)),
    ("softmax", re.compile(r"soft_?max|nll_loss|cross_entropy", re.IGNORECASE)),
    ("norm", re.compile(r"(layer|rms|batch)_?norm|GammaBeta|RowwiseMoments|_?bn_[fb]w|ln_(fwd|bwd)", re.IGNORECASE)),
)  # fmt: skip


def kind_of(operation: Operation) -> str:
    """One of KINDS."""
    match operation:
        case Gemm():
            return "gemm"
        case Convolution():
            return "convolution"
        case Lapack():
            return "lapack"
        case Memcpy():
            return "copy"
        case Memset():
            return "fill"
        case Collective():
            return operation.collective
        case Kernel():
            return _kernel_kind(operation)


def _kernel_kind(kernel: Kernel) -> str:
    if attention.recognise(kernel) is not None or attention.is_auxiliary(kernel):
        return "attention"
    if grouped.recognise(kernel) is not None or tensor_cores.counted_flops(kernel):
        return "gemm"
    return next((kind for kind, pattern in _NAMED if pattern.search(kernel.name)), "elementwise")


def kinds_of(operations: Sequence[Operation]) -> tuple[str, ...]:
    return tuple(kind_of(operation) for operation in operations)


def memory_bound(operations: Sequence[Operation]) -> NDArray[np.bool_]:
    """[operations] Whether what limits each is memory bandwidth: all but products, convolutions, factorisations and
    attention."""
    bound_by_multiprocessors = ("gemm", "attention", "convolution", "lapack", *COLLECTIVES)
    return ~np.isin(np.array(kinds_of(operations), np.str_), bound_by_multiprocessors)


def members(name: str) -> tuple[str, ...]:
    """The kinds that a kind's or a group's name stands for; none when there is no such name."""
    return GROUPS.get(name, (name,) if name in KINDS else ())
