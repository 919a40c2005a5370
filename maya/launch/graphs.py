"""CUDA graphs that a script has yet to capture: its eager iterations repeat, too, and are not those to predict."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from maya.launch.layout import FLAG_GRAPH, rank_path
from maya.launch.observed import recorded
from maya.launch.types import Job

# Optimizer steps within which a script that speaks of graphs replays one. PyTorch asks for eleven iterations before a
# capture with DDP.
GRAPH_STEPS = 20
_GRAPHS = re.compile(r"\bCUDAGraph\b|\bcuda\.graph\(|\bmake_graphed_callables\b")


# Megatron-LM's --cuda-graph-impl and the like, whose graphs a package makes.
_ARGUMENT = re.compile(r"--(?!no-|disable-)(.*[-_])?cuda[-_]?graphs?([-_=].*)?", re.IGNORECASE)
_NOT_ASKED = {"none", "false", "off", "0"}


def speaks_of_graphs(job: Job) -> str | None:
    """Where a script speaks of CUDA graphs: "line 7", the first of its own text that makes one, or "argument
    --cuda-graph-impl"; None: nowhere."""
    if (line := _line(job)) is not None:
        return f"line {line}"
    for word, value in _arguments(job):
        if _ARGUMENT.fullmatch(word) and value.lower() not in _NOT_ASKED:
            return f"argument {word.partition('=')[0]}"
    return None


def _arguments(job: Job) -> Iterable[tuple[str, str]]:
    """Each argument and what follows it."""
    return ((word, word.partition("=")[2] or after) for word, after in pairwise((*job.argv, "")))


def _line(job: Job) -> int | None:
    path = _source(job)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path else []
    except OSError:
        return None
    return next((at for at, line in enumerate(lines, 1) if _GRAPHS.search(line.partition("#")[0])), None)


def replayed(directory: Path, ranks: Iterable[int]) -> bool:
    """Whether one of the ranks has replayed a graph so far."""
    return any((recorded(rank_path(directory, rank))["flags"] & FLAG_GRAPH).any() for rank in ranks)


def _source(job: Job) -> Path | None:
    """Of a module only where it lies in the working directory: to look it up elsewhere would import its package."""
    if not job.module:
        return Path(job.script)
    place = Path(*job.script.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__main__.py") if path.exists()), None)
