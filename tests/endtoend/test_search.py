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
