"""From script to database: the virtual run, the measured run, their match."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from maya.clusters import Cluster, load, names
from maya.errors import MayaError
from maya.estimate.profiles import Profiles
from maya.launch import ForkServer, Job
from maya.profile.kineto import read_activities
from maya.profile.match import match
from maya.profile.types import Matched
from maya.trace import collate
from maya.trace.types import JobTrace, Operation

SKIPPED_ITERATIONS = 3  # compilation, autotuning, allocation
TIMED_ITERATIONS = 10


@dataclass(frozen=True)
class Profiled:
    device: str
    versions: str
    iterations: int
    matched: Matched
    iteration_s: float  # without the profiler
    peak_reserved_bytes: int  # that PyTorch had taken from the driver


def profile(job: Job, database: Path, *, iterations: int = 5, cluster: str | None = None) -> Profiled:
    """Measures the operations of a one-rank job on this machine's GPU and adds them to `database`.

    `cluster` has the virtual device that stands for this GPU; None: the shipped one whose device has its name.
    Raises MayaError when there is no GPU, no such cluster, or the script does not come through both runs.
    """
    device = gpu_name()
    with tempfile.TemporaryDirectory(prefix="maya-profile-") as scratch:
        work = Path(scratch)
        trace, period = record(job, standing_for(device, cluster), work / "virtual")
        measured = measure(
            job,
            work / "trace.json",
            *(n * period for n in (SKIPPED_ITERATIONS, TIMED_ITERATIONS, iterations)),
        )
        about = json.loads(measured.with_suffix(".about").read_text())
        complete = about["steps"] // period
        if complete < 1:
            raise MayaError(f"{job.script} ended before an iteration could be measured: let it run longer")
        matched = match(counts(trace), read_activities(measured), complete)
    profiles = Profiles.read(database) if database.exists() else Profiles()
    profiles.add(about["device"], about["versions"], matched.samples)
    profiles.write(database)
    return Profiled(
        about["device"],
        about["versions"],
        complete,
        matched,
        iteration_s=about["step_s"] * period,
        peak_reserved_bytes=about["peak_reserved_bytes"],
    )


def gpu_name() -> str:
    """This machine's first GPU, by the driver. Raises MayaError when there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MayaError(
            "no NVIDIA driver here (libcuda.so.1): maya profile measures on the GPU of the machine it runs on"
        ) from error
    name, count = ctypes.create_string_buffer(256), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        raise MayaError("no GPU here: maya profile measures on the GPU of the machine it runs on")
    driver.cuDeviceGetName(name, len(name), 0)
    return name.value.decode()


def standing_for(device: str, cluster: str | None) -> Cluster:
    """The cluster whose device has this GPU's name. Raises MayaError when there is none, or another was asked for."""
    candidates = [load(cluster)] if cluster else [load(name) for name in names()]
    for candidate in candidates:
        if candidate.device.name == device:
            return candidate
    known = ", ".join(sorted({candidate.device.name for candidate in candidates}))
    raise MayaError(f"this machine's GPU is '{device}', not {known}: give a YAML file with --cluster")


def record(job: Job, cluster: Cluster, directory: Path) -> tuple[JobTrace, int]:
    """A steady iteration of `job` on the virtual device, and the optimizer steps it takes."""
    with ForkServer(cluster) as server:
        run = server.run(job, directory)
    if run.status != "traced":
        raise MayaError(f"{job.script} does not run on a virtual {cluster.device.name}: {run.traceback}")
    return collate(run), run.period


def counts(trace: JobTrace) -> Counter[Operation]:
    """How often the one rank's iteration does each operation."""
    numbers = trace.ranks[0].records["operation"]
    return Counter(trace.operations[number] for number in numbers[numbers >= 0])


def measure(job: Job, out: Path, skip: int, timed: int, profiled: int) -> Path:
    """Runs the script on the real device: leaves `skip` optimizer steps out, takes the time of `timed`, and has the
    profiler's trace of `profiled` written to `out`.

    Raises MayaError, with the script's last words, when it does not come so far.
    """
    module = [sys.executable, "-P", "-m", "maya.profile.script"]
    try:
        done = subprocess.run(
            [*module, str(out), str(skip), str(timed), str(profiled), job.script, *job.argv],
            env={**os.environ, **job.environment},
            stderr=subprocess.PIPE,
            timeout=job.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        steps = skip + timed + profiled
        raise MayaError(
            f"{job.script}: {steps} steps took longer than {job.timeout_s:g} s on the GPU: --timeout gives it more, "
            "--iterations asks for fewer"
        ) from None
    if done.returncode != 0 or not out.with_suffix(".about").exists():
        words = done.stderr.decode(errors="replace").strip()[-2000:]
        raise MayaError(
            f"{job.script} ended with status {done.returncode} on the GPU, before {skip + timed + profiled} steps had "
            f"passed\n{words}"
        )
    return out
