"""The store: `traces/KEY/MANIFEST/` has one recorded launch, whole or not there at all.

Writers fill a directory of their own and rename it into place, so that readers and other writers never see half
an entry. Reading one makes it the newest; the oldest go when the store outgrows its limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from maya.cache.key import counts, digest, effective_environment, job_key
from maya.clusters.types import Cluster
from maya.errors import MayaError
from maya.launch.readings import read_readings
from maya.launch.types import Job, OutOfMemory, Run
from maya.trace import read_job, write_job
from maya.trace.format import TraceError
from maya.trace.types import JobTrace

VERSION: Final = 2
_DEFAULT_LIMIT: Final = 4 * 2**30
_AFTER_EVICTION: Final = 0.9  # of the limit, so that not every writer has to evict
_RUN_FIELDS = ("status", "world", "launched", "traceback", "failed_rank", "refused", "notes")


@dataclass(frozen=True)
class Recorded:
    """What an earlier launch of the same work yielded: `trace` when it was traced, else how it ended in `run`."""

    run: Run
    trace: JobTrace | None
    age_s: float  # since it was recorded

    @property
    def note(self) -> str:
        return f"recorded {_ago(self.age_s)} ago and taken from the trace cache: the script did not run"


class TraceCache:
    """Traces by content. Safe for any number of readers and writers; never the reason for a failure."""

    def __init__(self, directory: Path, limit_bytes: int = _DEFAULT_LIMIT) -> None:
        self.directory = directory
        self._entries = directory / "traces"
        self._limit_bytes = limit_bytes

    @classmethod
    def default(cls) -> TraceCache | None:
        """The user's: in $MAYA_CACHE (`off`: none), else ~/.cache/maya; of $MAYA_CACHE_SIZE, else 4 GiB."""
        where = os.environ.get("MAYA_CACHE", "")
        if where == "off":
            return None
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(Path(where) if where else home / "maya", _limit(os.environ.get("MAYA_CACHE_SIZE")))

    def find(self, job: Job, cluster: Cluster) -> Recorded | None:
        """What is recorded of this work and still holds."""
        with contextlib.suppress(OSError, TraceError, ValueError, KeyError):
            environment = effective_environment()
            for entry in _newest_first(self._entries / job_key(job, cluster)):
                manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
                if _holds(manifest, environment):
                    recorded = _read(entry)
                    os.utime(entry)
                    return recorded
        return None

    def keep(self, job: Job, cluster: Cluster, run: Run, trace: JobTrace | None) -> bool:
        """Records a launch; `run.directory` still has what its ranks read. Whether it was worth keeping.

        What could come out otherwise the next time (a time limit, a killed process, a full disk) is not.
        """
        if run.by_chance:
            return False
        try:
            manifest = _manifest(run.directory)
            self._write(self._entries / job_key(job, cluster), manifest, run, trace)
            self._evict()
        except OSError:
            return False  # no room, no permission: the next run records again
        return True

    def _write(self, place: Path, manifest: dict[str, Any], run: Run, trace: JobTrace | None) -> None:
        place.mkdir(parents=True, exist_ok=True)
        text = json.dumps(manifest, sort_keys=True)
        # In the same directory, hence the same file system: a rename is atomic there only.
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self._entries))
        try:
            (partial / "manifest.json").write_text(text, encoding="utf-8")
            (partial / "run.json").write_text(json.dumps(_ended(run)), encoding="utf-8")
            if trace is not None:
                write_job(trace, partial / "trace")
            entry = place / hashlib.sha256(text.encode()).hexdigest()[:32]
            with contextlib.suppress(FileExistsError, OSError):  # another writer came first, with the same
                partial.rename(entry)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _evict(self) -> None:
        """Removes the entries that were used longest ago, down to below the limit."""
        entries = [(path.stat().st_mtime_ns, _size(path), path) for path in self._entries.glob("*/[0-9a-f]*")]
        total = sum(size for _, size, _ in entries)
        if total <= self._limit_bytes:
            return
        for _, size, path in sorted(entries):
            _remove_whole(path, self._entries)
            total -= size
            if total <= _AFTER_EVICTION * self._limit_bytes:
                return


def _newest_first(place: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(place.iterdir(), key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    return []


def _manifest(directory: Path) -> dict[str, Any]:
    """Digests of all that the ranks read; a file that is gone was theirs, made and removed."""
    environment = effective_environment()
    files: dict[str, str] = {}
    variables: dict[str, str | None] = {}
    for kind, name in read_readings(directory):
        if kind == "variable" and counts(name):
            variables[name] = environment.get(name)
        elif kind == "file" and Path(name).is_file() and not Path(name).is_relative_to(directory):
            files[name] = digest(Path(name))
    return {"version": VERSION, "files": files, "variables": variables}


def _holds(manifest: dict[str, Any], environment: dict[str, str]) -> bool:
    if manifest["version"] != VERSION:
        return False
    if any(environment.get(name) != value for name, value in manifest["variables"].items()):
        return False
    return all(_digest_or_none(Path(name)) == known for name, known in manifest["files"].items())


def _digest_or_none(path: Path) -> str | None:
    try:
        return digest(path)
    except OSError:
        return None


def _ended(run: Run) -> dict[str, Any]:
    """How a launch ended; of its representatives only how many there were."""
    ended = {name: getattr(run, name) for name in _RUN_FIELDS}
    return ended | {
        "unique": len(set(run.representative_of)),
        "out_of_memory": asdict(run.out_of_memory) if run.out_of_memory else None,
        "recorded": time.time(),
    }


def _read(entry: Path) -> Recorded:
    ended = json.loads((entry / "run.json").read_text(encoding="utf-8"))
    recorded, unique, oom = ended.pop("recorded"), ended.pop("unique"), ended.pop("out_of_memory")
    run = Run(
        directory=entry,
        # As many distinct ones as there were; who stood for whom is the trace's to say.
        representative_of=tuple(min(rank, unique - 1) for rank in range(ended["world"])),
        out_of_memory=OutOfMemory(**oom) if oom else None,
        **{**ended, "refused": tuple(ended["refused"]), "notes": tuple(ended["notes"])},
    )
    trace = read_job(entry / "trace") if run.status == "traced" else None
    return Recorded(run, trace, max(0.0, time.time() - recorded))


def _remove_whole(entry: Path, beside: Path) -> None:
    """At once for every reader, though a tree is removed file by file."""
    with tempfile.TemporaryDirectory(prefix=".evicted-", dir=beside) as bin_, contextlib.suppress(OSError):
        entry.rename(Path(bin_) / entry.name)


def _size(entry: Path) -> int:
    return sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())


def _limit(text: str | None) -> int:
    """Bytes of `4G`, `500M`; raises MayaError."""
    if not text:
        return _DEFAULT_LIMIT
    match = re.fullmatch(r"(\d+)([KMGT]?)i?B?", text.strip())
    if match is None:
        raise MayaError(f"MAYA_CACHE_SIZE: {text!r} is not a size such as 500M or 4G")
    return int(int(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
