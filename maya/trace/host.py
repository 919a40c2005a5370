"""What a call costs the host when nothing disturbs it: the like calls of all iterations and ranks tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Other processes of this machine only ever add to a call's time: caches gone cold, a core shared, its other thread
# busy. The low end of many like calls is what they cost alone.
_UNDISTURBED = 0.1
_ENOUGH = 8  # calls alike; of fewer, each keeps its own time
_SAMPLES = 4_000_000  # calls looked at, spread evenly over ranks; more tell nothing new
_STRIDE = np.int64(0x9E3779B97F4A7C15 - (1 << 64))


def calls_alike(kind: NDArray[np.integer], operation: NDArray[np.integer]) -> NDArray[np.int64]:
    """[records] What equals for calls of the same kind and operation after the same kind and operation: the host's
    time before them is that of the same Python."""
    own = operation.astype(np.int64) * 64 + kind
    before = np.concatenate([[-1], own[:-1]]) if len(own) else own
    with np.errstate(over="ignore"):
        alike: NDArray[np.int64] = own * _STRIDE ^ before
    return alike


@dataclass(frozen=True)
class UndisturbedTimes:
    """The lowest tenth's host time of calls that are alike."""

    alike: NDArray[np.int64]  # [kinds] ascending
    host_ns: NDArray[np.int64]  # [kinds]

    @staticmethod
    def of(samples: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> UndisturbedTimes:
        """From (alike, host_ns), both [records], of any number of ranks and iterations."""
        share = _SAMPLES // max(len(samples), 1)
        alike = np.concatenate([kinds[-share:] for kinds, _ in samples])
        host_ns = np.concatenate([times[-share:] for _, times in samples]).astype(np.int64)
        order = np.lexsort((host_ns, alike))
        kinds, first, count = np.unique(alike[order], return_index=True, return_counts=True)
        low = host_ns[order][first + (_UNDISTURBED * (count - 1)).astype(np.int64)]
        known = count >= _ENOUGH
        return UndisturbedTimes(kinds[known], low[known])

    def applied(self, alike: NDArray[np.int64], host_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """[records] `host_ns`, where known what their like cost undisturbed."""
        if not len(self.alike):
            return host_ns
        place = np.searchsorted(self.alike, alike).clip(max=len(self.alike) - 1)
        known = self.alike[place] == alike
        result: NDArray[np.int64] = np.where(known, self.host_ns[place], host_ns).astype(host_ns.dtype)
        return result
