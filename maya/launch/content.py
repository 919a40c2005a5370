"""What a call does, told alike by all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray


def contents(
    records: NDArray[np.void],
    operations: Mapping[int, dict[str, Any]],
    contexts: Mapping[int, dict[str, Any]],
) -> NDArray[np.uint64]:
    """[records] A digest of what the .ops table, its lines by number, says of each call's operation and operator. It
    does not depend on whom a collective joins or how much a copy moves."""
    pairs = records["op"].astype(np.int64) << 32 | records["context"]
    distinct, inverse = np.unique(pairs, return_inverse=True)
    digests = [
        _digest(operations.get(pair >> 32, {}), contexts.get(pair & 0xFFFFFFFF, {}))
        for pair in distinct.tolist()
    ]
    result: NDArray[np.uint64] = np.array(digests, np.uint64)[inverse.reshape(-1)]
    return result


def _digest(*lines: dict[str, Any]) -> int:
    said = [{k: v for k, v in line.items() if k not in ("op", "context")} for line in lines]
    return int.from_bytes(blake2b(json.dumps(said).encode(), digest_size=8).digest(), "little")
