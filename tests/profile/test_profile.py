"""`maya profile` as far as it goes without a GPU: the virtual device stands for the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from maya.clusters import load
from maya.errors import MayaError
from maya.estimate import Estimator
from maya.estimate.profiles import Profiles
from maya.estimate.types import Provenance
from maya.launch import Job
from maya.launch.environment import preloaded
from maya.profile.kineto import read_activities
from maya.profile.match import match
from maya.profile.run import counts, gpu_name, measure, record, standing_for
from maya.profile.types import Activity
from maya.trace.types import Gemm, Kernel, Memcpy, Memset, Operation

pytest.importorskip("torch")

TRAIN = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(9):
    labels = torch.zeros(16, dtype=torch.long).cuda()
    torch.nn.functional.cross_entropy(model(torch.randn(16, 64).cuda()), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "train.py").write_text(TRAIN)
    return Job(str(tmp_path / "train.py"))


def as_measured(operation: Operation, call: int, seconds: float) -> Iterator[Activity]:
    """What a GPU would show of one operation; of a matrix product two kernels of the library's own."""
    match operation:
        case Kernel(name=name, grid=grid, block=block, operator=operator):
            yield Activity("kernel", name, seconds, operator, call, grid, block)
        case Gemm(operator=operator):
            for part in ("gemm", "reduce"):
                yield Activity("kernel", f"library_{part}", seconds / 2, operator, call, (9, 9, 9), (9, 9, 9))
        case Memcpy(direction=direction, bytes=size, pinned=pinned):
            arrow = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD"}[direction]
            side = "Pinned" if pinned else "Pageable"
            yield Activity("memcpy", f"Memcpy {arrow} ({side} -> Device)", seconds, bytes=size)
        case Memset(bytes=size):
            yield Activity("memset", "Memset (Device)", seconds, bytes=size)


def test_profile_of_a_script_answers_for_all_of_its_operations(job: Job, tmp_path: Path) -> None:
    cluster = load("dgx-h100")
    trace, period = record(job, cluster, tmp_path / "virtual")
    recorded = counts(trace)
    assert period == 1 and any(isinstance(operation, Gemm) for operation in recorded)
    activities = [
        activity
        for number, (operation, times) in enumerate(recorded.items())
        for time in range(times)
        for activity in as_measured(operation, 1000 * number + time, 1e-3 * (number + 1))
    ]
    matched = match(recorded, activities, iterations=1)
    assert matched.unmeasured == () and matched.share == 1.0
    profiles = Profiles()
    profiles.add(cluster.device.name, "torch", matched.samples)
    profiles.write(tmp_path / "profiles.parquet")
    estimates = Estimator(cluster, profiles=Profiles.read(tmp_path / "profiles.parquet")).estimate(
        list(recorded)
    )
    assert (estimates.provenance == Provenance.PROFILED).all()
    assert estimates.seconds == pytest.approx([1e-3 * (number + 1) for number in range(len(recorded))])


def test_measured_run_records_the_steps_it_was_asked_for(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in preloaded(dict(os.environ), tmp_path).items():
        monkeypatch.setenv(name, value)
    trace = measure(job, tmp_path / "trace.json", skip=2, timed=2, profiled=3)
    about = json.loads(trace.with_suffix(".about").read_text())
    assert about["step_s"] > 0 and about["peak_reserved_bytes"] >= about["peak_allocated_bytes"] > 0
    assert about["used_bytes"] > about["peak_reserved_bytes"]  # the context besides
    assert about["steps"] == 3 and about["device"] == "NVIDIA H100 80GB HBM3"
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("aten::addmm") == 2 * 3
    with pytest.raises(MayaError, match="CUPTI"):  # a virtual device has no activity of its own
        read_activities(trace)


def test_script_that_fails_on_the_gpu_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('no data here')")
    with pytest.raises(MayaError, match="no data here"):
        measure(Job(str(tmp_path / "train.py")), tmp_path / "trace.json", skip=1, timed=1, profiled=1)


def test_script_that_takes_too_long_on_the_gpu_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    job = Job(str(tmp_path / "train.py"), timeout_s=0.1)
    with pytest.raises(MayaError, match=r"3 steps took longer than 0.1 s on the GPU: --timeout"):
        measure(job, tmp_path / "trace.json", skip=1, timed=1, profiled=1)


def test_gpu_must_be_the_clusters() -> None:
    assert standing_for("NVIDIA H100 80GB HBM3", None).device.name == "NVIDIA H100 80GB HBM3"
    with pytest.raises(MayaError, match="'Some GPU'"):
        standing_for("Some GPU", None)


def test_machine_without_a_gpu_is_told_so(job: Job) -> None:
    try:
        gpu_name()
    except MayaError:
        pass
    else:
        pytest.skip("there is a GPU here")
    command = [sys.executable, "-P", "-c", "from maya.cli import main; main()", "profile", job.script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "maya profile measures on the GPU of the machine it runs on" in done.stderr
