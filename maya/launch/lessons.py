"""What the jobs of one run told of their script: kept in a file, for all of its workers and for when it is taken up
again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from maya import __version__
from maya.launch.roles import Role
from maya.launch.types import Job

FILE = "lessons.jsonl"


@dataclass(frozen=True)
class Lesson:
    """What one job told of its script; None where it was not to be seen."""

    script: str
    steady: bool | None = None  # it repeated from its second iteration on
    telling: bool | None = None  # first iterations told which ranks work alike, and every check agreed
    alike_along: tuple[tuple[Role, bool], ...] = ()
    knew: bool = False  # axes along which all ranks are alike, when it began
    missed: frozenset[Role] = frozenset()  # axes whose other ranks it turned out to need

    def to_json(self) -> str:
        along = [[*_plain(role), alike] for role, alike in self.alike_along]
        missed = [_plain(role) for role in self.missed]
        return json.dumps([self.script, self.steady, self.telling, along, self.knew, missed])

    @staticmethod
    def from_json(line: str) -> Lesson:
        """Raises ValueError for what is no lesson."""
        try:
            script, steady, telling, along, knew, missed = json.loads(line)
            axes = tuple((_role(*role), bool(alike)) for *role, alike in along)
            return Lesson(
                str(script), steady, telling, axes, bool(knew), frozenset(_role(*each) for each in missed)
            )
        except TypeError as error:
            raise ValueError(f"no lesson: {line!r}") from error


class Lessons:
    """Those of one run, of this worker alone where it has no `path` or is on a machine without the run's folder."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path if path is not None and path.parent.is_dir() else None
        self._read = 0  # bytes
        self._own: list[Lesson] = []

    def add(self, lesson: Lesson) -> None:
        if self._path is None:
            self._own.append(lesson)
            return
        # One write to the end of it, so that workers' lines do not mix.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{lesson.to_json()}\n".encode())
        finally:
            os.close(descriptor)

    def new(self) -> Iterator[Lesson]:
        """What has come since the last call. A line that a killed worker left half written is none."""
        if self._path is None:
            yield from self._own
            self._own = []
        elif self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                try:
                    yield Lesson.from_json(line.decode())
                except ValueError:
                    continue


def identity(job: Job) -> str:
    """Of the script as it is now, and this Maya: a run may be taken up again after a change."""
    file = Path(job.script)
    content = file.read_bytes() if not job.module and file.is_file() else b""
    told = (__version__.encode(), job.script.encode(), bytes([job.module]), content)
    return hashlib.sha256(b"\0".join(told)).hexdigest()[:24]


def _plain(role: Role) -> tuple[list[int], int, list[str]]:
    return list(role.families), role.made, sorted(role.collectives)


def _role(families: list[int], made: int, collectives: list[str]) -> Role:
    return Role(tuple(families), made, frozenset(collectives))
