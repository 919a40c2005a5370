"""How long after work ended a call that waited for it returned, as a profiler's trace has it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

WAITS = Path(__file__).parents[2] / "scripts/measure/waits"


def span(category: str, name: str, began: float, length: float, correlation: int) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": category, "name": name, "ts": began, "dur": length, "args": args}


def said(path: Path, *events: dict[str, Any]) -> list[str]:
    trace = path / "job.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    done = subprocess.run([sys.executable, WAITS, trace], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_launches_that_block_and_synchronisation_wait(tmp_path: Path) -> None:
    lines = said(
        tmp_path,
        span("cuda_runtime", "cudaLaunchKernel", 0, 14, 1),
        span("kernel", "gemm", 3, 8, 1),
        span("cuda_runtime", "cudaStreamSynchronize", 10, 7, 2),
    )
    assert sorted(lines) == [
        "cudaLaunchKernel that blocks: 1 waits, median 3.0 us, nine in ten 3.0 to 3.0 us",
        "cudaStreamSynchronize: 1 waits, median 6.0 us, nine in ten 6.0 to 6.0 us",
    ]


def test_asynchronous_launches_and_calls_that_come_after_the_work_do_not(tmp_path: Path) -> None:
    assert not said(
        tmp_path,
        span("cuda_runtime", "cudaLaunchKernel", 0, 5, 1),
        span("kernel", "gemm", 3, 80, 1),
        span("cuda_runtime", "cudaStreamSynchronize", 90, 2, 2),
    )
