"""Tells the emulator which optimizer takes a step: several may step in one iteration, one steps once in it."""

from __future__ import annotations

import ctypes
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook


def tell_apart() -> None:
    """From here on each step is recorded with the number of its optimizer, from 1."""
    name = ctypes.CDLL(None).maya_name_optimizer
    numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
    unused = count(1)

    def steps(optimizer: Optimizer, *_: Any) -> None:
        if optimizer not in numbers:
            numbers[optimizer] = next(unused)
        name(numbers[optimizer])

    register_optimizer_step_pre_hook(steps)
