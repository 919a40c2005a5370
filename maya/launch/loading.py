"""What a rank's data loader takes of its workers, and the CPU time in which these make it.

Workers are processes of their own, whose time is in no rank's. Where they need longer for what an iteration takes than
the iteration, the script waits for them. Each batch is a line in a file at once, for a rank may be ended at any moment.
Workers that are not forked (a `multiprocessing_context` of another kind) are not seen.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from maya.launch.layout import rank_path

SUFFIX = ".loading"


def observe(path: Path) -> None:
    """From here on, of this process' loaders with workers."""
    log = _Log(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644))
    module: Any = importlib.import_module("torch.utils.data.dataloader")
    create, iterator = module._DatasetKind.create_fetcher, module._MultiProcessingDataLoaderIter
    make, take = iterator.__init__, iterator._next_data

    @wraps(create)
    def create_fetcher(*arguments: Any) -> Any:
        fetcher = create(*arguments)
        if module.get_worker_info() is not None:
            fetcher.fetch = log.timed(fetcher.fetch)
        return fetcher

    @wraps(make)
    def initialise(self: Any, *arguments: Any) -> None:
        self._maya_number = log.loader = log.loaders = log.loaders + 1
        make(self, *arguments)

    @wraps(take)
    def next_data(self: Any) -> Any:
        data = take(self)
        log.taken(self._maya_number, self._num_workers)
        return data

    module._DatasetKind.create_fetcher = staticmethod(create_fetcher)
    iterator.__init__, iterator._next_data = initialise, next_data


class _Log:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._steps = ctypes.CDLL(None).maya_steps
        self._steps.restype = ctypes.c_uint64
        self.loaders = 0  # so far
        self.loader = 0  # in a worker: its own, for it is forked while that is made

    def taken(self, loader: int, workers: int) -> None:
        self._write("taken", loader, workers, self._steps())

    def timed(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """In a worker: a batch takes from the end of the one before, for that is sent meanwhile."""
        ended: float | None = None

        def fetch_timed(*arguments: Any) -> Any:
            nonlocal ended
            began = time.process_time() if ended is None else ended
            data = fetch(*arguments)
            now = time.process_time()
            self._write("made", self.loader, now - began, ended is None)
            ended = now
            return data

        return fetch_timed

    def _write(self, *line: Any) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def loading_seconds(directory: Path, rank: int, steady: tuple[int, int]) -> float:
    """CPU time that the workers of a rank's loaders need, side by side, for what it took between these steps."""
    path = rank_path(directory, rank).with_suffix(SUFFIX)
    if not path.exists():
        return 0.0
    content = path.read_bytes()
    seconds = defaultdict[int, list[float]](list)  # of each batch, by loader
    warm = defaultdict[int, list[float]](list)  # without each worker's first
    taken = defaultdict[int, float](float)  # batches that each worker made, by loader
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        what, loader, *told = json.loads(line)
        if what == "made":
            (seconds if told[1] else warm)[loader].append(told[0])
        elif steady[0] <= told[1] < steady[1]:
            taken[loader] += 1 / told[0]
    a_batch = {loader: statistics.median(warm[loader] or seconds[loader] or [0.0]) for loader in taken}
    return sum(batches * a_batch[loader] for loader, batches in taken.items())
