"""Tells the emulator which optimizer takes a step: several may step in one iteration, one steps once in it."""

from __future__ import annotations

import ctypes
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from maya.launch.steady import MAX_PERIOD

_CONTINUES = 2**32 - 1  # kContinues of emulator/core/process_state.h


def tell_apart() -> None:
    """From here on each step is recorded with the number of its optimizer, from 1. One that is handed some of its
    parameters at a time, as DeepSpeed's ZeRO does with each group of them, takes one step until some come again. Those
    after the MAX_PERIOD-th go on with its step: a script may have one for each parameter, to step in the backward pass.
    """
    emulator = ctypes.CDLL(None)
    enter, leave = emulator.maya_enter_step, emulator.maya_leave_step
    numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
    parts: WeakKeyDictionary[Optimizer, list[ref[Tensor]]] = WeakKeyDictionary()

    def steps(optimizer: Optimizer, *_: Any) -> None:
        first = _first_parameter(optimizer)
        if optimizer not in numbers:
            taken = set(numbers.values())  # a script may make a new one for each iteration
            numbers[optimizer] = next(number for number in count(1) if number not in taken)
        stepped = [part for part in parts.get(optimizer, ()) if part() is not None]
        continues = first is not None and stepped and all(part() is not first for part in stepped)
        parts[optimizer] = [*(stepped if continues else ()), *(() if first is None else (ref(first),))]
        enter(_CONTINUES if continues or numbers[optimizer] > MAX_PERIOD else numbers[optimizer])

    register_optimizer_step_pre_hook(steps)
    register_optimizer_step_post_hook(lambda *_: leave())


def _first_parameter(optimizer: Optimizer) -> Tensor | None:
    return next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)
