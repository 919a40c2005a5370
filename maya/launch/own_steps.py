"""Iterations of a script whose optimizer is none of PyTorch's: a class of its own, or a loop over the parameters.

Nothing announces such a step. But with it the gradients are dropped or zeroed, and between the micro-batches of an
iteration they are left alone: a backward pass that finds gradients other than the last one left them begins another.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

_NOTE = (
    "the script has no optimizer of PyTorch's: an iteration ends where a backward pass finds gradients renewed, "
    "and what its own optimizer computes counts as the model's"
)
_STEP = "Optimizer.step#own"  # what PyTorch's are announced as (emulator/core/context.cpp)


def tell_apart() -> None:
    """From here on, until the script has an optimizer of PyTorch's."""
    own = torch.autograd.backward
    passes = _Passes()

    @wraps(own)
    def backward(tensors: Any, *rest: Any, **named: Any) -> None:
        if passes.under_way:  # a checkpoint's, which may be the one that reaches parameters
            passes.look_for_parameter(tensors)
            return own(tensors, *rest, **named)
        if _has_optimizer():
            torch.autograd.backward = own
            return own(tensors, *rest, **named)
        passes.begin(tensors)
        try:
            own(tensors, *rest, **named)
        finally:
            passes.end()

    torch.autograd.backward = backward


class _Passes:
    """The backward passes of a process, told apart by the gradient of one parameter that the first of them reached."""

    def __init__(self) -> None:
        self.under_way = False
        self.parameter: weakref.ref[Parameter] | None = None
        self.left: tuple[int, int] | None = None  # how the last pass left its gradient
        self.noted = False

    def begin(self, tensors: Any) -> None:
        self.under_way = True
        if self.left is not None and self._gradient() != self.left:
            with torch.autograd.profiler.record_function(_STEP):
                pass
            if not self.noted:
                self.noted = True
                ctypes.CDLL(None).maya_note(_NOTE.encode())
        self.look_for_parameter(tensors)

    def look_for_parameter(self, tensors: Any) -> None:
        if self.parameter is None or self.parameter() is None:
            self.parameter = next(map(weakref.ref, _parameters(tensors)), None)

    def end(self) -> None:
        self.under_way = False
        self.left = self._gradient()

    def _gradient(self) -> tuple[int, int] | None:
        parameter = self.parameter() if self.parameter is not None else None
        if parameter is None or parameter.grad is None:
            return None
        return id(parameter.grad), parameter.grad._version


def _parameters(tensors: Any) -> Iterator[Parameter]:
    """Those that the graph of `tensors` ends in."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    unseen = [getattr(root, "grad_fn", None) for root in roots]
    seen: set[Any] = set()
    while unseen:
        node = unseen.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Parameter):
            yield leaf
        unseen += [before for before, _ in node.next_functions]


def _has_optimizer() -> bool:
    """Whether there was an optimizer of PyTorch's: the first of a class puts its hooks around `step`."""
    classes = [Optimizer]
    while classes:
        one = classes.pop()
        if hasattr(one.__dict__.get("step"), "hooked"):
            return True
        classes += one.__subclasses__()
    return False
