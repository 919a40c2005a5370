"""Runs small programs under the emulator, each in a process of its own, and hands back their trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maya.launch.environment import preloaded
from maya.trace.format import RawRank, rank_path, read_rank
from maya.trace.types import RecordKind

# Begins the rank, runs the program, prints its `result` as the last line.
FRAME = """
import ctypes, json
assert ctypes.CDLL(None).maya_begin_rank({config!r}.encode()) == 0
result = None
{program}
print("\\nRESULT " + json.dumps(result))
"""


@dataclass(frozen=True)
class Run:
    """A program's `result` and the trace it left."""

    result: Any
    trace: RawRank
    stderr: str

    def launched(self, kind: str) -> list[dict[str, Any]]:
        """The operations of `kind` in the order they were launched."""
        kernels = self.trace.records[self.trace.records["kind"] == RecordKind.KERNEL]
        operations = [self.trace.operations[int(op)] for op in kernels["op"]]
        return [operation for operation in operations if operation["kind"] == kind]

    def count(self, kind: RecordKind) -> int:
        return int(np.count_nonzero(self.trace.records["kind"] == kind))


@pytest.fixture
def emulate(tmp_path: Path) -> Callable[..., Run]:
    """`emulate(program, variables={}, files={}, **config)`: a Python program as rank 0 of a lone process.

    `config` are keys of the rank configuration (emulator/core/process.h); `files` are written beside the
    program, name -> text, and can be imported by it.
    """

    def run(
        program: str,
        variables: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
        **config: object,
    ) -> Run:
        settings = {"trace_dir": tmp_path, **config}
        config_path = tmp_path / "config"
        config_path.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        for name, text in (files or {}).items():
            (tmp_path / name).write_text(textwrap.dedent(text))
        script = tmp_path / "program.py"
        script.write_text(FRAME.format(config=str(config_path), program=textwrap.dedent(program)))
        environment = preloaded({**os.environ, **(variables or {})}, tmp_path)
        done = subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        last = done.stdout.strip().splitlines()[-1]
        return Run(json.loads(last.removeprefix("RESULT ")), read_rank(rank_path(tmp_path, 0)), done.stderr)

    return run
