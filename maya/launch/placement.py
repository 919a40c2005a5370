"""Which core each rank is pinned to. A rank's host time is measured, so it must not wander between cores."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path


class Placement:
    """Keeps the ranks at work evenly spread over `cores`. Ranks that do more than others, or stand for them, are often
    multiples of a power of two, so these too are spread: by the sum of a rank's binary digits."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        self._cores = cores
        self._core_of: dict[int, int] = {}

    def place(self, rank: int, working: Iterable[int]) -> int:
        """The core for a new rank: the one with the fewest of the ranks that work."""
        load = Counter(self._core_of[other] for other in working if other in self._core_of)
        return self._on_least(rank, load)

    def spread(self, processes: Mapping[int, int]) -> None:
        """Shares the cores out anew among ranks, given with their process ids; few change theirs."""
        most = -(-len(processes) // len(self._cores))
        load: Counter[int] = Counter()
        moving = []
        for rank in sorted(processes):
            core = self._core_of.get(rank)
            if core is None or load[core] == most:
                moving.append(rank)
            else:
                load[core] += 1
        for rank in moving:
            core = self._on_least(rank, load)
            load[core] += 1
            _pin(processes[rank], core)

    def _on_least(self, rank: int, load: Counter[int]) -> int:
        count = len(self._cores)
        order = [self._cores[(rank.bit_count() + turn) % count] for turn in range(count)]
        core = min(order, key=lambda core: load[core])
        self._core_of[rank] = core
        return core


def _pin(process: int, core: int) -> None:
    """Pins all threads of a process: affinity is each thread's own (sched_setaffinity(2))."""
    try:
        threads = [int(entry.name) for entry in Path(f"/proc/{process}/task").iterdir()]
    except FileNotFoundError:
        return  # it has ended
    for thread in threads:
        try:
            os.sched_setaffinity(thread, {core})
        except ProcessLookupError:
            continue
