"""Scripts that capture CUDA graphs after eager iterations, which repeat as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from maya.launch import Job, Run
from maya.launch.graphs import GRAPH_STEPS, speaks_of_graphs
from maya.trace import collate

Launch = Callable[..., Run]

# As PyTorch's notes on CUDA graphs have it for DDP: eleven iterations on a stream beside, then the capture.
WARMED = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 64, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    optimizer.step()
beside = torch.cuda.Stream()
with torch.cuda.stream(beside):
    for _ in range(WARMUP):
        step()
if CAPTURE:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
for _ in range(500_000):
    graph.replay() if CAPTURE else step()
"""


@pytest.mark.parametrize("warmup", [3, 14])
def test_a_script_is_run_until_its_graph_is_replayed(launch: Launch, warmup: int) -> None:
    run = launch(f"WARMUP, CAPTURE = {warmup}, True\n{WARMED}")
    assert run.status == "traced", run.traceback
    assert run.steady[0] >= warmup + 1 and run.notes == ()
    assert collate(run).ranks[0].records["graph"].any()


def test_a_script_that_captures_no_graph_after_all_is_told_so(launch: Launch) -> None:
    text = f"WARMUP, CAPTURE = 3, False\n{WARMED}"
    run = launch(text)
    assert run.status == "traced", run.traceback
    assert run.steady[1] == GRAPH_STEPS
    line = next(at for at, line in enumerate(text.splitlines(), 1) if "CUDAGraph" in line)
    assert [note for note in run.notes if f"speaks of CUDA graphs (its line {line})" in note]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("import torch\ng = torch.cuda.CUDAGraph()", "line 2"),
        ("with torch.cuda.graph(g):", "line 1"),
        ("model = torch.cuda.make_graphed_callables(model, (x,))", "line 1"),
        ("# a CUDAGraph would be faster\nprint()", None),
        ("from torch.fx import graph", None),
    ],
)
def test_what_speaks_of_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str | None
) -> None:
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__main__.py", "package/train.py"):
        (tmp_path / name).write_text(text)
    assert speaks_of_graphs(Job(script=str(tmp_path / "train.py"))) == place
    monkeypatch.chdir(tmp_path)
    for module in ("package", "package.train", "train"):
        assert speaks_of_graphs(Job(script=module, module=True)) == place
    assert speaks_of_graphs(Job(script="json.tool", module=True)) is None
    assert speaks_of_graphs(Job(script=str(tmp_path / "missing.py"))) is None


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ("--layers 2 --cuda-graph-impl transformer_engine", "argument --cuda-graph-impl"),
        ("--enable_cuda_graph", "argument --enable_cuda_graph"),
        ("--cudagraphs=true", "argument --cudagraphs"),
        ("--cuda-graph-impl none", None),
        ("--use-cuda-graphs=False", None),
        ("--no-cuda-graph --graph cuda", None),
    ],
)
def test_arguments_speak_of_graphs_that_a_package_makes(
    tmp_path: Path, arguments: str, place: str | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import package")
    assert speaks_of_graphs(Job(script=str(script), argv=tuple(arguments.split()))) == place


SHARED = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.ones(2, dtype=torch.int64, device="cuda")
dist.all_reduce(x.clone())  # communicators are made before a capture
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    parts = torch.zeros(2, 2, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(parts.view(-1), x)
for number in (3, 5):
    x.fill_(number + dist.get_rank())
    graph.replay()
    assert parts.tolist() == [[number] * 2, [number + 1] * 2], parts.tolist()
dist.destroy_process_group()
"""


def test_small_collectives_within_a_graph_arrive_at_each_launch(launch: Launch) -> None:
    run = launch(SHARED, world=2)
    assert run.status == "traced", run.traceback
