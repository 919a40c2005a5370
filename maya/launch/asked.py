"""What packages ask of the device while they are imported, answered without initialising CUDA.

Transformer Engine, flash-attn and others look at `torch.cuda.get_device_capability` at their top level. That would
initialise CUDA, which no fork survives, and every rank would import them, and all that imports them, for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class _Properties:
    """In place of PyTorch's own, which only an initialised CUDA gives."""

    def __init__(self, known: Mapping[str, object], unknown: list[str]) -> None:
        self.__dict__.update(known)
        self._unknown = unknown

    def __getattr__(self, name: str) -> Any:
        self._unknown.append(name)
        raise AttributeError(name)


@contextmanager
def answered(properties: Mapping[str, object]) -> Iterator[list[str]]:
    """Within, PyTorch answers questions for the device's properties from `properties`; all else that needs CUDA
    initialises it as ever. Yields the names of properties that were asked for and are not there."""
    import torch

    cuda: Any = torch.cuda
    native: Any = torch._C
    initialise, current_device = cuda._lazy_init, native._cuda_getDevice
    asking = (cuda.current_device.__code__, cuda.get_device_properties.__code__)
    unknown: list[str] = []

    def initialise_unless_asked() -> None:
        if sys._getframe(1).f_code not in asking:
            initialise()

    cuda._lazy_init = initialise_unless_asked
    native._cuda_getDevice = lambda: 0  # its own would take CUDA to be initialised from here on
    cuda._get_device_properties = lambda index: _Properties(properties, unknown)
    try:
        yield unknown
    finally:
        cuda._lazy_init, native._cuda_getDevice = initialise, current_device
        if not cuda.is_initialized():
            del cuda._get_device_properties
