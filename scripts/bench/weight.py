"""Peak memory taken from this machine while something runs: for a machine that does nothing else meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERVAL_S = 0.2


class Weight:
    """`peak_bytes` is the most that was taken beyond what was in use at the start.

    Of the whole machine (proc(5), meminfo), where shared pages count once: adding up the PSS of many processes walks
    all their page tables, which takes a good part of a core from what is measured.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._at_start = used_bytes()
        self._stop = threading.Event()

    def watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, used_bytes() - self._at_start)

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


def used_bytes() -> int:
    """What is not available to new processes: neither free nor a cache that could be dropped."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name.rstrip(":"): int(value) for name, value, *_ in lines}
    return (kib["MemTotal"] - kib["MemAvailable"]) * 1024
