"""Peak memory of this process and all it starts, watched while something runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Reading it walks the page tables of every process: at most this share of the time.
INTERVAL_S = 2.0
SHARE = 0.02


class Weight:
    """`peak_bytes` is the highest sum of PSS (proc(5), smaps_rollup) seen so far: shared pages count once."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()

    def watch(self) -> None:
        interval = INTERVAL_S
        while not self._stop.wait(interval):
            began = time.perf_counter()
            self.peak_bytes = max(self.peak_bytes, sum(pss_bytes(pid) for pid in family(os.getpid())))
            interval = max(INTERVAL_S, (time.perf_counter() - began) / SHARE)

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def weighed() -> Iterator[Weight]:
    weight = Weight()
    thread = threading.Thread(target=weight.watch, daemon=True)
    thread.start()
    try:
        yield weight
    finally:
        weight.stop()
        thread.join()


def family(root: int) -> set[int]:
    """A process and all its living descendants."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {root}
    while grown := {pid for pid, above in parent.items() if above in found} - found:
        found |= grown
    return found


def pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
