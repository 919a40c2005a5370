"""Scripts that start their ranks themselves: each rank of Maya's runs what the process of its number would have run.

They spawn a function (`torch.multiprocessing.spawn`), or are a launcher of scripts over PyTorch's (`torchrun`,
`accelerate launch`).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Literal

from maya.launch.script import is_pythons, run_script

NOTE = "the script spawns its ranks itself: what they would run, those that Maya started run"


class _Joined:
    """In the place of a torch.multiprocessing.ProcessContext: all is done."""

    processes: tuple[Any, ...] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> Literal[True]:
        return True

    def pids(self) -> list[int]:
        return [os.getpid()]


def run_in_place() -> None:
    """From here on what starts as many processes as Maya has on the node starts none."""
    _spawn_in_place()
    _launch_in_place()


def _spawn_in_place() -> None:
    """`torch.multiprocessing.spawn`."""
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
        run_as_process(fn, place, *args)
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


def _launch_in_place() -> None:
    """PyTorch's elastic launcher, and all that is made of it."""
    module: Any = importlib.import_module("torch.distributed.launcher.api")

    def launch_agent(config: Any, entrypoint: Any, args: list[Any], *_: Any, **__: Any) -> dict[int, Any]:
        _check_world(config.nproc_per_node, config.min_nodes, config.max_nodes)
        rank = int(os.environ["RANK"])
        if callable(entrypoint):
            return {rank: run_as_process(entrypoint, *args)}
        script = script_of([str(entrypoint), *map(str, args)])
        if script is None:
            raise RuntimeError(
                f"the script starts {entrypoint} as ranks: Maya runs only scripts of Python's as such"
            )
        run_as_process(run_script, *script)
        return {rank: None}

    module.launch_agent = launch_agent


def _check_world(on_node: int, fewest: int, most: int) -> None:
    node, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if on_node != node or not fewest * node <= world <= most * node:
        raise RuntimeError(
            f"the script starts {on_node} processes on each of {most} nodes where Maya has started {node} on each of "
            f"{world // node}: if they are to be all ranks, ask for --gpus {on_node * most}"
        )


def script_of(command: list[str]) -> tuple[str, list[str], bool] | None:
    """Of a command that starts Python, or a program of Python's: the script or module, its arguments, and whether it is
    a module. None for any other command, and for one that gives Python its text."""
    program, *rest = command
    if not Path(program).name.startswith("python"):
        file = shutil.which(program)
        return (file, rest, False) if file and is_pythons(file) else None
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        del rest[: 1 + (rest[0] in ("-W", "-X"))]  # -u, and the like; those two have a value
    is_module = rest[:1] == ["-m"]
    name, *argv = rest[is_module:] or ["-"]
    return None if name.startswith("-") else (name, argv, is_module)


def run_as_process(run: Callable[..., Any], *arguments: Any) -> Any:
    ctypes.CDLL(None).maya_note(NOTE.encode())
    try:
        return run(*arguments)
    except SystemExit as leave:  # as that process would have, not the script
        if leave.code not in (None, 0):
            raise
        return None
