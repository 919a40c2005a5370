"""Scripts that spawn their ranks themselves, and name a port for them to meet at."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from maya.launch import Run
from maya.launch.spawned import NOTE
from maya.trace import collate

Launch = Callable[..., Run]

# In the manner of PyTorch's DDP tutorial.
SPAWNING = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
def train(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for iteration in range(4):
        optimizer.zero_grad()
        model(torch.randn(32, 64).to(rank)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    CODE
if __name__ == "__main__":
    world = torch.cuda.device_count()
    SPAWN
"""
SPAWNS = (
    "mp.spawn(train, args=(world,), nprocs=world)",
    "context = mp.spawn(train, (world,), world, join=False); assert context.join()",
    'assert mp.start_processes(train, args=(world,), nprocs=world, start_method="fork") is None',
)


@pytest.mark.parametrize("spawn", SPAWNS)
@pytest.mark.parametrize("code", ["", "raise SystemExit"])
def test_spawned_ranks_are_those_that_run(launch: Launch, spawn: str, code: str) -> None:
    run = launch(SPAWNING.replace("SPAWN", spawn).replace("CODE", code), 4)
    assert run.status == "traced", run.traceback
    assert (run.world, run.launched, set(run.representative_of)) == (4, 4, {0})
    trace = collate(run)
    assert [each.members for each in trace.communicators] == [(0, 1, 2, 3)] and NOTE in trace.notes


def test_other_processes_than_maya_started_are_told_from_ranks(launch: Launch) -> None:
    run = launch(SPAWNING.replace("SPAWN", SPAWNS[0].replace("=world)", "=2)")).replace("CODE", ""))
    assert run.status == "failed" and "spawns 2 processes where Maya has started 1 on a node" in run.error
    assert run.error.endswith("ask for --gpus 2")


def test_processes_that_only_work_on_the_host_are_spawned(launch: Launch) -> None:
    run = launch(
        """
        import torch, torch.multiprocessing as mp
        def work(place, numbers):
            numbers[place] = place + 1
        if __name__ == "__main__":
            numbers = torch.zeros(2).share_memory_()
            mp.spawn(work, (numbers,), 2)
            assert numbers.tolist() == [1, 2]
            torch.ones(1, device="cuda")
        """
    )
    assert run.status == "traced", run.traceback


@pytest.mark.parametrize("where", ["env://", "tcp://127.0.0.1:12355"])
@pytest.mark.parametrize("world", [1, 2])
def test_ranks_meet_whatever_port_the_script_names(launch: Launch, where: str, world: int) -> None:
    run = launch(
        f"""
        import os, torch, torch.distributed as dist
        os.environ["MASTER_PORT"] = "12355"
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", init_method="{where}", rank=rank, world_size={world})
        sum = torch.ones(1, device="cuda")
        dist.all_reduce(sum)
        assert sum.item() == {world}
        """,
        world,
    )
    assert run.status == "traced", run.traceback


@pytest.mark.parametrize("started", [1, 32])  # all ranks, and representatives
def test_a_world_of_another_size_is_refused(launch: Launch, started: int) -> None:
    run = launch(
        "import torch.distributed as dist; dist.init_process_group('nccl', rank=0, world_size=2)", started
    )
    assert run.status == "failed"
    assert run.error.endswith(f"a world of 2 ranks where Maya runs {started}: ask for --gpus 2")


# In the manner of accelerate: its own variables, then PyTorch's launcher.
LAUNCHING = """
import os, sys
from torch.distributed import run
os.environ["SET_BY_LAUNCHER"] = "yes"
run.main(["--nproc-per-node", "PROCESSES", *OPTIONS, sys.argv[1] + "/train.py", "--lr", "0.1"])
assert not hasattr(sys.modules["__main__"], "run")  # the script is in its place
"""
LAUNCHED = """
import os, sys
import torch, torch.distributed as dist
assert __name__ == "__main__" and sys.argv[1:] == ["--lr", "0.1"] and os.environ["SET_BY_LAUNCHER"] == "yes"
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
sum = torch.ones(1, device="cuda")
dist.all_reduce(sum)
assert sum.item() == 2
sys.exit(0)
"""


def in_results(tmp_path: Path, name: str, text: str) -> None:
    """A script beside what ranks write, whose folder they are given."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / name).write_text(text)


@pytest.mark.parametrize(
    "options", [[], ["--standalone"], ["--rdzv-backend=c10d", "--rdzv-endpoint=host:29500"]]
)
def test_a_launcher_of_ranks_runs_its_script_in_those_that_run(
    launch: Launch, tmp_path: Path, options: list[str]
) -> None:
    in_results(tmp_path, "train.py", LAUNCHED)
    text = LAUNCHING.replace("PROCESSES", "2").replace("OPTIONS", repr(options))
    run = launch(text, 2)
    assert run.status == "traced", run.traceback
    assert NOTE in collate(run).notes


@pytest.mark.parametrize(
    ("processes", "options", "gpus"), [("8", [], 8), ("2", ["--nnodes=2", "--node-rank=0"], 4)]
)
def test_a_launcher_of_other_ranks_is_refused(
    launch: Launch, processes: str, options: list[str], gpus: int
) -> None:
    run = launch(LAUNCHING.replace("PROCESSES", processes).replace("OPTIONS", repr(options)), 2)
    assert run.status == "failed" and run.error.endswith(f"ask for --gpus {gpus}")


# In the manner of accelerate with one process, and of DeepSpeed, which starts one for each device and looks after them.
STARTING = """
import os, subprocess, sys, time
command = [sys.executable, "-u", sys.argv[1] + "/train.py", "--lr", "0.1"]
environment = {**os.environ, "SET_BY_LAUNCHER": "yes"}
STARTS
assert sys.argv[1:] != ["--lr", "0.1"] and "SET_BY_LAUNCHER" not in os.environ
assert not hasattr(sys.modules["__main__"], "dist")
"""
ONE = """
process = subprocess.Popen(command, env=environment)
process.wait()
assert process.returncode == 0
"""
EACH = """
environment["MASTER_PORT"], processes = "29500", set()
for rank in range(int(os.environ["WORLD_SIZE"])):
    environment["RANK"] = environment["LOCAL_RANK"] = str(rank)
    processes.add(subprocess.Popen(command, env=environment))
while processes:
    for process in list(processes):
        if process.poll() is not None:
            assert process.returncode == 0
            processes.remove(process)
"""


@pytest.mark.parametrize(
    ("starts", "world"),
    [
        (ONE, 1),
        ("subprocess.run(command, env=environment, check=True)", 1),
        ("import torch; torch.cuda.current_device()" + ONE, 1),  # as packages do while they are imported
        (EACH, 1),
        (EACH, 2),
    ],
)
def test_a_script_that_a_rank_starts_and_waits_for_runs_in_it(
    launch: Launch, tmp_path: Path, starts: str, world: int
) -> None:
    text = LAUNCHED.replace("== 2", f"== {world}")
    in_results(tmp_path, "train.py", text)
    run = launch(STARTING.replace("STARTS", starts), world)
    assert run.status == "traced", run.traceback
    trace = collate(run)
    assert NOTE in trace.notes and trace.operations


@pytest.mark.parametrize(
    "shebang", ["#!/usr/bin/env python3", "#!/bin/sh\n'''exec' /long/path/bin/python \"$0\" \"$@\"\n' '''"]
)
def test_a_program_of_pythons_that_a_rank_starts_is_a_script(
    launch: Launch, tmp_path: Path, shebang: str
) -> None:
    """As torchrun is."""
    in_results(tmp_path, "launcher", f"{shebang}\n{LAUNCHED}")
    (tmp_path / "results" / "launcher").chmod(0o755)
    starts = """
    os.environ["PATH"] = sys.argv[1] + os.pathsep + os.environ["PATH"]
    subprocess.run(["launcher", "--lr", "0.1"], env=environment | {"PATH": os.environ["PATH"]}, check=True)
    """
    run = launch(STARTING.replace("STARTS", textwrap.dedent(starts)), 2)
    assert run.status == "traced", run.traceback
    assert NOTE in collate(run).notes


@pytest.mark.parametrize(
    "becomes",
    [
        "os.execv(sys.executable, command)",
        "os.execve(sys.executable, command, environment)",
        "os.execvp(os.path.basename(sys.executable), command)",  # axolotl, of accelerate
        "os.execlpe(sys.executable, *command, environment)",
    ],
)
def test_a_script_that_a_rank_becomes_runs_in_it(launch: Launch, tmp_path: Path, becomes: str) -> None:
    in_results(tmp_path, "train.py", LAUNCHED)
    path = 'os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]'
    given = f'os.environ.update(SET_BY_LAUNCHER="yes", PATH={path})\n'
    run = launch(STARTING.replace("STARTS", f"{given}{becomes}\nraise AssertionError"), 2)
    assert run.status == "traced", run.traceback
    trace = collate(run)
    assert NOTE in trace.notes and trace.operations


def test_a_script_that_a_rank_becomes_fails_as_itself(launch: Launch, tmp_path: Path) -> None:
    in_results(tmp_path, "train.py", "import torch\nopen('/nowhere/at/all')")
    run = launch(STARTING.replace("STARTS", "os.execvp(command[0], command)"))
    assert run.status == "failed" and "/nowhere/at/all" in run.traceback


@pytest.mark.parametrize(
    "becomes",
    [
        "os.execvp('true', ['true'])",  # no script
        "torch.ones(1, device='cuda')\nos.execv(sys.executable, command)",  # and would lose what was recorded
    ],
)
def test_other_programs_replace_a_rank(launch: Launch, tmp_path: Path, becomes: str) -> None:
    in_results(tmp_path, "train.py", "import torch")
    run = launch(STARTING.replace("STARTS", f"import torch\n{becomes}"))
    assert run.status == "failed" and "status 0" in run.error


def test_a_started_script_that_runs_out_of_memory_is_told_as_such(launch: Launch, tmp_path: Path) -> None:
    text = 'import torch\nmodel = torch.ones(1 << 40, device="cuda")'
    in_results(tmp_path, "train.py", text)
    run = launch(STARTING.replace("STARTS", ONE))
    assert run.status == "oom" and "train.py" in run.traceback


@pytest.mark.parametrize(
    "starts",
    [
        "assert subprocess.check_output([sys.executable, path], text=True).strip() == str(os.getpid())",  # read
        "assert subprocess.run([sys.executable, '-c', 'import torch, sys; sys.exit(3)']).returncode == 3",
        "torch.ones(1, device='cuda'); assert subprocess.run([sys.executable, path]).returncode == 0",
        "server = subprocess.Popen([sys.executable, path]); assert server.poll() is None; server.wait()",
        "server = subprocess.Popen([sys.executable, path]); wait_for_it()",
        "server = subprocess.Popen([sys.executable, path]); server.kill(); assert server.wait() == -9",
    ],
)
def test_other_processes_are_started(launch: Launch, tmp_path: Path, starts: str) -> None:
    text = "import os, sys, torch; print(os.getppid()); open(__file__ + '.ran', 'w').close()"
    in_results(tmp_path, "helper.py", text)
    run = launch(
        f"""
        import os, subprocess, sys, time, torch
        path = sys.argv[1] + "/helper.py"
        def wait_for_it():
            while not os.path.exists(path + ".ran"):
                time.sleep(0.1)
        {starts}
        torch.ones(1, device="cuda")
        """
    )
    assert run.status == "traced", run.traceback
    assert NOTE not in collate(run).notes


@pytest.mark.parametrize(
    ("starts", "named"),
    [
        ("subprocess.check_output([sys.executable, path])", "helper.py"),
        ("os.fork() or (runpy.run_path(path), os._exit(0)); os.wait()", "a fork of the rank"),
        ("subprocess.check_output([sys.executable, '-c', 'import torch'])", ""),
    ],
)
def test_a_process_that_works_on_a_device_and_is_no_rank_is_told(
    launch: Launch, tmp_path: Path, starts: str, named: str
) -> None:
    text = 'import torch\nfor _ in range(3):\n    torch.ones(1, device="cuda").add_(1)'
    in_results(tmp_path, "helper.py", text)
    run = launch(
        f"""
        import os, runpy, subprocess, sys, torch
        path = sys.argv[1] + "/helper.py"
        {starts}
        torch.ones(1, device="cuda")
        """
    )
    assert run.status == "traced", run.traceback
    told = [note for note in collate(run).notes if "is not recorded" in note]
    assert [named in note for note in told] == [True] * bool(named)


def test_what_ranks_leave_in_sessions_of_their_own_ends_with_them(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        """
        import subprocess, sys, torch
        from pathlib import Path
        command = ["sh", "-c", "sleep 600 & echo $! && wait"]
        left = subprocess.Popen(command, start_new_session=True, stdout=-1, text=True)
        Path(sys.argv[1], "left").write_text(f"{left.pid} {left.stdout.readline()}")
        torch.ones(1, device="cuda")
        """
    )
    assert run.status == "traced", run.traceback
    left = (tmp_path / "results" / "left").read_text().split()
    assert len(left) == 2 and not any(Path("/proc", pid).exists() for pid in left)
