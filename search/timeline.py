"""The best configuration looked at closely: its own page and its Perfetto file, from its recorded trace."""

from __future__ import annotations

from pathlib import Path

from maya.estimate.recordings import ScriptTimes
from maya.search.judging import ScriptJudges
from maya.search.types import Assignment


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
    written = [directory / "best.html", directory / "best.perfetto.json"]
    write_html(judgement.prediction, judgement.trace, judgement.timeline, judgement.estimates, written[0])
    write_perfetto(
        judgement.trace, judgement.timeline, written[1], judgement.estimates, judges.cluster.device
    )
    return written
