"""The command's bad inputs: each one clear line and exit code 2, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from maya.search.cli import main
from maya.search.experiment import Plan, make_plan
from maya.search.journal import NAME, Journal

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


Refusal = Callable[..., str]


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """`refusal(*arguments)`: the one line with which the command refuses them."""

    def refused(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["maya-search", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return str(line)

    return refused


@pytest.fixture
def earlier(space: Path, script: Path, tmp_path: Path) -> Path:
    """The directory of a search of `space` with `script` that was cut short."""
    plan = make_plan(SPACE, str(space), {}, str(script), False)
    Journal.create(tmp_path / "old", plan.header()).close()
    return tmp_path / "old"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("cluter: dgx-a100", "cluter: unknown key; did you mean 'cluster'?"),
        (
            "constraints: ['tp == 3']",
            "constraints[0]: no configuration satisfies 'tp == 3'; nearest: tp(2) != 3",
        ),
        ("constraints: ['dp == 3']", "constraints[0]: unknown name 'dp' in 'dp == 3'"),
        ("  lr: {flag: --lr, values: [.inf]}", "knobs.lr.values: inf is not a finite number"),
    ],
)
def test_space_mistakes(refusal: Refusal, space: Path, script: Path, more: str, message: str) -> None:
    space.write_text(SPACE.replace("knobs: {tp", "knobs:\n  tp").replace("}}", "}") + more)
    assert message in refusal("--space", space, script)


def test_a_world_that_is_no_whole_number_of_nodes_is_refused(
    refusal: Refusal, space: Path, script: Path
) -> None:
    line = refusal("--space", space, "--gpus", 12, script)
    assert "maya: --gpus: 12 = 1 node of 8 + 4; 8 and 16 are whole" in line
    space.write_text("cluster: dgx-h100\nknobs: {gpus: {values: [4, 20]}}\n")
    assert "knobs.gpus.values: 20 = 2 nodes of 8 + 4" in refusal("--space", space, script)


def test_missing_script_and_existing_search_are_refused(
    refusal: Refusal, space: Path, script: Path, tmp_path: Path, earlier: Path
) -> None:
    assert "no such script" in refusal("--space", space, tmp_path / "none.py")
    assert "already holds a search" in refusal("--space", space, "--out", earlier, script)
    assert "a file is in its place" in refusal("--space", space, "--out", script, script)


def test_resume_refuses_a_changed_space_and_says_what_changed(
    refusal: Refusal, space: Path, script: Path, earlier: Path
) -> None:
    space.write_text(SPACE.replace("[1, 2]", "[1, 2, 4]"))
    line = refusal("--resume", earlier, "--space", space, "--seed", 3, script)
    assert "knobs.tp.values: [1, 2] -> [1, 2, 4]" in line and "search.seed: 0 -> 3" in line


def test_resume_refuses_values_in_another_order(
    refusal: Refusal, space: Path, script: Path, tmp_path: Path
) -> None:
    text = "cluster: dgx-h100\ngpus: 8\nknobs: {r: {values: {none: [], full: [--r, full]}}}\n"
    Journal.create(tmp_path / "r", make_plan(text, str(space), {}, str(script), False).header()).close()
    space.write_text(text.replace("none: [], full: [--r, full]", "full: [--r, full], none: []"))
    assert "knobs.r.values.order: ['none', 'full'] -> ['full', 'none']" in refusal(
        "--resume", tmp_path / "r", "--space", space
    )


def test_resume_is_where_the_search_was_begun(
    refusal: Refusal, tmp_path: Path, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Path.cwd()
    monkeypatch.chdir(tmp_path)
    assert f"cd {begun}" in refusal("--resume", earlier)


def test_what_a_resumed_search_is_given_stays_given(
    space: Path, script: Path, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maya.search.cli._search", lambda *_: 0)
    for more in (["--max-trials", "7", "--timeout", "3600"], ["--no-cache"], []):
        monkeypatch.setattr("sys.argv", ["maya-search", "--resume", str(earlier), *more])
        with pytest.raises(SystemExit):
            main()
    with Journal.resume(earlier) as journal:
        plan = Plan.from_header(journal.header)
    assert plan.space().file.search.max_trials == 7
    assert (plan.timeout_s, plan.cache) == (3600.0, False)
    assert len((earlier / NAME).read_text().splitlines()) == 3  # the last told nothing new


def test_resume_refuses_a_changed_script(refusal: Refusal, script: Path, earlier: Path) -> None:
    script.write_text("print('bye')\n")
    assert "script's content" in refusal("--resume", earlier)


def test_comparison_and_warm_start_want_an_earlier_search(
    refusal: Refusal, space: Path, script: Path, tmp_path: Path, earlier: Path
) -> None:
    assert "holds no finished search" in refusal("--compare", earlier, earlier)
    assert "holds no search" in refusal("--space", space, "--warm-start", tmp_path / "none", script)


def test_a_grid_of_a_billion_points_is_refused_with_its_size(
    refusal: Refusal, space: Path, script: Path
) -> None:
    knobs = "".join(
        f"  k{n}: {{flag: --k{n}, values: [{', '.join(map(str, range(10)))}]}}\n" for n in range(9)
    )
    space.write_text(
        f"cluster: dgx-h100\ngpus: 8\nknobs:\n{knobs}search: {{algorithm: grid, max_trials: 10000}}\n"
    )
    line = refusal("--space", space, script)
    assert "10 * 10 * 10 * 10 * 10 * 10 * 10 * 10 * 10 = 1,000,000,000" in line


def test_a_space_names_a_lookups_file_beside_it(
    refusal: Refusal, space: Path, script: Path, tmp_path: Path
) -> None:
    space.write_text(SPACE + "lookups: tables.yaml\n")
    assert "tables.yaml" in refusal("--space", space, script)  # there is none yet
    tables = tmp_path / "tables.yaml"
    tables.write_text("- {table: [1000, 64], reuse: [0.5, 0.5]}\n")
    plan = make_plan(space.read_text(), str(space), {}, str(script), False)
    assert plan.reuse() == {(1000, 64): (0.5, 0.5)}
    Journal.create(tmp_path / "earlier", plan.header()).close()
    tables.write_text("- {table: [1000, 64], reuse: [1.0]}\n")
    assert "lookups.1000x64: [0.5, 0.5] -> [1.0]" in refusal("--resume", tmp_path / "earlier")
