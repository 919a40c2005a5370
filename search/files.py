"""Files that a search replaces while others may read them."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """All of it or what was there before."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
