from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import analytic, make_search, outcome_of, run_inline

from maya.search.journal import NAME, Journal, JournalError
from maya.search.types import Assignment
from maya.simulate.types import Prediction

PROGRAM = Path(__file__).with_name("search_program.py")


def answer(directory: Path, runner: str, seconds: float = 0.0) -> dict[str, float]:
    command = [sys.executable, str(PROGRAM), str(directory), runner, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def finished(directory: Path) -> list[tuple[int, ...]]:
    """Points whose outcome is on record, in whole lines."""
    path = directory / NAME
    content = path.read_bytes() if path.exists() else b""
    lines = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()[1:]]
    return [tuple(line["point"]) for line in lines if line["verdict"] != "PRUNED"]


def entries(directory: Path) -> list[str]:
    """The journal's lines, but for when they were written."""
    lines = [json.loads(line) for line in (directory / NAME).read_text().splitlines()]
    return [json.dumps({**line, "elapsed_s": None}) for line in lines]


def kill_when_recorded(directory: Path, runner: str, seconds: float, lines: int) -> None:
    """Start a search and end it with SIGKILL once its journal has so many lines."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(directory), runner, str(seconds)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    path = directory / NAME
    try:
        while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < lines):
            time.sleep(0.005)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(("runner", "seconds"), [("inline", 0.02), ("ray", 0.05)])
def test_killed_search_resumes_to_the_same_best_and_runs_no_finished_trial_again(
    tmp_path: Path, runner: str, seconds: float
) -> None:
    undisturbed = answer(tmp_path / "undisturbed", "inline")
    killed = tmp_path / "killed"
    for lines in (14,) if runner == "ray" else (4, 25):
        kill_when_recorded(killed, runner, seconds, lines)
    before = set(finished(killed))
    assert len(before) >= 3
    assert answer(killed, runner) == undisturbed
    after = finished(killed)
    assert before <= set(after) and len(after) == len(set(after))
    runs = Counter((killed / "judged").read_text().splitlines())
    assert sum(runs.values()) <= len(after) + 2 * 2  # what was in flight when a kill came, no more


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0.05, 1.0), seed=st.integers(0, 3))
def test_journal_cut_anywhere_resumes_to_the_same_search(tmp_path: Path, cut: float, seed: int) -> None:
    whole = Path(tempfile.mkdtemp(dir=tmp_path))
    reference = run_inline(make_search(whole, search__seed=seed, search__max_trials=50))
    content = (whole / NAME).read_bytes()
    header = content.index(b"\n") + 1
    torn = Path(tempfile.mkdtemp(dir=tmp_path))
    (torn / NAME).write_bytes(content[: max(header, int(cut * len(content)))])
    kept = len(finished(torn))
    search = make_search(torn, resume=True, search__seed=seed, search__max_trials=50)
    launched = 0
    while (assignment := search.next()) is not None:
        launched += 1
        search.finish(assignment.trial, outcome_of(assignment))
    assert search.trials == reference.trials
    assert launched == len(finished(whole)) - kept
    assert sorted(entries(torn)) == sorted(entries(whole))


def test_what_failed_by_chance_is_run_again(tmp_path: Path) -> None:
    def late(assignment: Assignment) -> Prediction:
        failed = Prediction("FAILED", message="no steady iteration within 600 s", by_chance=True)
        return failed if assignment.trial == 1 else analytic(assignment)

    run_inline(make_search(tmp_path / "0", search__max_trials=5), late)
    launched: list[list[int]] = []
    for resumed in (1, 2):
        directory = tmp_path / str(resumed)
        shutil.copytree(tmp_path / str(resumed - 1), directory)
        search = make_search(directory, resume=True, search__max_trials=5)
        launched.append([])
        while (assignment := search.next()) is not None:
            launched[-1].append(assignment.trial)
            search.finish(assignment.trial, outcome_of(assignment))
        assert len(search.trials) == 5 and not search.counts.verdicts["FAILED"]
    assert launched == [[1], []]


def test_a_search_has_taken_what_all_its_parts_took(tmp_path: Path) -> None:
    run_inline(make_search(tmp_path / "one", search__max_trials=5))
    lines = [json.loads(line) for line in (tmp_path / "one" / NAME).read_text().splitlines()]
    told = [line["elapsed_s"] for line in lines[1:]]
    assert told == sorted(told)
    lines[-1]["elapsed_s"] = 100.0
    (tmp_path / NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Journal.resume(tmp_path) as journal:
        assert 100 < journal.elapsed_s < 200


def test_journal_is_locked_while_a_search_writes_it(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "one", {}):
        with pytest.raises(JournalError, match="in use by a running search"):
            Journal.resume(tmp_path / "one")
        with pytest.raises(JournalError, match="already holds a search"):
            Journal.create(tmp_path / "one", {})
    Journal.resume(tmp_path / "one").close()


def test_damage_before_the_last_line_is_refused(tmp_path: Path) -> None:
    run_inline(make_search(tmp_path / "one", search__max_trials=5))
    lines = (tmp_path / "one" / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join([*lines[:2], b'{"torn\n', *lines[2:]]))
    with pytest.raises(JournalError, match=r"journal.jsonl:3: is damaged"):
        Journal.resume(tmp_path)
