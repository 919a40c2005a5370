"""Where a rank's script is: asked of the ranks of a job that comes to nothing."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from maya.launch.layout import rank_path

SUFFIX = ".stack"
_ANSWER_SECONDS = 0.5
_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<function>.*)')
_HOMES = tuple(
    dict.fromkeys(
        sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib", "stdlib", "platstdlib")
    )
)
_kept: list[TextIO] = []  # faulthandler holds the descriptor only


def answer(path: Path) -> None:
    """From here on this process writes to `path` where its main thread is, at a signal, whatever it does."""
    _kept.append(path.open("w"))
    faulthandler.register(signal.SIGUSR2, _kept[-1], all_threads=False)


def ask(directory: Path, pids: Mapping[int, int]) -> dict[int, str]:
    """ "train.py:12 (main), in torch/nn/modules/linear.py:134 (forward)" of those ranks that answer."""
    for pid in pids.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
    paths = {rank: rank_path(directory, rank).with_suffix(SUFFIX) for rank in pids}
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline and not all(map(_has_answered, paths.values())):
        time.sleep(0.01)
    return {
        rank: place for rank, path in paths.items() if path.exists() and (place := _place(path.read_text()))
    }


def _has_answered(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _place(stack: str) -> str:
    """The innermost frame of the script's own, and the innermost of all where that is a library's."""
    frames = [found.groupdict() for found in map(_FRAME.fullmatch, stack.splitlines()) if found]
    own = next((frame for frame in frames if not frame["path"].startswith((*_HOMES, "<"))), None)
    shown = [own, frames[0]] if own and own is not frames[0] else frames[:1]
    return ", in ".join(f"{_short(f['path'])}:{f['line']} ({f['function']})" for f in shown)


def _short(path: str) -> str:
    home = next((home for home in sorted(_HOMES, key=len, reverse=True) if path.startswith(home)), None)
    return path.removeprefix(home) if home else Path(path).name
