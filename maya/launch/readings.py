"""What a rank reads besides its arguments: files outside the installed packages, and environment variables.

Each new name is appended to a file at once, for a rank may be ended at any moment. What only native code opens
(a library that reads its own configuration, say) is not seen.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import json
import os
import sysconfig
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUFFIX = ".readings"
_STANDARD_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_PACKAGES = ("/site-packages/", "/dist-packages/")
_NOT_FILES = ("/proc/", "/sys/", "/dev/")


class Readings:
    """Watches this process, and those forked from it, from `watch` on."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] = {}
        self._written: set[str] = set()
        self._copied: deque[str] = deque()  # what a copy of the environment has yet to read
        self._descriptor: int | None = None

    def watch(self) -> None:
        """Once, before anything of the script's is imported."""
        builtins_open, os_open = builtins.open, os.open
        getitem, contains = type(os.environ).__getitem__, type(os.environ).__contains__
        iterate = type(os.environ).__iter__
        path_stats = importlib.machinery.SourceFileLoader.path_stats

        def open_(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            self._opened(file, writes="w" in mode or "x" in mode)
            return builtins_open(file, mode, *rest, **named)

        def open_descriptor(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            self._opened(path, writes=bool(flags & (os.O_TRUNC | os.O_EXCL)))
            return os_open(path, flags, *rest, **named)

        def read_variable(environ: Any, name: Any) -> Any:
            self._read_variable(_decoded(name))
            return getitem(environ, name)

        def all_variables(environ: Any) -> Iterator[str]:
            names = list(iterate(environ))
            self._copied = deque(map(_decoded, names))
            return iter(names)

        def has_variable(environ: Any, name: object) -> bool:
            self._note("variable", _decoded(name))
            return contains(environ, name)

        def import_source(loader: Any, path: str) -> Any:
            self._opened(path, writes=False)
            return path_stats(loader, path)

        builtins.open = io.open = open_
        os.open = open_descriptor
        type(os.environ).__getitem__ = read_variable  # type: ignore[method-assign]
        type(os.environ).__iter__ = all_variables  # type: ignore[method-assign]
        type(os.environ).__contains__ = has_variable  # type: ignore[method-assign]
        importlib.machinery.SourceFileLoader.path_stats = import_source  # type: ignore[method-assign,assignment]

    def write_to(self, path: Path) -> None:
        """From here on every name goes to `path`, those known already first."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._descriptor = os.open(path, flags, 0o644)
        for kind, name in self._seen:
            self._write(kind, name)

    def _read_variable(self, name: str) -> None:
        """One by one in the order of the whole environment they are a copy, such as each child process gets."""
        if self._copied and name == self._copied[0]:
            self._copied.popleft()
            return
        self._copied.clear()
        self._note("variable", name)

    def _opened(self, file: Any, writes: bool) -> None:
        if not isinstance(file, str | bytes | os.PathLike):
            return  # a descriptor
        path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - symbolic links stay: they may be turned
        if ("file", path) in self._seen or path in self._written or _is_installed(path):
            return
        if writes:
            self._written.add(path)  # its own output, even if it is read afterwards
        else:
            self._note("file", path)

    def _note(self, kind: str, name: str) -> None:
        if (kind, name) not in self._seen:
            self._seen[kind, name] = None
            self._write(kind, name)

    def _write(self, kind: str, name: str) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, json.dumps([kind, name]).encode() + b"\n")


READINGS = Readings()  # of this process, as builtins.open is


def _decoded(name: object) -> str:
    """A variable's name; bytes are what os.environb has, and what os.get_exec_path asks any environment for."""
    return os.fsdecode(name) if isinstance(name, bytes) else str(name)


def _is_installed(path: str) -> bool:
    """Whether the key of a trace has it already: as the installed packages, or Python itself."""
    if path.startswith(_NOT_FILES) or any(part in path for part in _PACKAGES):
        return True
    return os.path.realpath(path).startswith(_STANDARD_LIBRARY)


def read_readings(directory: Path) -> Iterator[tuple[str, str]]:
    """Kind ("file" or "variable") and name of all that the ranks of a launch read, each once."""
    seen: set[tuple[str, str]] = set()
    for path in sorted(directory.rglob(f"*{SUFFIX}")):
        content = path.read_bytes()
        for line in content[: content.rfind(b"\n") + 1].splitlines():
            kind, name = json.loads(line)
            if (kind, name) not in seen:
                seen.add((kind, name))
                yield kind, name
