"""Keeps what ranks print within bounds: of a script that prints without end only the end is of use."""

from __future__ import annotations

import os
import time
from pathlib import Path

LIMIT_BYTES = 16 * 2**20  # of one rank's stdout or stderr
_EVERY_SECONDS = 0.05


class Output:
    """The captured stdout and stderr of a launch's ranks, opened for appending by them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._looked = 0.0
        self.trimmed: set[str] = set()

    def trim(self) -> None:
        """Empties what has grown beyond the limit; looks a few times a second at most."""
        now = time.monotonic()
        if now - self._looked < _EVERY_SECONDS:
            return
        self._looked = now
        for entry in os.scandir(self._directory):
            if entry.name.endswith((".stdout", ".stderr")) and entry.stat().st_size > LIMIT_BYTES:
                os.truncate(entry.path, 0)
                self.trimmed.add(entry.name)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.trimmed:
            return ()
        return (
            f"{len(self.trimmed)} outputs of ranks grew beyond {LIMIT_BYTES >> 20} MiB: only what came later was kept "
            f"({', '.join(sorted(self.trimmed)[:3])})",
        )
