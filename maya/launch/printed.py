"""Tensors that a script prints: what PyTorch reads of them to lay out their numbers decides nothing else.

Without this `print(loss)` would have a prediction say that the script may have taken another way than it would.
"""

from __future__ import annotations

import ctypes
from functools import wraps
from typing import Any


def tell_emulator() -> None:
    """Of every tensor that is printed from here on, in this process and its forks. Idempotent; PyTorch must have been
    imported."""
    from torch import _tensor_str

    own: Any = _tensor_str._str
    if hasattr(own, "__wrapped__"):
        return

    @wraps(own)
    def text(*arguments: Any, **named: Any) -> str:
        maya_print = ctypes.CDLL(None).maya_print
        maya_print(1)
        try:
            return str(own(*arguments, **named))
        finally:
            maya_print(0)

    _tensor_str._str = text
