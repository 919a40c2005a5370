"""Mistakes in a command's options: one line on stderr that says how to mend it, and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import maya.cli
import maya.search.cli


def refusal(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line with which a command refuses its arguments."""
    monkeypatch.setattr(sys, "argv", command.split())
    main = maya.search.cli.main if command.startswith("maya-search") else maya.cli.main
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("maya predict --gpuss 3 -- train.py", "no such option: --gpuss"),
        ("maya predict --gpus many -- train.py", "invalid value for '--gpus'"),
        ("maya predict --gpus 0 -- train.py", "invalid value for '--gpus'"),
        ("maya predict --ranks some -- train.py", "'--ranks': 'some' is not one of 'auto', 'all', 'dedup'"),
        ("maya predict --gpus", "option '--gpus' requires an argument"),
        ("maya predict", "missing argument 'SCRIPT"),
        ("maya trace train.py", "missing option '--out'"),
        ("maya simulate one two", "unexpected extra argument"),
        ("maya validate --share none rows.csv", "'--share': 'none' is not one of 'all', 'fit', 'report'"),
        ("maya profile --iterations 0 -- train.py", "invalid value for '--iterations'"),
        ("maya clusters mine", "unexpected extra argument"),
        ("maya doctor --all", "no such option: --all"),
        ("maya predikt train.py", "no such command 'predikt'"),
        ("maya-search --algorithm gird train.py", "'--algorithm': 'gird' is not one of 'cma', 'random', 'grid', 'tpe'"),
        ("maya-search --seed -1 train.py", "invalid value for '--seed'"),
        ("maya-search one.py two.py", "unexpected extra argument"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_options_is_one_line(
    command: str, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refusal(command, capsys, monkeypatch)
    assert line.startswith("maya: ") and told in line
    assert "--help" in line or "requires" in line


def test_a_command_without_arguments_shows_its_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["maya"])
    with pytest.raises(SystemExit) as ended:
        maya.cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and "predict" in said.out + said.err


def test_a_command_that_did_its_work_ends_with_0(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["maya", "clusters"])
    with pytest.raises(SystemExit) as ended:
        maya.cli.main()
    assert ended.value.code in (0, None) and "dgx-h100" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["maya", "maya-search"])
def test_a_command_tells_its_version(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--version"])
    main = maya.search.cli.main if command == "maya-search" else maya.cli.main
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None) and capsys.readouterr().out == f"maya {maya.__version__}\n"


def test_a_program_of_pythons_is_found_as_a_shell_would(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert maya.cli._script("torchrun") == str(Path(sys.executable).parent / "torchrun")
    assert "/sh is not Python's" in refusal("maya predict -- sh -c true", capsys, monkeypatch)
    assert "no such script" in refusal("maya predict -- no-such-program", capsys, monkeypatch)
