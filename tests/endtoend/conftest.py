"""Runs Maya's commands as a user does, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Maya = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def maya(tmp_path: Path) -> Maya:
    """`maya("predict", ...)`: the command's completed process, started in an empty directory."""
    return _command("maya", tmp_path)


@pytest.fixture
def maya_search(tmp_path: Path) -> Maya:
    """`maya_search("--space", ...)`, likewise."""
    return _command("maya-search", tmp_path)


def _command(name: str, directory: Path) -> Maya:
    def run(
        *arguments: str | Path, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / name), *map(str, arguments)],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


@pytest.fixture
def predict(maya: Maya, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`predict(options, script, *arguments)`: the JSON of a prediction that must have been made."""

    def run(options: list[str], script: Path, *arguments: str) -> dict[str, Any]:
        out = tmp_path / "prediction.json"
        completed = maya("predict", *options, "--json", out, "--", script, *arguments)
        assert completed.returncode == 0, completed.stdout + completed.stderr
        prediction: dict[str, Any] = json.loads(out.read_text())
        return prediction

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """`script(text)`: a file with that text."""

    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write
