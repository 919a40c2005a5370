"""PyTorch's symmetric memory where peers may not run: each rank is answered that all of its group are as it is.

Ranks tell each other by the rendezvous store which process and device their memory is of, and pass a file descriptor
of it from process to process in a ring. Told its own process of everyone, a rank passes its own to itself, and maps its
own memory as that of its peers (emulator/cuda/driver_virtual_memory.cpp).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

# Where CUDASymmetricMemory's StoreExchange puts what one member has for the others.
_KEY = re.compile(r"(?P<exchange>(?P<store>.*)/CUDASymmetricMemory/\d+)/\d+")


class SymmetricMemory:
    """What this rank has told its peers."""

    def __init__(self) -> None:
        self._own: dict[str, bytes] = {}  # by exchange
        # As all members are answered to be this rank, they are on one device.
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"

    def tell(self, key: str, value: bytes, ranks_of: Callable[[str], Sequence[int]]) -> bool:
        """False: `key` is of something else. `ranks_of` a group's store, by the store's prefix; raises RuntimeError
        where nodes part them."""
        found = _KEY.fullmatch(key)
        if found is None:
            return False
        ranks = ranks_of(found["store"])
        node = int(os.environ["LOCAL_WORLD_SIZE"])
        if len({rank // node for rank in ranks}) > 1:
            raise RuntimeError(
                f"symmetric memory of ranks {min(ranks)} to {max(ranks)}: nodes of {node} GPUs have no memory in common"
            )
        self._own[found["exchange"]] = value
        return True

    def asked(self, key: str) -> bytes | None:
        """What a member would have told; None: `key` is of something else."""
        found = _KEY.fullmatch(key)
        return self._own.get(found["exchange"]) if found else None
