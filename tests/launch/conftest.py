"""Launches real scripts on virtual devices: one fork server for the whole session."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from maya.clusters import load
from maya.launch import ForkServer, Job, Run


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer(load("dgx-h100")) as running:
        yield running


@pytest.fixture
def launch(server: ForkServer, tmp_path: Path) -> Callable[..., Run]:
    """`launch(text, world=2, ...)`: the outcome of a script with that text; it finds an empty folder as argv[1]."""

    def run(text: str, world: int = 1, **fields: Any) -> Run:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(text))
        results = tmp_path / "results"
        results.mkdir(exist_ok=True)
        job = Job(str(script), (str(results),), world, timeout_s=120, **fields)
        return server.run(job, tmp_path / "run")

    return run


@pytest.fixture
def values(launch: Callable[..., Run], tmp_path: Path) -> Callable[[str, int], list[Any]]:
    """`values(body, world)`: what `answer` is on each rank after `body`, which finds `rank`, `world` and `device`."""

    def run(body: str, world: int) -> list[Any]:
        text = PROLOGUE + textwrap.dedent(body) + EPILOGUE
        outcome = launch(text, world)
        assert outcome.status == "traced", outcome.traceback
        return [json.loads((tmp_path / "results" / f"{rank}.json").read_text()) for rank in range(world)]

    return run


PROLOGUE = """
import json, os, sys
import torch
import torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
"""

EPILOGUE = """
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(answer, file)
dist.destroy_process_group()
"""
