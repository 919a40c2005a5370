"""CUDA graphs that a script has yet to capture: its eager iterations repeat, too, and are not those to predict."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from maya.launch.layout import FLAG_GRAPH, rank_path
from maya.launch.observed import recorded
from maya.launch.types import Job

# Optimizer steps within which a script that speaks of graphs replays one. PyTorch asks for eleven iterations before a
# capture with DDP.
GRAPH_STEPS = 20
_GRAPHS = re.compile(r"\bCUDAGraph\b|\bcuda\.graph\(|\bmake_graphed_callables\b")


def speaks_of_graphs(job: Job) -> int | None:
    """The first line of the script itself that makes a CUDA graph, counted from 1; None: none does."""
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
