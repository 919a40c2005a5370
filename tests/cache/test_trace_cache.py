"""What is recorded once is not recorded again, until something that its ranks had read is another."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from maya.cache import TraceCache
from maya.clusters import load
from maya.clusters.types import Cluster
from maya.launch.types import Job, OutOfMemory, Run
from maya.predict import Predictor
from maya.simulate.types import Prediction

SCRIPT = """
import os, sys, torch
from width import WIDTH
depth = int(open("depth.txt").read())
batch = int(os.environ.get("BATCH", "4"))
rate = float(os.environb.get(b"RATE", b"0.1"))
os.get_exec_path()  # asks the environment for bytes first, which it has none of
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(depth))).cuda()
if "fail" in sys.argv:
    raise ValueError("as asked")
if "full" in sys.argv:
    torch.empty(200 * 2**30, dtype=torch.uint8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(500_000):
    model(torch.randn(batch, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
"""

Predict = Callable[..., tuple[Prediction, bool]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script with a module and a data file beside it."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "train.py").write_text(SCRIPT)
    (directory / "width.py").write_text("WIDTH = 64\n")
    (directory / "depth.txt").write_text("2\n")
    return directory


@pytest.fixture(scope="module")
def predict(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Predict]:
    """Predicts the project's script; whether the trace came from the cache."""
    cache = TraceCache(tmp_path_factory.mktemp("cache"))
    cluster = load("dgx-h100")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        with Predictor(cluster, cache=cache) as predictor:

            def run(*argv: str, on: Cluster = cluster) -> tuple[Prediction, bool]:
                predictor.cluster = on
                prediction = predictor.predict(Job("train.py", argv)).prediction
                return prediction, "cache" in prediction.stages_s

            yield run


def test_the_same_work_is_recorded_once_and_says_so(predict: Predict) -> None:
    first, cached = predict()
    again, cached_again = predict()
    assert (cached, cached_again) == (False, True)
    assert again.iteration_time_s == first.iteration_time_s
    assert "taken from the trace cache" in again.notes[-1]


def test_another_network_price_or_clock_needs_no_new_trace(predict: Predict) -> None:
    predict()
    cluster = load("dgx-h100")
    slower = cluster.device.model_copy(update={"clock_hz": cluster.device.clock_hz / 2, "name": "Slow H100"})
    other = cluster.model_copy(update={"name": "mine", "price_per_gpu_hour": 9.0, "device": slower})
    assert predict(on=other)[1]
    smaller = cluster.device.model_copy(update={"memory_bytes": cluster.device.memory_bytes // 2})
    assert not predict(on=cluster.model_copy(update={"device": smaller}))[1]


@pytest.mark.parametrize("outcome", ["fail", "full"])
def test_a_failure_of_the_scripts_own_and_a_full_memory_are_kept(predict: Predict, outcome: str) -> None:
    first, cached = predict(outcome)
    again, cached_again = predict(outcome)
    assert (cached, cached_again) == (False, True)
    assert first.verdict == again.verdict == {"fail": "FAILED", "full": "OOM"}[outcome]
    assert (first.message, first.shortfall_bytes) == (again.message, again.shortfall_bytes)


def test_what_the_script_reads_invalidates(
    predict: Predict, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict()
    monkeypatch.setenv("UNRELATED", "1")
    assert predict()[1]
    monkeypatch.setenv("BATCH", "8")
    assert not predict()[1]
    monkeypatch.delenv("BATCH")
    monkeypatch.setenv("RATE", "0.2")
    assert not predict()[1]
    monkeypatch.delenv("RATE")
    (project / "width.py").write_text("WIDTH = 128\n")
    assert not predict()[1]
    (project / "depth.txt").write_text("3\n")
    assert not predict()[1]
    (project / "width.py").write_text("WIDTH = 64\n")
    (project / "depth.txt").write_text("2\n")
    assert predict()[1]  # what was before is known still


# -- the store alone ---------------------------------------------------------------------------------------


def launch(directory: Path, *, status: str = "oom", traceback: str = "", rank: int | None = 0) -> Run:
    """As a launch leaves it: one rank that read nothing, out of memory unless told otherwise."""
    directory.mkdir(exist_ok=True)
    (directory / "rank-00000.readings").write_text(json.dumps(["variable", "ANYTHING"]) + "\n")
    oom = OutOfMemory(0, 3 * 2**30, 2**30, 80 * 2**30, "CUDA out of memory") if status == "oom" else None
    return Run(status, directory, 1, 1, (0,), out_of_memory=oom, traceback=traceback, failed_rank=rank)  # type: ignore[arg-type]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "script.py").write_text("")
    return Job(str(tmp_path / "script.py"))


@pytest.mark.parametrize(
    ("rank", "traceback"),
    [
        (None, "no steady iteration within 5 s"),
        (0, "the process ended with status 1\n"),
        (0, "the process was killed, as Linux does where memory runs out\n"),
        (0, "Traceback ...\nOSError: [Errno 28] No space left on device"),
        (0, "Traceback ...\ntorch.distributed.DistNetworkError: connection reset"),
    ],
)
def test_what_may_not_come_again_is_not_kept(
    tmp_path: Path, job: Job, rank: int | None, traceback: str
) -> None:
    cache, cluster = TraceCache(tmp_path / "cache"), load("dgx-h100")
    run = launch(tmp_path / "run", status="failed", traceback=traceback, rank=rank)
    assert not cache.keep(job, cluster, run, None)
    assert cache.find(job, cluster) is None


def test_writers_at_once_leave_one_whole_entry(tmp_path: Path, job: Job) -> None:
    cache, cluster = TraceCache(tmp_path / "cache"), load("dgx-h100")
    run = launch(tmp_path / "run")
    writers = [threading.Thread(target=cache.keep, args=(job, cluster, run, None)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    (only,) = (tmp_path / "cache/traces").iterdir()
    assert len(list(only.iterdir())) == 1
    found = cache.find(job, cluster)
    assert found is not None and found.run.out_of_memory == run.out_of_memory


def test_the_least_recently_used_go_first(tmp_path: Path, job: Job) -> None:
    cluster = load("dgx-h100")
    jobs = [dataclasses.replace(job, argv=(str(number),)) for number in range(6)]
    roomy = TraceCache(tmp_path / "cache")
    for each in jobs:
        roomy.keep(each, cluster, launch(tmp_path / "run"), None)
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) // 6
    assert roomy.find(jobs[0], cluster)
    TraceCache(tmp_path / "cache", int(3.5 * size)).keep(
        dataclasses.replace(job, argv=("new",)), cluster, launch(tmp_path / "run"), None
    )
    kept = [number for number, each in enumerate(jobs) if roomy.find(each, cluster)]
    assert 0 in kept and 1 not in kept and len(kept) == 2


def test_a_damaged_entry_is_as_good_as_none(tmp_path: Path, job: Job) -> None:
    cache, cluster = TraceCache(tmp_path / "cache"), load("dgx-h100")
    cache.keep(job, cluster, launch(tmp_path / "run"), None)
    (path,) = (tmp_path / "cache").rglob("run.json")
    path.write_text(path.read_text()[:20])
    assert cache.find(job, cluster) is None


def test_a_cache_that_cannot_be_written_costs_only_the_reuse(tmp_path: Path, job: Job) -> None:
    (tmp_path / "file").write_text("")
    cache = TraceCache(tmp_path / "file")
    assert not cache.keep(job, load("dgx-h100"), launch(tmp_path / "run"), None)
    assert cache.find(job, load("dgx-h100")) is None
