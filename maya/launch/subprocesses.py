"""Scripts that start scripts as processes of their own: a launcher for one device, or of a process for each.

A rank that has computed nothing on its device yet, and waits for such a process to end, runs the script itself. So does
one that would become that process (`os.exec`), and a launcher's rank what the launcher means for a rank of its number;
what it means for others, their own ranks run. Any other process is started, and what it does with a device is not
recorded.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

from maya.launch.imports import imports_torch
from maya.launch.script import run_script
from maya.launch.spawned import run_as_process, script_of

# What tells processes which of a job's they are, and where they meet: a launcher sets it.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# In which a launcher has begun to wait for a process; a server that nobody waits for must start some time.
PATIENCE_SECONDS = 3.0

_PARAMETERS = inspect.signature(subprocess.Popen.__init__)


@dataclass(frozen=True)
class _Script:
    """What a process would run, and in what place."""

    name: str
    argv: list[str]
    is_module: bool
    environment: dict[str, str]
    folder: str
    launched: bool  # as a rank, by a launcher
    of_this_rank: bool

    def run(self) -> None:
        with _in_place(self):
            run_as_process(run_script, self.name, self.argv, self.is_module)


def run_in_place() -> None:
    """From here on the rank runs itself what it can of the scripts that it would start a process for, or become."""
    _start_in_place()
    _become_in_place()


def _start_in_place() -> None:
    """`subprocess`."""

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        """Waits, as long as it has a `_script`, to be told by what is asked of it whether it is to be started."""

        _script: _Script | None = None
        _started = False

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._start = partial(super().__init__, *arguments, **options)
            self._decides = threading.RLock()  # what becomes of the script
            self._script = _script_for_a_rank(*arguments, **options)
            if self._script is None:
                self._begin()
                return
            self.args, self.pid = options.get("args") or arguments[0], os.getpid()
            self.returncode = None
            self.stdin = self.stdout = self.stderr = None
            if not self._script.launched:
                timer = threading.Timer(PATIENCE_SECONDS, self._go_on, [False])
                timer.daemon = True
                timer.start()

        def wait(self, timeout: float | None = None) -> int:
            self._go_on(awaited=timeout is None)
            return super().wait(timeout)

        def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
            self._go_on(awaited=timeout is None)
            return super().communicate(input, timeout) if self._started else (None, None)

        def poll(self) -> int | None:
            self._go_on(awaited=False)
            return super().poll()

        def send_signal(self, sig: int) -> None:
            with self._decides:
                ended, self._script = self._script is not None, None
            if ended:
                self.returncode = -sig
            else:
                super().send_signal(sig)

        def _go_on(self, awaited: bool) -> None:
            """Runs the script here, or starts its process, unless that has been done."""
            with self._decides:
                script, self._script = self._script, None
                if script and not awaited and not script.launched:
                    self._begin()
            if script and not self._started:
                if script.of_this_rank:
                    script.run()
                self.returncode = 0

        def _begin(self) -> None:
            self._started = True
            self._start()

    subprocess.Popen = Popen  # type: ignore[misc]


def _become_in_place() -> None:
    """`os.exec`: all of them end in one of these. The one that searches the PATH would go on where a script lacks a
    file."""
    rank = os.getpid()

    def become(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def replace(file: Any, args: Sequence[Any], env: Mapping[Any, Any] | None = None) -> Any:
            script = _script_to_become(file, args, env) if os.getpid() == rank else None
            if script is None:
                return original(file, args) if env is None else original(file, args, env)
            script.run()
            sys.exit()

        return replace

    module: Any = os
    module._execvpe = become(module._execvpe)
    os.execv, os.execve = become(os.execv), become(os.execve)


def _script_to_become(file: Any, args: Sequence[Any], env: Mapping[Any, Any] | None) -> _Script | None:
    environment = _decoded(os.environ if env is None else env)
    program = shutil.which(os.fsdecode(file), path=environment.get("PATH"))
    script = program and script_of([program, *map(os.fsdecode, args[1:])])
    if not script or _has_device_memory():
        return None
    return _Script(*script, environment, str(Path.cwd()), launched=True, of_this_rank=True)


def _decoded(environment: Mapping[Any, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def _script_for_a_rank(*arguments: Any, **options: Any) -> _Script | None:
    """What that process would run, where it may be a rank; None where it is to be started."""
    given = _PARAMETERS.bind(None, *arguments, **options).arguments
    command = given["args"]
    pipes = subprocess.PIPE in (given.get("stdin"), given.get("stdout"), given.get("stderr"))
    if (
        pipes
        or given.get("shell")
        or given.get("preexec_fn")
        or isinstance(command, str | bytes | os.PathLike)
    ):
        return None
    script = script_of([os.fsdecode(part) for part in command])
    if script is None or _has_device_memory():
        return None
    folder = os.fsdecode(given.get("cwd") or Path.cwd())
    name, argv, is_module = script
    environment = _decoded(given.get("env") or os.environ)
    launched = any(environment.get(name) != os.environ.get(name) for name in RANK_VARIABLES)
    if not launched and not imports_torch(name, is_module, Path(folder)):
        return None
    return _Script(name, argv, is_module, environment, folder, launched, _is_of_this_rank(environment))


def _has_device_memory() -> bool:
    """Whether this rank may have computed something. Packages ask about their device while they are imported."""
    cuda = sys.modules["torch"].cuda
    return cuda.is_initialized() and any(map(cuda.memory_reserved, range(cuda.device_count())))


def _is_of_this_rank(environment: Mapping[str, str]) -> bool:
    return all(environment.get(name) == os.environ.get(name) for name in ("RANK", "LOCAL_RANK"))


@contextmanager
def _in_place(script: _Script) -> Iterator[None]:
    """Within, what a process has of its own is as that of the script's would be."""
    environment, folder = dict(os.environ), Path.cwd()
    argv, path, main = sys.argv, sys.path.copy(), sys.modules["__main__"]
    _set_environment(script.environment)
    os.chdir(script.folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main
        os.chdir(folder)
        _set_environment(environment)


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
