"""The command's bad inputs: each one clear line and exit code 2, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from maya.search.cli import main
from maya.search.experiment import make_plan
from maya.search.journal import Journal

SPACE = "cluster: dgx-h100\ngpus: 8\nknobs: {tp: {flag: --tp, values: [1, 2]}}\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    monkeypatch.setattr("sys.argv", ["maya-search", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("cluter: dgx-a100", "cluter: unknown key; did you mean 'cluster'?"),
        (
            "constraints: ['tp == 3']",
            "constraints[0]: no configuration satisfies 'tp == 3'; nearest: tp(2) != 3",
        ),
        ("constraints: ['dp == 3']", "constraints[0]: unknown name 'dp' in 'dp == 3'"),
    ],
)
def test_space_mistakes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    space: Path,
    script: Path,
    more: str,
    message: str,
) -> None:
    space.write_text(SPACE + more)
    assert message in refusal(monkeypatch, capsys, "--space", space, script)


def test_missing_script_and_existing_search_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    space: Path,
    script: Path,
    tmp_path: Path,
) -> None:
    assert "no such script" in refusal(monkeypatch, capsys, "--space", space, tmp_path / "none.py")
    Journal.create(tmp_path / "old", {}).close()
    line = refusal(monkeypatch, capsys, "--space", space, "--out", tmp_path / "old", script)
    assert "already holds a search" in line


def test_resume_refuses_a_changed_space_and_says_what_changed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    space: Path,
    script: Path,
    tmp_path: Path,
) -> None:
    plan = make_plan(SPACE, str(space), {}, str(script), False)
    Journal.create(tmp_path / "old", plan.header()).close()
    space.write_text(SPACE.replace("[1, 2]", "[1, 2, 4]"))
    line = refusal(monkeypatch, capsys, "--resume", tmp_path / "old", "--space", space, "--seed", 3, script)
    assert "knobs.tp.values: [1, 2] -> [1, 2, 4]" in line and "search.seed: 0 -> 3" in line


def test_resume_refuses_a_changed_script(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    space: Path,
    script: Path,
    tmp_path: Path,
) -> None:
    plan = make_plan(SPACE, str(space), {}, str(script), False)
    Journal.create(tmp_path / "old", plan.header()).close()
    script.write_text("print('bye')\n")
    assert "script's content" in refusal(monkeypatch, capsys, "--resume", tmp_path / "old")
