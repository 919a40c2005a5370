"""The best configuration looked at closely: its own page and its Perfetto file, from its recorded trace."""

from __future__ import annotations

import json
from pathlib import Path

from maya.estimate.recordings import ScriptTimes
from maya.search.judging import ScriptJudges
from maya.search.types import Assignment, Trial

_NAMES = ("best.html", "best.perfetto.json")


def earlier_timeline(best: Trial, directory: Path) -> list[Path]:
    """The files of an earlier part of the search where they show `best` as it is predicted now; else they are removed.

    To be asked before best.json is written: it says what they show.
    """
    files = [directory / name for name in _NAMES]
    if _shown(directory) == (best.configuration, best.outcome and best.outcome.prediction):
        return [file for file in files if file.exists()]
    remove_timeline(directory)
    return []


def remove_timeline(directory: Path) -> None:
    for name in _NAMES:
        (directory / name).unlink(missing_ok=True)


def _shown(directory: Path) -> tuple[object, object] | None:
    try:
        shown = json.loads((directory / "best.json").read_bytes())
        return shown["configuration"], shown["prediction"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_timeline(
    judges: ScriptJudges, best: Assignment, script: ScriptTimes | None, directory: Path
) -> list[Path]:
    """`best.html` and `best.perfetto.json`; nothing where the trace is not in the cache (any more)."""
    from maya.report import write_html, write_perfetto

    try:
        judgement = judges.judgement(best, script)
    except LookupError:
        return []
    assert judgement.trace and judgement.timeline and judgement.estimates
    written = [directory / name for name in _NAMES]
    write_html(judgement.prediction, judgement.trace, judgement.timeline, judgement.estimates, written[0])
    write_perfetto(
        judgement.trace, judgement.timeline, written[1], judgement.estimates, judges.cluster.device
    )
    return written
