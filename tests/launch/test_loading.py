"""What data-loader workers need for an iteration's batches, which is in no rank's time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maya.clusters import load
from maya.launch import Run
from maya.predict import judge_trace
from maya.trace import collate

Launch = Callable[..., Run]

# Each sample takes 5 ms of a core, each batch 20.
LOADING = """
import time, torch
from torch.utils.data import DataLoader, Dataset
def work(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
class Samples(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        work(SECONDS)
        return torch.zeros(64)
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, batch in enumerate(DataLoader(Samples(), 4, num_workers=WORKERS, MORE)):
    work(OWN)
    model(batch.cuda()).square().mean().backward()
    if number % BATCHES == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def loaded(launch: Launch, **settings: object) -> Run:
    text = LOADING
    for name, value in {
        "seconds": 0.005,
        "own": 0.0,
        "workers": 2,
        "batches": 1,
        "more": "",
        **settings,
    }.items():
        text = text.replace(name.upper(), str(value))
    run = launch(text)
    assert run.status == "traced", run.traceback
    return run


@pytest.mark.parametrize(("workers", "batches", "seconds"), [(1, 1, 0.020), (2, 1, 0.010), (2, 3, 0.030)])
def test_workers_share_what_an_iteration_takes_of_them(
    launch: Launch, workers: int, batches: int, seconds: float
) -> None:
    trace = collate(loaded(launch, workers=workers, batches=batches))
    assert trace.host_speed is not None
    assert trace.loading_s / trace.host_speed == pytest.approx(seconds, rel=0.5)


def test_a_script_that_waits_for_its_workers_is_told_so(launch: Launch) -> None:
    trace = collate(loaded(launch))
    (note,) = (note for note in judge_trace(trace, load("dgx-h100")).prediction.notes if "workers" in note)
    assert note.startswith("data-loader workers need ")


@pytest.mark.parametrize("more", ["", "persistent_workers=True, pin_memory=True"])
def test_workers_that_keep_up_are_none_to_speak_of(launch: Launch, more: str) -> None:
    trace = collate(loaded(launch, own=0.02, seconds=0.001, more=more))
    assert trace.loading_s > 0
    assert not any("workers" in note for note in judge_trace(trace, load("dgx-h100")).prediction.notes)


def test_what_the_rank_loads_itself_is_in_its_own_time(launch: Launch) -> None:
    assert collate(loaded(launch, workers=0)).loading_s == 0
