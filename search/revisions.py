"""What was said of trials in the end, by all of their recordings: `together.json`, beside the journal.

A search that is taken up again may find fewer of its traces in the cache, or none. What it knew of them then stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from maya.errors import MayaError
from maya.search.files import replace_file
from maya.search.space import Point
from maya.search.types import Outcome

NAME = "together.json"


@dataclass(frozen=True)
class Revision:
    """`recordings` of the script tell of it: the more, the better."""

    outcome: Outcome
    recordings: int


class Revisions:
    """Of a search in `directory`, by point. Raises MayaError for a damaged file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._of: dict[Point, Revision] = {}
        if self._path.exists():
            self._of = dict(_read(self._path))

    def best(self, point: Point, now: Revision | None) -> Revision | None:
        """What more recordings tell: `now`, or what was said of the point before."""
        before = self._of.get(point)
        if before is None or (now is not None and now.recordings >= before.recordings):
            return now
        return before

    def keep(self, revisions: Mapping[Point, Revision]) -> None:
        """Beside those of other points. Raises OSError where there is no room."""
        both = {**self._of, **revisions}
        if both != self._of:
            entries = [{"point": point, **asdict(revision)} for point, revision in both.items()]
            replace_file(self._path, json.dumps(entries, allow_nan=False).encode() + b"\n")
            self._of = both


def _read(path: Path) -> Iterator[tuple[Point, Revision]]:
    try:
        for entry in json.loads(path.read_bytes()):
            yield tuple(entry["point"]), Revision(Outcome(**entry["outcome"]), entry["recordings"])
    except (ValueError, KeyError, TypeError):
        raise MayaError(
            f"{path}: is damaged; without it trials count as they were judged first: remove it"
        ) from None
