"""What a recorded trace depends on, before its ranks have read anything."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from maya import __version__
from maya.clusters.types import Cluster
from maya.launch.device import steering_facts
from maya.launch.environment import LAUNCH_DEFAULTS, LAUNCH_VARIABLES, emulator_library, installed_torch
from maya.launch.types import Job

LARGE = 64 * 2**20  # bytes; larger files are told apart by size and time

# Native libraries read these without Python: part of every key, set or not.
_NATIVE = (
    "CUBLAS", "CUDA_", "CUDNN", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_", "MKL_", "NCCL_", "NVTE_",
    "NVIDIA_", "OMP_", "PYTHON", "PYTORCH_", "TORCH", "TRITON_",
)  # fmt: skip
# What a terminal, a shell, a test runner or Ray sets for its own use.
_VOLATILE = (
    "BASH", "COLORTERM", "COLUMNS", "CONDA_PROMPT", "DBUS_", "DISPLAY", "HISTFILE", "INVOCATION_ID", "JOURNAL_STREAM",
    "LINES", "LS_COLORS", "MAYA_", "OLDPWD", "PS1", "PWD", "PYTEST_", "PYTHONBREAKPOINT",
    "PL_DISABLE_FORK", "RAY_", "SHLVL", "SSH_", "SPT_NOENV", "TERM", "TMUX",
    "TUNE_", "VIRTUAL_ENV", "WINDOWID", "XDG_SESSION", "_",
)  # fmt: skip


def job_key(job: Job, cluster: Cluster) -> str:
    """SHA-256, as hexadecimal digits, of all that is known before `job` runs. Raises OSError: no such script."""
    asked = {name: value for name, value in asdict(job).items() if name not in ("script", "timeout_s")}
    facts = {
        "job": asked,
        "script": None if job.module else digest(Path(job.script)),
        "path": job.script if job.module else str(Path(job.script).absolute()),
        "directory": str(Path.cwd()),
        "device": {**steering_facts(cluster), "gpus_per_node": cluster.node.gpus},
        "environment": {
            name: value for name, value in effective_environment().items() if name.startswith(_NATIVE)
        },
        "software": software(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def effective_environment() -> dict[str, str]:
    """The variables that a rank inherits from its user, whoever starts it: a shell, or a worker of Ray."""
    inherited = {**LAUNCH_DEFAULTS, **os.environ}
    return {
        name: value
        for name, value in inherited.items()
        if name not in LAUNCH_VARIABLES and not name.startswith(_VOLATILE)
    }


def counts(variable: str) -> bool:
    """Whether a variable that a rank read says anything about its work."""
    return variable not in LAUNCH_VARIABLES and not variable.startswith(_VOLATILE)


@functools.cache
def software() -> dict[str, Any]:
    """Python, PyTorch, Maya as it is installed, and every other installed distribution with its version."""
    torch = installed_torch()
    return {
        "python": sys.version,
        "torch": torch.version if torch else None,
        "maya": __version__,
        "recorder": _recorder_digest(),
        "distributions": sorted(set(_distributions())),
    }


def _recorder_digest() -> str:
    """Of the code that launches and collates: a checkout changes without its version."""
    sources = [emulator_library()]
    for room in ("launch", "trace"):
        for kind in ("*.py", "*.json"):
            sources += sorted(Path(str(files(f"maya.{room}"))).glob(kind))
    return hashlib.sha256("".join(digest(path) for path in sources).encode()).hexdigest()


def _distributions() -> Iterator[str]:
    for directory in sys.path:  # a worker of Ray has more on it: packages that Ray carries with it
        if directory.endswith(("site-packages", "dist-packages")) and Path(directory).is_dir():
            yield from (path.name for path in Path(directory).glob("*-info"))


def digest(path: Path) -> str:
    """SHA-256 of a file's content; of a large one, its size and when it was last changed. Raises OSError."""
    status = path.stat()
    if status.st_size > LARGE:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()
