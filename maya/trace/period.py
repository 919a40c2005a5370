"""Finds the steady iteration in a stream of record signatures, for scripts without optimizer steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BASE = np.uint64(0x9E3779B97F4A7C15 | 1)  # odd, so its powers never vanish modulo 2^64


def find_period(signatures: NDArray[np.uint64]) -> tuple[int, int] | None:
    """(start, length) of the iteration that the stream repeats at its tail; None when it does not.

    `start` is the first record of the part that repeats (everything before is start-up), `length` the
    records of one iteration; at least two whole iterations lie between `start` and the end.

    A period p repeats over the longest suffix on which s[i] == s[i - p]; with the stream reversed that is
    p + Z[p], Z being the Z-function (Gusfield, Algorithms on Strings, 1.3). The loop over micro-batches
    is shorter than the iteration but its repetition stops at the optimizer: it covers less than one
    iteration, while the iteration covers two or more. So of all periods that cover more than half of what
    the best one covers, the shortest is the iteration. A stream that ends before its second iteration
    does cannot be told from its micro-batch loop.
    """
    reverse = np.ascontiguousarray(signatures[::-1], dtype=np.uint64)
    candidates = np.flatnonzero(reverse[1 : len(reverse) // 2 + 1] == reverse[:1]) + 1
    if not len(candidates):
        return None
    repeated = _common_prefix(reverse, candidates)
    whole = repeated >= candidates
    if not whole.any():
        return None
    candidates, coverage = candidates[whole], (candidates + repeated)[whole]
    winner = int(np.flatnonzero(2 * coverage > coverage.max())[0])
    return len(reverse) - int(coverage[winner]), int(candidates[winner])


def _common_prefix(values: NDArray[np.uint64], starts: NDArray[np.intp]) -> NDArray[np.int64]:
    """[starts] Length of the longest common prefix of values and values[start:].

    Binary search over polynomial prefix hashes modulo 2^64, all starts at once.
    """
    powers = np.ones(len(values), np.uint64)
    np.cumprod(np.full(len(values) - 1, _BASE), out=powers[1:])
    prefix = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * powers, out=prefix[1:])
    low = np.zeros(len(starts), np.int64)
    high = len(values) - starts.astype(np.int64)
    while (low < high).any():
        middle = (low + high + 1) // 2
        equal = prefix[starts + middle] - prefix[starts] == powers[starts] * prefix[middle]
        low = np.where(equal, middle, low)
        high = np.where(equal, high, middle - 1)
    return low
