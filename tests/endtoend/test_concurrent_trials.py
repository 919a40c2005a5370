"""Trials that run at the same time on the same cores do not disturb each other's recorded host time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--copy", type=int)
parser.parse_args()
layers = [torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True) for _ in range(6)]
model = torch.nn.Sequential(*layers).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
batch = torch.randn(16, 1024, 1024, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(4):
        model(batch).float().mean().backward()
        torch.cuda.synchronize()  # the host starts each pass anew: its time shows
    optimizer.step()
    optimizer.zero_grad()
"""
SPACE = """
cluster: dgx-h100
gpus: 1
knobs:
  copy: {flag: --copy, values: [1, 2, 3, 4]}  # of the same work
search: {algorithm: grid}
stop: {patience: 100}
"""


def predictions(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()[1:]]
    return [line["prediction"] for line in lines]


def test_the_same_trial_alone_and_beside_three_others_takes_the_same_time(
    maya_search: Callable[..., Any], script: Callable[[str], Path], tmp_path: Path
) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(SPACE)
    found = {}
    for concurrency in (1, 4):
        out = tmp_path / f"out{concurrency}"
        done = maya_search(
            *("--space", space, "--out", out, "--concurrency", str(concurrency), "--no-cache"), script(SCRIPT)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found[concurrency] = predictions(out)
        assert len(found[concurrency]) == 4
    alone, beside = (median(each["iteration_time_s"] for each in found[count]) for count in (1, 4))
    waits = [each["host_bound_s"] / each["iteration_time_s"] for each in found[1]]
    assert min(waits) > 0.1, waits  # else nothing would have been shown
    assert abs(beside / alone - 1) < 0.02, (alone, beside)
