"""How a job ends: iterations repeat, the script fails, memory runs out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maya.clusters import load
from maya.launch import ForkServer, Job, Run, watch
from maya.launch.layout import RecordKind, rank_path
from maya.launch.watch import LONG_ITERATION, WARM_STEPS
from maya.trace import collate
from maya.trace.format import read_rank
from maya.trace.types import Gemm

Launch = Callable[..., Run]
Values = Callable[[str, int], list[Any]]

TRAINING = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).cuda()
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for iteration in range(500_000):
    optimizer.zero_grad()
    model(torch.randn(32, 64, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def test_endless_data_parallel_training_ends_by_itself_as_one_class(launch: Launch) -> None:
    run = launch(TRAINING, 4)
    assert run.status == "traced", run.traceback
    assert run.representative_of == (0, 0, 0, 0)
    assert run.period == 1
    assert 2 <= run.steady[1] - run.steady[0] < WARM_STEPS


def test_a_hook_whose_callbacks_go_around_a_pool_of_streams_repeats(launch: Launch) -> None:
    text = TRAINING.replace(
        "optimizer =", "model.register_comm_hook(None, default_hooks.fp16_compress_hook)\noptimizer ="
    )
    run = launch(f"from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n{text}", 2)
    assert run.status == "traced", run.traceback
    assert run.steady[1] <= WARM_STEPS and run.notes == ()
    assert collate(run).notes == ()  # nothing of the times that DDP takes for itself, either


def test_the_machine_is_measured_beside_the_ranks(launch: Launch) -> None:
    run = launch(TRAINING)
    assert run.pace_ns is not None
    assert 1e5 < run.pace_ns < 1e9  # a training step of some hundred operators


def test_what_repeats_is_repeated_without_observing_operators(launch: Launch) -> None:
    run = launch(TRAINING)
    assert run.silent[0] == run.steady[1] < run.silent[1]
    raw = read_rank(rank_path(run.directory, 0))
    (last,) = raw.rows_after([run.silent[0]])
    assert raw.records["ranges"][:last].any() and not raw.records["ranges"][last:].any()
    job = collate(run)
    assert job.iterations_recorded == run.silent[1] - run.silent[0]
    products = [operation for operation in job.operations if isinstance(operation, Gemm)]
    assert {product.operator.name for product in products} >= {"aten::addmm", "aten::mm"}


TWO_OPTIMIZERS = """
import torch
layers = [torch.nn.Linear(64, 64, device="cuda") for _ in range(2)]
optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
for iteration in range(500_000):
    for layer, optimizer in zip(layers, optimizers):
        layer(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_steps_are_told_apart_where_operators_are_not_observed(launch: Launch) -> None:
    run = launch(TWO_OPTIMIZERS)
    assert run.period == 2 and run.silent[1] - run.silent[0] >= 2
    records = read_rank(rank_path(run.directory, 0)).records
    steps = records[records["kind"] == RecordKind.STEP]["size"].tolist()
    assert steps == [1 + number % 2 for number in range(len(steps))]
    assert collate(run).notes == ()


def test_steps_of_an_optimizer_of_the_scripts_own_are_observed(launch: Launch) -> None:
    run = launch("""
        import torch
        weight = torch.nn.Parameter(torch.zeros(64, 64, device="cuda"))
        for iteration in range(500_000):
            (torch.randn(8, 64, device="cuda") @ weight).sum().backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
        """)
    assert run.status == "traced", run.traceback
    assert run.steady[1] - run.steady[0] > 2 and run.silent == (0, 0)


READING = TRAINING.replace(
    "optimizer.step()",
    "if not (model.module[0].weight.grad[:1, :1] > 0).all():\n"
    "        raise RuntimeError('not positive')\n"
    "    optimizer.step()",
)


def test_what_the_host_reads_is_as_it_was_while_operators_were_observed(launch: Launch) -> None:
    run = launch(READING)
    assert run.status == "traced", run.traceback
    assert run.silent[1] > run.silent[0]


PAUSING = "import time\n" + TRAINING.replace("optimizer.step()", "optimizer.step(); time.sleep(0.6)")


def test_iterations_of_a_second_are_repeated_until_their_calls_are_enough(launch: Launch) -> None:
    run = launch(PAUSING)
    assert run.status == "traced", run.traceback
    assert run.silent[0] + 2 < run.silent[1] <= WARM_STEPS


def test_iterations_that_are_long_are_not_repeated_to_warm(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOST_WARM_SECONDS", 0.5)
    run = launch(PAUSING)
    assert run.status == "traced", run.traceback
    assert run.steady[1] - run.steady[0] == 2 and run.silent == (0, 0)


LONG = f"""
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
weight = torch.zeros(64, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
while True:
    for _ in range({LONG_ITERATION}):
        weight.data.add_(1)
    weight.grad = torch.zeros_like(weight)
    dist.all_reduce(weight.grad)
    optimizer.step()
"""


def test_long_iterations_are_compared_by_the_first_and_not_repeated(launch: Launch) -> None:
    run = launch(LONG, 4, ranks="representatives")
    assert run.status == "traced", run.traceback
    assert run.steady == (1, 2)
    assert len(set(run.representative_of)) == 1
    assert "the second is taken as steady" in " ".join(run.notes)
    steps = {rank: _optimizer_steps(run, rank) for rank in (0, 3)}
    assert steps == {0: 2, 3: 1}  # the others ended after the first iteration told


def test_of_long_iterations_as_many_run_as_are_asked_for(launch: Launch) -> None:
    run = launch(LONG, iterations=2)
    assert run.steady[0] == 1
    assert run.steady[1] >= 3  # on a fast machine more: they are repeated until they are warm
    assert not run.notes


def _optimizer_steps(run: Run, rank: int) -> int:
    records = read_rank(rank_path(run.directory, rank)).records
    return int((records["kind"] == RecordKind.STEP).sum())


def test_a_script_that_ends_while_its_iterations_repeat_is_steady(launch: Launch) -> None:
    run = launch(TRAINING.replace("500_000", "5"))
    assert run.status == "traced", run.traceback
    assert run.steady == (2, 4)  # DistributedDataParallel takes the first two to set up
    assert run.silent == (4, 5)
    assert not run.notes


def test_ranks_merged_again_are_answered_for_by_whoever_is_left(launch: Launch) -> None:
    # Rank 0 alone does more in its first iteration: 2 and 3 end for rank 1, which ends for rank 0 after the second.
    more = """
    if rank == 0 and iteration == 0:
        torch.ones(5, device="cuda").exp_()
    norms = torch.full((3,), 2.0, device="cuda")
    dist.all_reduce(norms)
    assert norms.tolist() == [8.0, 8.0, 8.0]
    optimizer.step()
"""
    run = launch(TRAINING.replace("    optimizer.step()\n", more.lstrip("\n")), 4)
    assert run.status == "traced", run.traceback
    assert run.representative_of == (0, 0, 0, 0)
    assert not run.notes


def test_a_communicator_made_after_ranks_were_merged_knows_its_members(launch: Launch) -> None:
    """As of a group that reduces a loss when it is logged, after the first optimizer step."""
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
        layer = torch.nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for iteration in range(500_000):
            layer(torch.randn(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            loss = torch.tensor([2.0]).cuda()
            dist.all_reduce(loss, group=pairs[rank // 2])
            assert loss.item() == 4.0
        """,
        world=4,
    )
    assert run.status == "traced", run.traceback
    assert run.merged and not run.notes
    assert {c.all_members for c in collate(run).communicators} == {((0, 1), (2, 3))}


def test_every_rank_runs_on_where_merging_is_off(launch: Launch) -> None:
    run = launch(TRAINING, 2, ranks="all", iterations=1)
    assert run.status == "traced", run.traceback
    assert run.representative_of == (0, 1)
    assert run.steady[0] >= 1


def test_two_steps_an_iteration_are_found(launch: Launch) -> None:
    run = launch("""
        import torch
        nets = [torch.nn.Linear(8, 8).cuda(), torch.nn.Linear(32, 32).cuda()]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        for iteration in range(500_000):
            for net, optimizer in zip(nets, optimizers):
                net(torch.randn(4, net.in_features, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        """)
    assert run.status == "traced", run.traceback
    assert run.period == 2


ROLLOUTS = """
import torch
policy = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for rollout in range(ROLLOUTS):
    for _ in range(40):
        with torch.no_grad():
            policy(torch.ones(1, 64, device="cuda"))
    for _ in range(12):
        policy(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
while True:
    policy(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("rollouts", "period"), [(1000, 12), (1, 1)])
def test_a_rollout_before_the_first_step_is_taken_in_if_it_comes_again_soon(
    launch: Launch, rollouts: int, period: int
) -> None:
    run = launch(ROLLOUTS.replace("ROLLOUTS", str(rollouts)))
    assert run.status == "traced" and run.period == period


def test_an_optimizer_for_each_parameter_that_steps_in_the_backward_pass(launch: Launch) -> None:
    run = launch("""
        import torch
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(10))).cuda()
        optimizers = {parameter: torch.optim.AdamW([parameter], fused=True) for parameter in net.parameters()}
        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for iteration in range(500_000):
            net(torch.randn(4, 64, device="cuda")).sum().backward()
        """)
    assert run.status == "traced" and run.alike, run.traceback
    trace = collate(run)
    assert trace.iterations_per_cycle == 1
    launched = Counter(int(record["operation"]) for record in trace.ranks[0].records)
    steps = [
        number for number, each in enumerate(trace.operations) if "FusedAdam" in getattr(each, "name", "")
    ]
    assert sum(launched[number] for number in steps) == 20  # of each parameter one


PREPARED = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
layer = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW(layer.parameters())
for parameter in layer.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()  # has the state made, as DeepSpeed does
for iteration in range(500_000):
    optimizer.zero_grad()
    for _ in range(1 + rank // 2):
        layer(torch.randn(8, 64, device="cuda")).sum().backward()
    dist.all_reduce(layer.weight.grad)
    optimizer.step()
"""


def test_a_step_that_only_makes_the_optimizers_state_tells_no_ranks_alike(launch: Launch) -> None:
    run = launch(PREPARED, 4)
    assert run.status == "traced", run.traceback
    assert run.representative_of == (0, 0, 2, 2)
    assert collate(run).notes == ()


def test_steps_of_a_script_without_backward_passes_are_its_iterations(launch: Launch) -> None:
    run = launch("""
        import torch
        layer = torch.nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for iteration in range(500_000):
            with torch.no_grad():
                x = torch.randn(8, 64, device="cuda")
                layer.weight.grad = layer(x).T @ x
            optimizer.step()
        """)
    assert run.status == "traced", run.traceback
    assert run.period == 1 and run.steady[1] <= WARM_STEPS and run.notes == ()


UNLIKE = """
import torch
layers = [torch.nn.Linear(64, 64, device="cuda") for _ in range(OPTIMIZERS)]
optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
for iteration in range(500_000):
    for layer, optimizer in zip(layers, optimizers):
        layer(torch.randn(100 + iteration, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("optimizers", "several"), [(1, 16), (2, 1)])
def test_of_iterations_that_are_never_alike_the_mean_of_several_stands_for_all(
    launch: Launch, optimizers: int, several: int
) -> None:
    """As of sequences of unlike lengths. How many iterations two optimizers' steps are, is not told."""
    run = launch(UNLIKE.replace("OPTIMIZERS", str(optimizers)))
    assert run.status == "traced" and not run.alike
    trace = collate(run)
    assert trace.iterations_per_cycle == several
    assert len(trace.notes) == 1 and ("mean of the last 16" in trace.notes[0]) == (several > 1)
    widths = {
        size for each in trace.operations if isinstance(each, Gemm) for size in (each.m, each.n, each.k)
    }
    assert len(widths - {64}) == several


@pytest.mark.parametrize(("steps", "several"), [(3, 1), (10, 5)])
def test_nor_does_the_last_alone_of_a_script_that_ends_before_that(
    launch: Launch, steps: int, several: int
) -> None:
    run = launch(UNLIKE.replace("OPTIMIZERS", "1").replace("500_000", str(steps)))
    trace = collate(run)
    assert trace.iterations_per_cycle == several
    assert [f"mean of the last {several}" in note for note in trace.notes] == [several > 1]


def test_stages_that_send_one_by_one_are_told_from_others_by_their_work(launch: Launch) -> None:
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        layer = torch.nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for iteration in range(500_000):
            x = torch.randn(8, 64, device="cuda")
            if rank >= 2:
                dist.recv(x, rank - 2)
            y = layer(x)
            if rank < 2:
                dist.send(y.detach(), rank + 2)
            y.sum().backward()
            optimizer.step()
        """,
        world=4,
    )
    assert run.status == "traced", run.traceback
    assert run.representative_of == (0, 0, 2, 2)


def test_a_script_that_raises_fails_with_its_own_traceback(launch: Launch, tmp_path: Path) -> None:
    run = launch("""
        def prepare(layers):
            raise ValueError(f"cannot split {layers} layers")
        prepare(7)
        """)
    assert run.status == "failed"
    assert run.failed_rank == 0
    assert "ValueError: cannot split 7 layers" in run.traceback
    assert f'File "{tmp_path / "script.py"}", line 4' in run.traceback
    assert "maya" not in run.traceback.replace(str(tmp_path), "")


GPIPE = """
import os, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
device = torch.device("cuda", rank)
module = torch.nn.Linear(64, 64, device=device)
schedule = ScheduleGPipe(PipelineStage(module, rank, world, device), 4, loss_fn=torch.nn.MSELoss())
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
x = torch.randn(32, 64, device=device)
for iteration in range(500_000):
    optimizer.zero_grad()
    schedule.step(*[x] * (rank == 0), **({"target": x} if rank == world - 1 else {}))
    optimizer.step()
"""


def test_a_stage_whose_next_one_does_as_it_does_waits_for_nobody(launch: Launch) -> None:
    run = launch(
        GPIPE, 4
    )  # the third stage is the second's copy: its gradients would come from the second itself
    assert run.status == "traced", run.traceback
    assert run.representative_of == (0, 1, 1, 3) and run.notes == ()
    assert collate(run).uncovered == ()


def test_a_nonzero_exit_is_a_failure(launch: Launch) -> None:
    run = launch("import sys; sys.exit(3)")
    assert (run.status, run.failed_rank) == ("failed", 0)


def test_a_rank_that_crashes_says_by_which_signal(launch: Launch) -> None:
    run = launch("import ctypes; ctypes.string_at(0)")
    assert run.status == "failed" and "by signal 11 (Segmentation fault)" in run.traceback


def test_a_rank_that_is_killed_says_how_much_memory_there_is(launch: Launch) -> None:
    run = launch("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run.status == "failed"
    assert "GiB are free now" in run.traceback
    assert "--ranks representatives" in run.traceback


def test_one_failing_rank_ends_the_others(launch: Launch) -> None:
    run = launch(
        """
        import os, time
        if os.environ["RANK"] == "1":
            raise RuntimeError("rank one is unwell")
        time.sleep(600)
        """,
        2,
    )
    assert (run.status, run.failed_rank) == ("failed", 1)
    assert "rank one is unwell" in run.traceback


def test_too_large_an_allocation_is_out_of_memory(launch: Launch) -> None:
    run = launch("""
        import torch
        held = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
        more = torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
        """)
    assert run.status == "oom"
    assert run.out_of_memory is not None
    assert run.out_of_memory.requested_bytes == 40 << 30
    assert 0 < run.out_of_memory.shortfall_bytes < 40 << 30
    assert "Tried to allocate 40.00 GiB" in run.out_of_memory.message


def test_nccl_takes_memory_with_the_first_communicator_and_with_each(launch: Launch, tmp_path: Path) -> None:
    run = launch("""
        import json, sys, torch, torch.distributed as dist
        torch.cuda.set_device(0)
        some = torch.zeros(4, device="cuda")
        before, taken = torch.cuda.mem_get_info()[0], []
        def tell(): taken.append(before - torch.cuda.mem_get_info()[0])
        def use(group=None): dist.all_reduce(some, group=group), tell()
        dist.init_process_group("nccl"), use()
        groups = []
        for _ in range(2):
            groups.append(dist.new_group([0])), use(groups[-1])
        dist.destroy_process_group(groups[1]), tell()
        json.dump(taken, open(sys.argv[1] + "/taken.json", "w"))
        """)
    assert run.status == "traced", run.traceback
    gpu = load("dgx-h100").device
    communicators = [1, 2, 3, 2]
    taken = json.loads((tmp_path / "results" / "taken.json").read_text())
    assert taken == [gpu.nccl_bytes + n * gpu.communicator_bytes for n in communicators]


def test_nccl_takes_memory_for_each_peer_that_is_sent_to(values: Values) -> None:
    taken = values(
        """
        some, all_of_it = torch.zeros(4, device=device), torch.zeros(world, device=device)
        dist.all_reduce(some)
        before, answer = torch.cuda.mem_get_info()[0], []
        for _ in range(2):
            if rank == 0:
                dist.batch_isend_irecv([dist.P2POp(dist.isend, some, 1)])
            elif rank == 1:
                dist.batch_isend_irecv([dist.P2POp(dist.irecv, some, 0)])
            answer.append(before - torch.cuda.mem_get_info()[0])
        for _ in range(2):
            dist.all_to_all_single(torch.zeros_like(all_of_it), all_of_it)
            answer.append(before - torch.cuda.mem_get_info()[0])
        """,
        3,
    )
    peers = [[1, 1, 2, 2], [1, 1, 2, 2], [0, 0, 2, 2]]
    assert taken == [[n * load("dgx-h100").node.peer_bytes for n in met] for met in peers]


def test_a_communicator_that_finds_no_memory_is_out_of_memory(launch: Launch) -> None:
    run = launch("""
        import torch, torch.distributed as dist
        torch.cuda.set_device(0)
        some = torch.zeros(4, device="cuda")
        free = torch.cuda.mem_get_info()[0]
        held = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")
        dist.init_process_group("nccl")
        dist.all_reduce(some)
        """)
    device = load("dgx-h100").device
    assert run.status == "oom", run.traceback
    assert run.out_of_memory is not None
    assert run.out_of_memory.requested_bytes == device.nccl_bytes + device.communicator_bytes
    assert 0 < run.out_of_memory.free_bytes <= 64 << 20
    assert "out of memory" in run.out_of_memory.message


def test_a_short_script_is_one_iteration(launch: Launch) -> None:
    run = launch("import torch; (torch.ones(8, device='cuda') * 2).sum()")
    assert run.status == "traced", run.traceback
    assert "no optimizer step" in run.notes[0]


def test_nvidia_smi_tells_of_the_virtual_devices(values: Values) -> None:
    (answer, _) = values(
        """
        import ctypes, subprocess
        def smi(*arguments):
            return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True)
        driver = ctypes.create_string_buffer(80)
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        nvml.nvmlInit_v2(), nvml.nvmlSystemGetDriverVersion(driver, 80)
        name, bytes_ = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
        answer = [
            smi().returncode, name in smi().stdout, smi("-L").stdout.count(name),
            smi("--query-gpu=index,memory.total", "--format=csv,noheader,nounits").stdout,
            smi("--query-gpu=gpu_name", "--format=csv", "-i", "1").stdout.splitlines() == ["name", name],
            f"0, {bytes_ >> 20}", f"GPU-{torch.cuda.get_device_properties(0).uuid}" in smi("-L").stdout,
            driver.value.decode() in smi("--query-gpu=driver_version", "--format=csv,noheader").stdout.split(),
            smi("--query-gpu=nonsense").returncode, smi("topo", "-m").returncode,
        ]
        """,
        2,
    )
    status, named, listed, queried, header, first, uuid, driver, *refused = answer
    assert (status, named, listed, header, uuid, driver, refused) == (0, True, 2, True, True, True, [2, 2])
    assert queried.splitlines()[0] == first and len(queried.splitlines()) == 2


OWN_OPTIMIZER = """
import torch
from torch.utils.checkpoint import checkpoint
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).cuda()
for iteration in range(500_000):
    for _ in range(4):
        batch = torch.randn(32, 64, device="cuda", requires_grad=True)
        checkpoint(model, batch, use_reentrant=REENTRANT).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            ZERO
"""
NONE, ZEROED = "parameter.grad = None", "parameter.grad.zero_()"


@pytest.mark.parametrize("zero", [NONE, ZEROED])
@pytest.mark.parametrize("reentrant", [True, False])
def test_micro_batches_of_a_scripts_own_optimizer_are_one_iteration(
    launch: Launch, zero: str, reentrant: bool
) -> None:
    run = launch(OWN_OPTIMIZER.replace("ZERO", zero).replace("REENTRANT", str(reentrant)))
    assert run.status == "traced", run.traceback
    assert run.period == 1
    job = collate(run)
    assert any("gradients renewed" in note for note in job.notes)
    kernels = job.ranks[0].records["kind"] == RecordKind.KERNEL
    assert kernels.sum() > 4 * 10


def test_an_optimizer_of_pytorchs_that_comes_late_tells_iterations(launch: Launch) -> None:
    warming = "for _ in range(3):\n    model(torch.randn(32, 64, device='cuda')).sum().backward()\n"
    run = launch(TRAINING.replace("optimizer =", warming + "optimizer ="))
    assert run.status == "traced", run.traceback
    assert not any("gradients renewed" in note for note in collate(run).notes)


def test_arguments_and_main_are_the_scripts_own(launch: Launch, tmp_path: Path) -> None:
    run = launch("""
        import sys
        assert __name__ == "__main__"
        assert sys.argv[0].endswith("script.py") and sys.argv[1].endswith("results")
        """)
    assert run.status == "traced", run.traceback


def test_a_server_runs_job_after_job(server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch; torch.ones(8, device='cuda')")
    for turn in range(5):
        run = server.run(Job(str(script)), tmp_path / f"run{turn}")
        assert run.status == "traced", run.traceback


def test_ranks_that_wait_for_each_other_fail_with_what_they_wait_for(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maya.launch.watch.HANG_SECONDS", 2.0)
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        flag = torch.ones(1, device="cuda")
        dist.recv(flag, 1 - rank)
        dist.send(flag, 1 - rank)
        """,
        2,
    )
    assert run.status == "failed"
    assert "rank 0: waiting for rank 1" in run.traceback
    assert "rank 1: waiting for rank 0" in run.traceback


def test_a_crowded_machine_is_not_taken_for_ranks_that_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message may lie there, as long as no waiting rank has come to look for it."""
    now, rested = 0.0, [100]
    monkeypatch.setattr("maya.launch.watch.time.monotonic", lambda: now)
    progress = watch._Progress(lambda: ("waiting",), lambda: tuple(rested), since=0.0)

    def stalled(at: float) -> bool:
        nonlocal now
        now = at
        return progress.stalled

    assert not any(stalled(float(at)) for at in range(1, 30))
    rested[0] += 10
    assert stalled(30.0)
    rested[0] -= 10
    assert not stalled(100.0) and stalled(122.0)


def test_a_rank_that_waits_for_processes_of_its_own_does_not_stand_still(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maya.launch.watch.HANG_SECONDS", 2.0)
    run = launch(
        """
        import subprocess, sys, torch
        work = "import time; until = time.monotonic() + 6\\nwhile time.monotonic() < until: pass"
        subprocess.run(["sh", "-c", '"$0" -c "$1"; exit 0', sys.executable, work])
        torch.ones(8, device="cuda")
        """
    )
    assert run.status == "traced", run.traceback


def test_a_rank_that_stands_still_says_where(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maya.launch.watch.HANG_SECONDS", 2.0)
    run = launch("import threading\ndef wait():\n    threading.Event().wait()\nwait()")
    assert run.status == "failed"
    assert re.search(
        r"rank 0: running, .*, at script.py:3 \(wait\), in threading.py:\d+ \(wait\)", run.traceback
    )


def test_ranks_that_stand_still_for_want_of_memory_say_so_and_do_not_run_again(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maya.launch.watch.HANG_SECONDS", 2.0)
    monkeypatch.setattr("maya.launch.watch.memory_is_short", lambda: True)
    run = launch("import time; held = bytearray(1 << 30); time.sleep(600)", 2)
    assert run.status == "failed" and run.host_memory_ran_out
    assert run.error.startswith("this machine's memory ran out, and no rank has used its core for 2 s")
    assert "2 running ranks hold 1.0 GiB each" in run.error
    assert "--ranks representatives" in run.error


def test_a_killed_representative_is_not_replaced_by_more_ranks(launch: Launch) -> None:
    run = launch(
        """
        import os, signal, torch, torch.distributed as dist
        torch.cuda.set_device(int(os.environ["RANK"]))
        dist.init_process_group("nccl")
        dist.new_group([0, 1, 2, 3])
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        4,
        ranks="representatives",
    )
    assert run.status == "failed" and run.launched < 4
    assert "these are the fewest" in run.error


def test_of_integers_that_are_sent_those_that_are_known_arrive(launch: Launch) -> None:
    run = launch(
        """
        import os, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        shape = torch.empty(256, dtype=torch.int32, device="cuda")  # as DeepSpeed's stages tell each other
        if rank == 0:
            shape[:2].copy_(torch.tensor([7, 1024], dtype=torch.int32))
            shape[9] = 5
            dist.send(shape, 1)
        else:
            dist.recv(shape, 0)
        everyone = torch.empty(512, dtype=torch.int32, device="cuda")
        dist.all_gather_into_tensor(everyone, shape)
        for received in (shape, everyone[:256], everyone[256:]):
            assert received[:2].tolist() == [7, 1024], received[:2]
            assert received[9].item() == 5
        dist.all_reduce(shape)  # which is not only moved
        assert shape[:2].tolist() == [0, 0]
        """,
        2,
    )
    assert run.status == "traced", run.traceback


def test_of_a_script_that_prints_without_end_only_the_end_is_kept(launch: Launch, tmp_path: Path) -> None:
    run = launch("""
        line = "x" * 999 + "\\n"
        for _ in range(1 << 20):  # a gigabyte
            print(line, end="")
        raise ValueError("after all that")
        """)
    assert run.status == "failed" and "after all that" in run.traceback
    assert any("only what came later was kept" in note for note in run.notes)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.stdout")) < 2**30 / 2


ON_ONE_DEVICE = """
import os, torch, torch.distributed as dist
SEES
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
dist.all_reduce(torch.ones(1, device="cuda"))
"""


def test_ranks_that_all_take_the_first_device_fail_as_with_nccl(launch: Launch) -> None:
    run = launch(ON_ONE_DEVICE.replace("SEES", ""), 2)
    assert run.status == "failed" and "Duplicate GPU detected : rank" in run.traceback


def test_ranks_that_see_a_device_each_do_not_share_it(launch: Launch) -> None:
    sees = 'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]'
    run = launch(ON_ONE_DEVICE.replace("SEES", sees), 2)
    assert run.status == "traced", run.traceback
