"""Runs small programs under the emulator, each in a process of its own, and hands back their trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maya.launch.environment import preloaded
from maya.launch.layout import rank_path
from maya.trace.format import RawRank, read_rank
from maya.trace.types import RecordKind

sys.path.insert(0, str(Path(__file__).parent))  # for what tests of this room share

# Begins the rank, runs the program, prints its `result` as the last line.
FRAME = """
import ctypes, json
assert ctypes.CDLL(None).maya_begin_rank({config!r}.encode()) == 0
result = None
{program}
print("\\nRESULT " + json.dumps(result))
"""


# Imports PyTorch once, then forks a process for each program that a line of standard input names.
SERVER = """
import json, os, runpy, sys, traceback
try:
    import torch
except ImportError:
    pass
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.chdir(request["directory"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644), number)
    sys.path.insert(0, request["directory"])
    code = 0
    try:
        runpy.run_path("program.py", run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)
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


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], int]]:
    """`fork_server(directory)` runs `program.py` there, in a fork of a warmed process; its exit status."""
    environment = preloaded(dict(os.environ), tmp_path_factory.mktemp("aliases"))
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        requests, answers = server.stdin, server.stdout
        assert requests is not None and answers is not None

        def run(directory: Path) -> int:
            requests.write(json.dumps({"directory": str(directory)}) + "\n")
            requests.flush()
            return int(answers.readline())

        yield run
        requests.close()


def fresh_process(directory: Path, variables: dict[str, str]) -> int:
    """Runs `program.py` in a process that has `variables` from its start."""
    environment = preloaded({**os.environ, **variables}, directory)
    with (directory / "stdout").open("w") as stdout, (directory / "stderr").open("w") as stderr:
        command = [sys.executable, "program.py"]
        return subprocess.run(
            command, env=environment, cwd=directory, stdout=stdout, stderr=stderr, check=False
        ).returncode


@pytest.fixture
def emulate(tmp_path: Path, fork_server: Callable[[Path], int]) -> Callable[..., Run]:
    """`emulate(program, variables={}, files={}, **config)`: a Python program as rank 0 of a lone process.

    A program with environment `variables` gets a process of its own, others a fork. `config` are keys of the
    rank configuration (emulator/core/process.h); `files` are written beside the program, name -> text, and can
    be imported by it.
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
        code = fresh_process(tmp_path, variables) if variables else fork_server(tmp_path)
        stdout, stderr = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
        assert code == 0, stderr[-4000:]
        last = stdout.strip().splitlines()[-1]
        return Run(json.loads(last.removeprefix("RESULT ")), read_rank(rank_path(tmp_path, 0)), stderr)

    return run
