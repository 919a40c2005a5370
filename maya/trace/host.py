"""What a call costs the host when nothing disturbs it: the like calls of an iteration tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Other processes of this machine only ever add to a call's time: caches gone cold, a core shared. The low end of many
# like calls is what they cost alone; measured beside 20 busy processes, a tenth keeps it within a fifth of that.
_UNDISTURBED = 0.1
_ENOUGH = 8  # calls alike; of fewer, each keeps its own time


def undisturbed(host_ns: NDArray[np.int64], *alike: NDArray[np.integer]) -> NDArray[np.int64]:
    """[records] `host_ns` where calls with equal `alike` (columns of [records]) share their lowest tenth's time.

    A call is like another when it is the same operation after the same operation: the host's time before it is that
    of the same Python.
    """
    if not len(host_ns):
        return host_ns
    columns = [column.astype(np.int64) for column in alike]
    before = [np.concatenate([[-1], column[:-1]]) for column in columns]
    keys = np.stack([*columns, *before], axis=1)
    _, kind, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    order = np.lexsort((host_ns, kind))
    first = np.concatenate([[0], np.cumsum(count)[:-1]])
    low = host_ns[order][first + (_UNDISTURBED * (count - 1)).astype(np.int64)]
    return np.where(count[kind] >= _ENOUGH, low[kind], host_ns).astype(host_ns.dtype)
