"""Scripts that spawn their ranks themselves: each rank of Maya's runs what the process of its number would have run."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal

NOTE = "the script spawns its ranks itself: what they would run, those that Maya started run"


class _Joined:
    """In the place of a torch.multiprocessing.ProcessContext: all is done."""

    processes: tuple[Any, ...] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> Literal[True]:
        return True

    def pids(self) -> list[int]:
        return [os.getpid()]


def run_in_place() -> None:
    """From here on `torch.multiprocessing.spawn` of as many processes as Maya started on the node starts none."""
    place, node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    package: Any = importlib.import_module("torch.multiprocessing")
    module: Any = importlib.import_module("torch.multiprocessing.spawn")
    original: Callable[..., Any] = module.start_processes

    @wraps(original)
    def start_processes(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if nprocs != node:
            return _spawn(original, nprocs, node, fn, args, nprocs, join, *rest, **options)
        ctypes.CDLL(None).maya_note(NOTE.encode())
        try:
            fn(place, *args)
        except SystemExit as leave:  # as that process would have, not the script
            if leave.code not in (None, 0):
                raise
        return None if join else _Joined()

    module.start_processes = package.start_processes = start_processes


def _spawn(original: Callable[..., Any], nprocs: int, node: int, *arguments: Any, **options: Any) -> Any:
    """Processes that are none of Maya's ranks. They may work for a rank on the host; its device they do not have."""
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # nor do they meet where the ranks do
    try:
        return original(*arguments, **options)
    except Exception as error:
        raise RuntimeError(
            f"the script spawns {nprocs} processes where Maya has started {node} on a node: if they are to be the "
            f"ranks of one node, ask for --gpus {nprocs}"
        ) from error
