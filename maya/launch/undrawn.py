"""Random numbers for large tensors on the host: zeros instead, in pages that take no memory.

A model that is built on the host before it moves to its device would take its whole size in every rank, and minutes to
draw, for values that no virtual device keeps (docs/values.md). Pages that nobody wrote to are the kernel's one page of
zeros, in all ranks.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

LARGE_BYTES = 1 << 20
_DRAWING = ("normal_", "uniform_")  # all that torch.nn.init, torch.randn and torch.rand draw with
_FREE_LATER = 8  # madvise(2), MADV_FREE: refuses memory that is shared, locked or a file's
_NOTE = f"random host tensors of {LARGE_BYTES >> 20} MiB and more are not drawn: the script finds zeros there"
_keep: list[Any] = []  # a torch.library.Library undoes what it registered when it goes


def leave_undrawn() -> None:
    """From here on, in this process and its forks. Idempotent; PyTorch must have been imported."""
    import torch

    if _keep:
        return
    # Between autograd, which sees an ordinary operator, and the device's own kernel.
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    for name in _DRAWING:
        own = getattr(torch.ops.aten, name).default
        library.impl(name, _drawing(own, after), "BackendSelect", with_keyset=True)
    _keep.append(library)


def _drawing(own: Any, after: Any) -> Callable[..., Any]:
    noted: list[bool] = []

    def draw(keys: Any, tensor: Any, *how: Any, generator: Any = None) -> Any:
        if tensor.device.type != "cpu" or tensor.nbytes < LARGE_BYTES or not _zeroed(tensor):
            return own.redispatch(keys & after, tensor, *how, generator=generator)
        if not noted:
            noted.append(True)
            ctypes.CDLL(None).maya_note(_NOTE.encode())
        return tensor

    return draw


def _zeroed(tensor: Any) -> bool:
    """Gives a tensor's pages back, which makes it zero. False, with the tensor untouched, where that cannot be."""
    if not tensor.is_contiguous():
        return False
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    madvise = ctypes.CDLL(None).madvise
    whole = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
    if madvise(*whole, _FREE_LATER) != 0 or madvise(*whole, mmap.MADV_DONTNEED) != 0:
        return False
    ctypes.memset(start, 0, first - start)
    ctypes.memset(last, 0, end - last)
    return True
