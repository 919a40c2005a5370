"""Runs a script as Python would have, in the place of `__main__`."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path


def run_script(name: str, argv: Sequence[str], is_module: bool) -> None:
    """`name` is a path, or what follows Python's -m."""
    sys.argv = [name, *argv]
    if is_module:
        import runpy

        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        _run_path(name)


def is_pythons(program: str) -> bool:
    """Whether a program's text says that Python is to run it: in its first line, or, where pip found a path too long
    for that, in a shell's second, which Python takes for a string."""
    with Path(program).open("rb") as file:
        first, second = file.readline(1024), file.readline(1024)
    said = second if second.startswith(b"'''exec'") else first
    return first.startswith(b"#!") and b"python" in said


def _run_path(name: str) -> None:
    path = os.path.abspath(name)  # noqa: PTH100 - as the interpreter does it: symbolic links stay
    sys.path.insert(0, str(Path(path).resolve().parent))
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    source = Path(path).read_bytes()
    exec(compile(source, path, "exec"), main.__dict__)
