"""The experiment's memory: one JSON object a line, appended and synced before anyone acts on it.

The first line is a header (what is searched, and how); each other line one trial, or the header of a search that
went on and was given something else. A kill can tear only the last line, which `resume` cuts off. The file is locked
while a search writes it, and by nothing once it is dead.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from maya.errors import MayaError
from maya.search.revisions import Revisions
from maya.search.space import Point
from maya.search.types import Outcome, Trial

NAME = "journal.jsonl"


class JournalError(MayaError):
    """A journal that cannot be used: another search's, in use, or damaged before its last line."""


class Journal:
    """An open journal: its last `header` and the `outcomes` that were in it when it was opened. A trial that failed by
    chance is not among them: it is run again, and recorded again.
    """

    def __init__(self, path: Path, descriptor: int, lines: list[dict[str, Any]]) -> None:
        self.path = path
        self._descriptor = descriptor
        self.header: dict[str, Any] = {}
        self.outcomes: dict[Point, Outcome] = {}
        self.revisions = Revisions(path.parent)
        self._recorded: set[Point] = set()
        self._opened = time.monotonic()
        self._earlier_s = max((line.get("elapsed_s", 0.0) for line in lines), default=0.0)
        for line in lines:
            if _is_header(line):
                self.header = line
            else:
                self._remember(line)

    def _remember(self, line: Mapping[str, Any]) -> None:
        point = tuple(line["point"])
        if line["verdict"] != "PRUNED":
            outcome = Outcome(line["verdict"], line["prediction"], line["wall_s"])
            if outcome.by_chance:
                return
            self.outcomes[point] = outcome
        self._recorded.add(point)

    @classmethod
    def create(cls, directory: Path, header: Mapping[str, Any]) -> Self:
        """A new journal in `directory`. Raises JournalError when it holds one, or is no directory."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise JournalError(f"{directory} cannot be made: a file is in its place") from None
        path = directory / NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise JournalError(
                f"{directory} already holds a search; --resume {directory} continues it"
            ) from None
        _lock(descriptor, path)
        journal = cls(path, descriptor, [dict(header)])
        journal._append(journal.header)
        _sync_directory(directory)
        return journal

    @classmethod
    def resume(cls, directory: Path) -> Self:
        """The journal of an earlier search, its torn last line cut off. Raises JournalError."""
        path = directory / NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise JournalError(f"{directory} holds no search to resume: {error.strerror}") from None
        _lock(descriptor, path)
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = _parse(path, content[:whole])
        if not lines:
            os.close(descriptor)
            raise JournalError(f"{path} ends before its header; start anew")
        os.ftruncate(descriptor, whole)
        return cls(path, descriptor, lines)

    def amend(self, header: Mapping[str, Any]) -> None:
        """What the search is about from now on, where that is not what the journal says."""
        now = json.loads(json.dumps(header))
        if now != self.header:
            self._append(now)
            self.header = now

    def record(self, trial: Trial) -> None:
        """Make a settled trial durable. A trial that is on record already is left as it is."""
        if trial.point in self._recorded:
            return
        self._recorded.add(trial.point)
        self._append(_entry(trial) | {"elapsed_s": round(self.elapsed_s, 3)})

    @property
    def elapsed_s(self) -> float:
        """How long the search has been running, earlier parts of it up to their last trial included."""
        return self._earlier_s + time.monotonic() - self._opened

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        end = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, line) < len(line):
                raise OSError(f"{self.path}: the disk is full")
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, end)  # half a line would hide every later one
            raise


def read_journal(directory: Path) -> list[dict[str, Any]]:
    """The trials on record in `directory`, whose search may be running. Raises JournalError."""
    path = directory / NAME
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{directory} holds no search: {error.strerror}") from None
    lines = _parse(path, content[: content.rfind(b"\n") + 1])
    return [line for line in lines if not _is_header(line)]


def _is_header(line: Mapping[str, Any]) -> bool:
    return "point" not in line


def _entry(trial: Trial) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "trial": trial.number,
        "point": trial.point,
        "configuration": trial.configuration,
        "verdict": trial.verdict,
    }
    if trial.pruning:
        entry |= {"by": trial.pruning.by, "rules": trial.pruning.rules, "implies": trial.pruning.implies}
    elif trial.outcome:
        entry |= {"prediction": trial.outcome.prediction, "wall_s": round(trial.outcome.wall_s, 3)}
    return entry


def _parse(path: Path, content: bytes) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise JournalError(f"{path}:{number}: is damaged; it cannot be resumed") from None
    return lines


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise JournalError(f"{path} is in use by a running search") from None


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
