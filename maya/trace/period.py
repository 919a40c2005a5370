"""Finds the steady iteration in a stream of record signatures, for scripts without optimizer steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CUTS = 8  # a run of calls that repeat is looked for at so many places of the stream
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


def find_repetition(
    signatures: NDArray[np.uint64], answered: NDArray[np.bool_], worked: NDArray[np.bool_]
) -> tuple[int, int, int] | None:
    """(start, length, end) of the iteration that the stream repeats, and where it stops; None when there is none.

    What repeats at the tail may be a small thing after a loop: what an evaluation makes of its metrics, the losses that
    a script prints. So a run before it counts that covers twice as much, where the device answers the host (`answered`
    [records]) in each round. Layers of a single pass repeat too, as do the parameters that a script loads, and those
    answer nothing. Nor are answers alone an iteration, as of a script that saves what it has: the device does something
    else in each (`worked`).
    """
    found = []
    for cut in range(_CUTS, 0, -1):
        run = _run_through(signatures, len(signatures) * cut // _CUTS)
        if run is None:
            continue
        round_ = slice(run[0], run[0] + run[1])
        if worked[round_].any() and (cut == _CUTS or answered[round_].any()):
            found.append(run)
    most = max((end - start for start, _, end in found), default=0)
    return next((run for run in found if 2 * (run[2] - run[0]) >= most), None)


def _run_through(signatures: NDArray[np.uint64], place: int) -> tuple[int, int, int] | None:
    """(start, length, end) of what repeats before `place`, to where it stops after it."""
    period = find_period(signatures[:place])
    if period is None:
        return None
    start, length = period
    goes_on = signatures[place:] == signatures[place - length : len(signatures) - length]
    return start, length, place + (len(goes_on) if goes_on.all() else int(np.argmin(goes_on)))


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
