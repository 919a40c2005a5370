"""Ranks that are never started are answered for: a few ranks of a world make the calls that they make among all."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest

from maya.launch import Run
from maya.trace import collate
from maya.trace.types import Memcpy

Launch = Callable[..., Run]

# Data x pipeline x tensor parallel, tensor innermost. Whoever is not first in its tensor group learns from a
# broadcast whether to train at all; stages send activations to each other; Gloo gathers an object.
TRAINING = """
import os, torch, torch.distributed as dist
rank, world, stages, width = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 2, 2
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
tensor, stage, data = rank % width, rank // width % stages, rank // width // stages
def mine(lists):
    groups = [(ranks, dist.new_group(ranks)) for ranks in lists]
    return next(group for ranks, group in groups if rank in ranks)
replicas = world // width // stages
at = lambda d, s, t: (d * stages + s) * width + t
tensors = mine([[at(d, s, t) for t in range(width)] for d in range(replicas) for s in range(stages)])
datas = mine([[at(d, s, t) for d in range(replicas)] for s in range(stages) for t in range(width)])
pipes = mine([[at(d, s, t) for s in range(stages)] for d in range(replicas) for t in range(width)])
gloo = dist.new_group(backend="gloo")
names = [None] * world
dist.all_gather_object(names, "a layer", group=gloo)
assert names == ["a layer"] * world, names
layer = torch.nn.Linear(512, 512 + 512 * stage, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(64, 512, device="cuda")
for iteration in range(500_000):
    train = torch.tensor([tensor == 0], dtype=torch.int64).cuda()
    dist.broadcast(train, at(data, stage, 0), group=tensors)
    if stage == 0:
        dist.send(x, at(data, 1, tensor), group=pipes)
    else:
        dist.recv(x, at(data, 0, tensor), group=pipes)
    if train.item():
        layer(x).sum().backward()
        dist.all_reduce(layer.weight.grad, group=tensors)
        dist.all_reduce(layer.weight.grad, group=datas)
    most = torch.tensor([iteration]).cuda()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    assert most.item() == iteration
    optimizer.step()
"""


def work(run: Run) -> list[tuple[Any, ...]]:
    """For every rank what it does in an iteration: kinds, sizes and parties of its calls."""
    trace = collate(run)
    described = [
        tuple(
            (int(row["kind"]), int(row["size"]), tuple(trace.communicators[row["communicator"]].classes))
            if row["communicator"] >= 0
            else (int(row["kind"]), int(row["size"]), ())
            for row in rank.records
        )
        for rank in trace.ranks
    ]
    return [described[c] for c in trace.class_of_rank]


def test_representatives_do_what_they_do_among_all_ranks(launch: Launch) -> None:
    all_ranks = launch(TRAINING, 8, ranks="dedup")
    assert all_ranks.status == "traced", all_ranks.traceback
    expected, classes = work(all_ranks), collate(all_ranks).class_of_rank
    few = launch(TRAINING, 8, ranks="representatives")
    assert few.status == "traced", few.traceback
    assert work(few) == expected
    assert np.array_equal(collate(few).class_of_rank, classes)


SHARES_MEMORY = """
import os, torch, torch.distributed as dist
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
rank, world, width = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), {width}
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
lists = [list(range(first, first + width)) for first in range(0, world, width)]
groups = [(ranks, dist.new_group(ranks)) for ranks in lists]
name = next(group for ranks, group in groups if rank in ranks).group_name
enable_symm_mem_for_group(name)
layer = torch.nn.Linear(512, 1024, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(64, 512, device="cuda")
for iteration in range(500_000):
    with torch.no_grad():
        whole, (up,) = torch.ops.symm_mem.fused_all_gather_matmul(x, [layer.weight.t()], 0, name)
        torch.ops.symm_mem.fused_matmul_reduce_scatter(up, layer.weight, "avg", 0, name)
    layer(x).sum().backward()
    dist.all_reduce(layer.weight.grad)
    optimizer.step()
"""


# Of a pipeline whose stages talk to each other in the world's group, as DeepSpeed's do: first in what shape.
SHAPES = """
import os, torch, torch.distributed as dist
rank, world, width = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 2
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
def mine(lists):
    groups = [(ranks, dist.new_group(ranks)) for ranks in lists]
    return next(group for ranks, group in groups if rank in ranks)
datas = mine([list(range(start, start + width)) for start in range(0, world, width)])
pipes = mine([list(range(start, world, width)) for start in range(width)])
layer = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for iteration in range(500_000):
    x = torch.randn(64, 512, device="cuda")
    shape = torch.empty(256, dtype=torch.int32, device="cuda")
    if rank >= width:
        dist.recv(shape, rank - width)
        x = torch.empty(shape[:2].tolist(), device="cuda")
        assert x.shape == (64, 512), x.shape
        dist.recv(x, rank - width)
    y = layer(x)
    if rank + width < world:
        shape[:2].copy_(torch.tensor(y.shape, dtype=torch.int32))
        dist.send(shape, rank + width)
        dist.send(y.detach(), rank + width)
    y.sum().backward()
    dist.all_reduce(layer.weight.grad, group=datas)
    optimizer.step()
"""


def from_few(launch: Launch, script: str, world: int, fewer_than: int) -> Run:
    """Traced by that few ranks, all of which were told what absent ones would tell them."""
    run = launch(script, world, ranks="representatives")
    assert run.status == "traced", run.traceback
    assert run.launched < fewer_than
    assert not any("not started" in note for note in run.notes)
    return run


def test_who_stands_for_an_absent_stage_tells_what_it_would(launch: Launch) -> None:
    few = from_few(launch, SHAPES, 32, fewer_than=32)
    # Classes are not numbered alike.
    made = [
        [[call[:2] for call in rank] for rank in work(r)] for r in (few, launch(SHAPES, 32, ranks="dedup"))
    ]
    assert made[0] == made[1]


def test_a_check_that_fails_for_want_of_its_neighbours_is_left_out(launch: Launch) -> None:
    """As of DeepSpeed's pipeline: what a tensor rank is sent names its place, and who stands for its sender has
    another."""
    script = SHAPES.replace('int(os.environ["WORLD_SIZE"]), 2', 'int(os.environ["WORLD_SIZE"]), 4')
    script = script.replace(
        "shape[:2].copy_(torch.tensor(y.shape, dtype=torch.int32))",
        "shape[:3].copy_(torch.tensor([*y.shape, rank % width], dtype=torch.int32))",
    )
    script = script.replace("assert x.shape == (64, 512), x.shape", "assert shape[2].item() == rank % width")
    run = from_few(launch, script, 32, fewer_than=32)
    assert run.checked == 0 and not run.repeated
    assert any("no rank was started to check" in note for note in run.notes)


# torch.distributed.pipelining: stages tell the next one the shape of what they send, as pickled objects; where a rank
# has several stages the first rank hears it from the last. PyTorch 2.15's then tell the one before of the gradients.
PIPELINING = """
import os, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
rank, turns = int(os.environ["RANK"]), {turns}
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
mesh = dist.init_device_mesh("cuda", (4, dist.get_world_size() // 4), mesh_dim_names=("pipeline", "data"))
pipe, place = mesh["pipeline"].get_group(), mesh["pipeline"].get_local_rank()
layers = [torch.nn.Linear(512, 512, device="cuda") for _ in range(turns)]
stages = [PipelineStage(layer, place + 4 * turn, 4 * turns, device, group=pipe) for turn, layer in enumerate(layers)]
loss = lambda y, target: (y - target).pow(2).mean()
schedule = (
    Schedule1F1B(stages[0], 8, loss_fn=loss) if turns == 1 else ScheduleInterleaved1F1B(stages, 8, loss_fn=loss)
)
optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
x = torch.randn(64, 512, device="cuda")
for iteration in range(500_000):
    schedule.step(*([x] if place == 0 else []), **(dict(target=x) if place == 3 else {}))
    for layer in layers:
        dist.all_reduce(layer.weight.grad, group=mesh["data"].get_group())
    optimizer.step()
"""


@pytest.mark.parametrize("turns", [1, 2])
def test_stages_of_a_pipeline_learn_shapes_from_absent_ones(launch: Launch, turns: int) -> None:
    script = PIPELINING.replace("{turns}", str(turns))
    few = from_few(launch, script, 32, fewer_than=16)
    assert few.first_iteration_tells  # whoever answered
    assert work(few) == work(launch(script, 32, ranks="dedup"))


# Its stages send each other DTensors, which PyTorch to 2.11 has them not do.
PIPELINING_DTENSORS = """
import os, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
sizes = (4, dist.get_world_size() // 8, 2)
mesh = dist.init_device_mesh("cuda", sizes, mesh_dim_names=("pipeline", "data", "tensor"))
place = mesh["pipeline"].get_local_rank()
class Layer(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x.to_local() if place else x)
        return y if place == 3 else DTensor.from_local(y, mesh["tensor"], [PLACED], run_check=False)
layer = Layer(512, 512, device="cuda")
pipe = mesh["pipeline"].get_group()
stage = PipelineStage(layer, place, 4, device, group=pipe, get_mesh=lambda *_: mesh["tensor"])
schedule = Schedule1F1B(stage, 8, loss_fn=lambda y, target: (y - target).pow(2).mean())
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(64, 512, device="cuda")
for iteration in range(500_000):
    schedule.step(*([x] if place == 0 else []), **(dict(target=x) if place == 3 else {}))
    dist.all_reduce(layer.weight.grad, group=mesh["data"].get_group())
    optimizer.step()
"""


@pytest.mark.skipif(
    tuple(map(int, version("torch").split(".")[:2])) < (2, 15), reason="stages send no DTensors"
)
def test_gradients_of_dtensors_are_cut_like_these_but_for_whole_ones(launch: Launch) -> None:
    script = PIPELINING_DTENSORS.replace("PLACED", "Shard(1)")
    few = from_few(launch, script, 32, fewer_than=16)
    assert work(few) == work(launch(script, 32, ranks="dedup"))
    run = launch(PIPELINING_DTENSORS.replace("PLACED", "Replicate()"), 32, ranks="representatives")
    assert (run.status, run.launched) == ("traced", 32), run.traceback
    assert any("Expected _StageBackwardMeta" in note for note in run.notes), run.notes


@pytest.mark.parametrize(
    "use_batch", [True, False], ids=["in the group's communicator", "in one of two ranks"]
)
def test_stages_hear_from_absent_ones_on_the_way_back(launch: Launch, use_batch: bool) -> None:
    """As where a rank has a stage near the start and one as near the end: the first hears from the second. PyTorch to
    2.8 has a communicator for each two stages."""
    from_few(
        launch,
        """
        import os, torch, torch.distributed as dist
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        mesh = dist.init_device_mesh("cuda", (4, world // 4), mesh_dim_names=("pipeline", "data"))
        pipe, place, replicas = mesh["pipeline"].get_group(), mesh["pipeline"].get_local_rank(), world // 4
        options = {"group": pipe, "device": torch.device("cuda"), "use_batch": USE_BATCH}
        layer = torch.nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in (1, -1):
            shape = [(64, 512)]
            if 0 <= place - step < 4:
                heard = [None]
                dist.recv_object_list(heard, rank - step * replicas, **options)
                assert heard == shape, heard
            if 0 <= place + step < 4:
                dist.send_object_list(shape, rank + step * replicas, **options)
        for _ in range(5):
            layer(torch.ones(8, 8, device="cuda")).sum().backward()
            optimizer.step()
        """.replace("USE_BATCH", str(use_batch)),
        64,
        fewer_than=16,
    )


def test_ranks_that_share_memory_copy_from_absent_ones(launch: Launch) -> None:
    script = SHARES_MEMORY.replace("{width}", "4")
    runs = [launch(script, 8, ranks=ranks) for ranks in ("dedup", "representatives")]
    for run in runs:
        assert run.status == "traced", run.traceback
    assert work(runs[0]) == work(runs[1])
    trace = collate(runs[1])
    made = [trace.operations[row] for row in trace.ranks[0].records["operation"] if row >= 0]
    copied = [copy.bytes for copy in made if isinstance(copy, Memcpy) and copy.direction == "p2p"]
    shard = 64 * 512 * 4
    gathered, reduced = 3, 3  # from and to the three others
    assert copied == [shard] * (gathered + reduced) * trace.iterations_per_cycle


def test_memory_of_several_nodes_is_not_shared(launch: Launch) -> None:
    run = launch(SHARES_MEMORY.replace("{width}", "16"), 16)
    assert run.status == "failed"
    assert "ranks 0 to 15: nodes of 8 GPUs" in run.traceback


def test_a_large_world_takes_few_ranks(launch: Launch) -> None:
    run = launch(TRAINING, 512)
    assert run.status == "traced", run.traceback
    assert run.launched <= 12 and run.checked == 3
    trace = collate(run)
    assert (trace.world, len(trace.ranks)) == (512, 2)
    assert {len(communicator.members) for communicator in trace.communicators} == {2, 128, 512}
    for communicator in trace.communicators:
        assert -1 not in communicator.members
        own = 4 if len(communicator.members) == 128 else 512 // len(communicator.members)
        alike = [c for c in trace.communicators if len(c.members) == len(communicator.members)]
        assert sum(c.instances for c in alike) in (own, 2 * own)  # pairs: tensor groups and pipelines


def test_a_script_that_fails_before_it_needs_others_is_not_run_again(launch: Launch) -> None:
    run = launch("raise ValueError('64 layers on 3 stages')", 64)
    assert (run.status, run.launched) == ("failed", 2)
    assert "64 layers on 3 stages" in run.traceback


@pytest.mark.parametrize("ranks", ["all", "dedup", "representatives"])
def test_groups_are_split_from_one_that_is_bound_to_its_device(launch: Launch, ranks: str) -> None:
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        mesh = dist.init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        halves = dist.split_group(split_ranks=[list(range(world // 2)), list(range(world // 2, world))])
        layer = torch.nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(500_000):
            layer(torch.ones(8, 64, device="cuda")).sum().backward()
            for group in (mesh["data"].get_group(), mesh["tensor"].get_group(), halves):
                dist.all_reduce(layer.weight.grad, group=group)
            optimizer.step()
        """,
        8,
        ranks=ranks,
    )
    assert run.status == "traced", run.traceback
    assert run.launched == 8 if ranks != "representatives" else run.launched < 8
    used = [len(communicator.members) for communicator in collate(run).communicators]
    assert sorted(set(used)) == [2, 4]


@pytest.mark.parametrize("ranks", ["dedup", "representatives"])
def test_a_script_that_needs_every_rank_says_so_or_gets_them(launch: Launch, ranks: str) -> None:
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank % 8)
        dist.init_process_group("nccl")
        store = dist.distributed_c10d._get_default_store()
        store.set(f"from {rank}", str(rank))
        assert store.get(f"from {17 - rank if rank < 9 else rank}") is not None
        """,
        18,
        ranks=ranks,
    )
    assert run.status == "traced", run.traceback
    assert run.launched == 18
    if ranks == "representatives":
        assert any("with 2 the script failed (RuntimeError: " in note for note in run.notes), run.notes


def test_ranks_whose_stand_ins_wait_for_them_go_on_at_once(launch: Launch) -> None:
    """Each started rank of a pair of groups waits for an absent member that the other one stands for, which makes
    that call only after one that it in turn waits for: a circle, a thousand times over."""
    run = launch(
        """
        import os, time, torch, torch.distributed as dist
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        groups = [(ranks, dist.new_group(ranks)) for ranks in ([i, i + world // 2] for i in range(world // 2))]
        other = next(group for ranks, group in groups if rank in ranks)
        quarters = [(r, dist.new_group(r)) for r in ([i, i ^ 1] for i in range(0, world, 2))]
        near = next(group for ranks, group in quarters if rank in ranks)
        layer = torch.nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.ones(8, 8, device="cuda")
        began = time.monotonic()
        for _ in range(3):
            for _ in range(500):
                value = torch.ones(4, device="cuda")
                dist.all_reduce(value, group=other if rank % 2 else near)
                dist.all_reduce(value, group=near if rank % 2 else other)
            layer(x).sum().backward()
            optimizer.step()
            assert time.monotonic() - began < 60, "waited for what nobody sends"
        """,
        64,
    )
    assert run.status == "traced", run.traceback
    assert run.launched < 64


def test_objects_are_gathered_among_thousands(launch: Launch) -> None:
    """Started ranks see each other's objects, and for those that are absent one of these, of whatever size."""
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        halves = [dist.new_group(list(range(i * world // 2, (i + 1) * world // 2))) for i in range(2)]
        layer = torch.nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for group, members in ((None, world), (halves[2 * rank // world], world // 2)):
            names = [None] * members
            dist.all_gather_object(names, {"rank": rank, "padding": "x" * (rank % 2)}, group=group)
            assert names[dist.get_rank(group)] == {"rank": rank, "padding": "x" * (rank % 2)}, names
            assert all(len(name["padding"]) == name["rank"] % 2 for name in names), names
            assert len({name["rank"] for name in names}) > 1, names
        for _ in range(5):
            layer(torch.ones(8, 8, device="cuda")).sum().backward()
            optimizer.step()
        """,
        4096,
    )
    assert run.status == "traced", run.traceback
    assert run.launched < 12


def test_lists_are_gathered_from_absent_ranks(launch: Launch) -> None:
    """PyTorch 2.15 gathers into a list so: each rank in its turn is the root, and names its own value each time."""
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        mine = torch.tensor([28], device="cuda")
        everyone = [torch.zeros_like(mine) for place in range(world)]
        dist.all_gather(everyone, mine)
        assert [value.item() for value in everyone] == [28] * world, everyone
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(torch.ones(8, 8, device="cuda")).sum().backward()
            optimizer.step()
        """,
        64,
    )
    assert run.status == "traced", run.traceback
    assert run.launched < 64
