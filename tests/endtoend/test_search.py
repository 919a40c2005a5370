"""What goes wrong in a search: one trial that hangs, a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import argparse, time, torch
parser = argparse.ArgumentParser()
parser.add_argument("--hang", action="store_true")
parser.add_argument("--width", type=int, default=64)
given = parser.parse_args()
model = torch.nn.Linear(given.width, given.width).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while given.hang:
    time.sleep(1)
while True:
    model(torch.randn(8, given.width, device="cuda")).sum().backward()
    optimizer.step()
"""
SPACE = """
cluster: dgx-h100
gpus: 1
knobs:
  width: {flag: --width, values: [64, 128]}
  hang: {flag: --hang, values: [true, false]}
search: {algorithm: grid}
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


def verdicts(directory: Path) -> list[str]:
    lines = (directory / "journal.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["verdict"] for line in lines]


def test_a_trial_that_hangs_fails_at_its_time_limit_and_the_search_goes_on(
    maya_search: Callable[..., Any], script: Callable[[str], Path], space: Path, tmp_path: Path
) -> None:
    done = maya_search(
        "--space", space, "--out", tmp_path / "out", "--timeout", "8", "--no-cache", script(SCRIPT)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(verdicts(tmp_path / "out")) == ["FAILED", "FAILED", "FITS", "FITS"]
    assert "likely error: within" in done.stdout
    failed = [
        line for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines() if "FAILED" in line
    ]
    assert "no steady iteration within 8 s" in failed[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, less than a rank's trace."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_stops_a_search_cleanly_and_it_resumes_when_there_is_room(
    maya_search: Callable[..., Any],
    script: Callable[[str], Path],
    space: Path,
    tmp_path: Path,
    small_disk: Path,
) -> None:
    space.write_text(SPACE.replace("[true, false]", "[false]"))
    out = tmp_path / "out"
    full = maya_search(
        "--space",
        space,
        "--out",
        out,
        "--no-cache",
        script(SCRIPT),
        environment={**os.environ, "TMPDIR": str(small_disk), "RAY_TMPDIR": "/tmp"},
    )
    assert full.returncode not in (0, 2) and "No space left" in full.stderr and "--resume" in full.stderr
    assert "Traceback" not in full.stderr
    assert verdicts(out) == []
    again = maya_search("--resume", out, "--no-cache")
    assert again.returncode == 0, again.stdout + again.stderr
    assert verdicts(out) == ["FITS", "FITS"]


BUSY_SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--turn", type=int, default=0)
parser.add_argument("--rows", type=int, default=8192)
rows = parser.parse_args().rows
layers = [torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU()) for _ in range(24)]
model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16)
while True:
    optimizer.zero_grad()
    model(data).sum().backward()
    optimizer.step()
"""


def test_a_trial_takes_as_long_alone_as_beside_three_others(
    maya: Callable[..., Any],
    maya_search: Callable[..., Any],
    script: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    busy = script(BUSY_SCRIPT)

    def replayed(rows: int, *what_if: str) -> float:
        if not (tmp_path / f"{rows}").exists():
            assert maya("trace", "--out", f"{rows}", "--", busy, "--rows", f"{rows}").returncode == 0
        assert maya("simulate", f"{rows}", *what_if, "--json", "alone.json").returncode == 0
        return float(json.loads((tmp_path / "alone.json").read_text())["iteration_time_s"])

    # So many rows that the device hides this script's host time on this machine, but not four times of it, as four
    # ranks on a core would take; host time differs from one recording to the next.
    host = replayed(8192, "--scale", "host=100") / 100
    rows = round(8192 * 2.2 * host / replayed(8192, "--scale", "host=0.01") / 128) * 128
    undisturbed = replayed(rows)
    assert replayed(rows, "--scale", "host=4") > 1.1 * undisturbed
    knobs = f"knobs:\n  turn: {{flag: --turn, values: [1, 2, 3, 4]}}\n  rows: {{flag: --rows, values: [{rows}]}}\n"
    (tmp_path / "space.yaml").write_text(
        "cluster: dgx-h100\ngpus: 1\n" + knobs + "search: {algorithm: grid}\n"
    )
    done = maya_search("--space", "space.yaml", "--out", "out", "--concurrency", "4", "--no-cache", busy)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()[1:]
    beside = [json.loads(line)["prediction"]["iteration_time_s"] for line in lines]
    assert beside == pytest.approx([undisturbed] * 4, rel=0.02)
