"""Packages that look at the device while they are imported are imported once for all ranks, if it takes no CUDA."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maya.clusters import load
from maya.launch import ForkServer, Job

SCRIPT = """
import json, os, sys
import looking, torch
seen = [looking.CAPABILITY, torch.cuda.get_device_capability(), looking.NAME, torch.cuda.get_device_name()]
memory = [looking.MEMORY, torch.cuda.get_device_properties(0).total_memory]
with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as file:
    json.dump([looking.PROCESS == os.getpid(), *seen, *memory], file)
"""
LOOKING = """
import os
import torch
PROCESS = os.getpid()
CAPABILITY = torch.cuda.get_device_capability()
NAME = torch.cuda.get_device_name()
MEMORY = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """`seen(more)`: what two ranks of an A100 node wrote whose script imports a package of LOOKING and `more`."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(more: str) -> list[Any]:
        (packages / "looking.py").write_text(LOOKING + textwrap.dedent(more))
        job = Job(str(tmp_path / "script.py"), (str(tmp_path),), 2, timeout_s=120)
        with ForkServer(load("dgx-a100")) as server:
            outcome = server.run(job, tmp_path / "run")
        assert outcome.status == "traced", outcome.traceback
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    return run


def test_a_package_that_asks_for_the_devices_properties_is_imported_once(seen: Callable[..., Any]) -> None:
    for by_rank, capability, own, name, own_name, memory, own_memory in seen(""):
        assert not by_rank
        assert capability == own == [8, 0]
        assert name == own_name
        assert memory == own_memory


@pytest.mark.parametrize(
    "more",
    [
        "REGISTERS = torch.cuda.get_device_properties(0).regs_per_multiprocessor",
        "ONES = torch.ones(1, device='cuda')",
        "torch.cuda.init()",
    ],
)
def test_a_package_that_needs_cuda_is_imported_by_each_rank(seen: Callable[..., Any], more: str) -> None:
    for by_rank, capability, own, *_ in seen(more):
        assert by_rank
        assert capability == own == [8, 0]
