"""Keeps what was recorded of a job, so that it can be judged again without being run again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maya import __version__
from maya.trace import read_job, write_job
from maya.trace.types import JobTrace
from maya.validate.mapping import Mapped


@dataclass(frozen=True)
class Unjudged:
    """A job that left nothing to simulate."""

    verdict: str
    message: str


class TraceStore:
    """A directory with one folder a job, named after all that its trace depends on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, mapped: Mapped, examples: Path) -> bool:
        return self._folder(mapped, examples).exists()

    def read(self, mapped: Mapped, examples: Path) -> JobTrace | Unjudged | None:
        """What is kept of that job; None when it was never run. Raises TraceError when it is damaged."""
        folder = self._folder(mapped, examples)
        if (folder / "job.json").exists():
            return read_job(folder)
        if (folder / "unjudged.json").exists():
            kept = json.loads((folder / "unjudged.json").read_text(encoding="utf-8"))
            return Unjudged(kept["verdict"], kept["message"])
        return None

    def keep(self, mapped: Mapped, examples: Path, left: JobTrace | Unjudged) -> None:
        """What failed is not, as other libraries or another launch may not: it is run again when its line is."""
        if isinstance(left, JobTrace):
            self._write(self._folder(mapped, examples), lambda folder: write_job(left, folder))
            return
        if left.verdict == "FAILED":
            return
        text = json.dumps(dataclasses.asdict(left))
        self._write(
            self._folder(mapped, examples),
            lambda folder: (folder / "unjudged.json").write_text(text, encoding="utf-8"),
        )

    def _write(self, folder: Path, write: Callable[[Path], object]) -> None:
        """Whole or not at all: written beside and moved into place."""
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self._directory))
        write(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(temporary)

    def _folder(self, mapped: Mapped, examples: Path) -> Path:
        return self._directory / job_key(mapped, examples)


def job_key(mapped: Mapped, examples: Path) -> str:
    """The job's content address: script, arguments, world, and the device as the script sees it."""
    device = mapped.cluster.device
    seen: dict[str, Any] = {
        "version": __version__,
        "script": _sources(examples / mapped.script),
        "name": mapped.script,
        "argv": mapped.argv,
        "world": mapped.world,
        "environment": mapped.environment,
        "gpus_per_node": mapped.cluster.node.gpus,
        "device": [device.name, device.compute_capability, device.multiprocessors, device.memory_bytes],
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:24]


def _sources(script: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(script.parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
