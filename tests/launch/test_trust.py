"""What earlier jobs told is taken to be so in those that follow, until one says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from maya.clusters import load
from maya.launch import ForkServer
from maya.launch.roles import Role
from maya.launch.trust import Trust
from maya.launch.types import Job, Known, Run

TENSOR = Role((1,), 3, frozenset({"all_reduce"}))
DATA = Role((0,), 3, frozenset({"all_reduce"}))
JOB = Job("train.py", world=8)


class Server:
    """Launches nothing: says what ranks along the axes it was not told of would have done."""

    def __init__(self) -> None:
        self.told: set[Role] = set()
        self.axes: Mapping[Role, bool] = {TENSOR: True, DATA: True}
        self.repeated = False

    def run(self, job: Job, directory: Path, known: Known) -> Run:
        self.told = set(known.alike_along)
        found = {role: alike for role, alike in self.axes.items() if role not in self.told}
        return Run(
            "traced", directory, job.world, 1, (0,) * job.world, steady=(1, 3), first_iteration_tells=True,
            alike_along=found, repeated=self.repeated,
        )  # fmt: skip

    def known(self, trust: Trust, job: Job = JOB) -> set[Role]:
        """What the next job is told."""
        trust.run(self, job, Path())  # type: ignore[arg-type]
        return self.told


def test_axes_of_several_jobs_are_taken_for_alike_and_doubted_now_and_then():
    server, trust = Server(), Trust(2)
    told = [server.known(trust) for _ in range(20)]
    assert told[:2] == [set(), set()]
    assert [len(roles) for roles in told[2:]].count(0) == 2
    assert told[2] == told[-1] == {TENSOR, DATA}


def test_each_time_an_axis_is_found_unlike_it_takes_twice_as_many_jobs_to_be_sure_again():
    server, trust = Server(), Trust(2)
    server.axes = {TENSOR: True, DATA: False}
    assert server.known(trust) == server.known(trust) == set()
    server.axes = {TENSOR: True, DATA: True}
    assert [DATA in server.known(trust) for _ in range(20)].index(True) == 8


def test_an_axis_that_is_found_unlike_is_looked_at_in_the_jobs_that_follow():
    server, trust = Server(), Trust(1)
    assert server.known(trust) == set()
    assert server.known(trust) == {TENSOR, DATA}
    server.axes = {TENSOR: False, DATA: True}
    told = [server.known(trust) for _ in range(20)]
    assert told[0] == {TENSOR, DATA}  # nobody looked
    assert TENSOR not in told[-1] and DATA in told[-1]


def test_where_a_script_needed_the_ranks_that_were_left_out_they_run_from_then_on():
    server, trust = Server(), Trust(1)
    server.known(trust)
    server.repeated = True
    assert server.known(trust) == {TENSOR, DATA}
    server.repeated = False
    assert [server.known(trust) for _ in range(3)] == [set()] * 3


def test_another_script_begins_anew():
    server, trust = Server(), Trust(1)
    server.known(trust)
    assert server.known(trust, replace(JOB, script="other.py")) == set()
    assert server.known(trust, replace(JOB, script="other.py")) == {TENSOR, DATA}


def test_workers_of_a_run_learn_from_each_other_and_a_run_taken_up_again_knows_it_all(tmp_path: Path) -> None:
    file = tmp_path / "lessons.jsonl"
    server, one, other = Server(), Trust(2, file), Trust(2, file)
    assert server.known(one) == server.known(other) == set()
    assert server.known(one) == server.known(other) == {TENSOR, DATA}
    assert server.known(Trust(2, file)) == {TENSOR, DATA}
    assert server.known(Trust(2, tmp_path / "of another run")) == set()


def test_a_script_that_was_changed_begins_anew(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "lessons.jsonl"
    job = replace(JOB, script=str(script))
    script.write_text("one")
    server, trust = Server(), Trust(1, file)
    assert server.known(trust, job) == set()
    assert server.known(trust, job) == {TENSOR, DATA}
    script.write_text("two")
    assert server.known(trust, job) == set()


def test_a_worker_without_the_runs_folder_learns_by_itself(tmp_path: Path) -> None:
    server, trust = Server(), Trust(1, tmp_path / "not here" / "lessons.jsonl")
    assert server.known(trust) == set()
    assert server.known(trust) == {TENSOR, DATA}


OPTIMIZERS = """
import sys, torch
weights = [torch.zeros(8, device="cuda", requires_grad=True) for _ in range(int(sys.argv[1]))]
optimizers = [torch.optim.SGD([weight]) for weight in weights]
while True:
    for _ in range(40):
        weights[0].data.add_(1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    for optimizer in optimizers:
        optimizer.step()
"""


def test_a_job_of_more_optimizers_than_those_before_is_not_cut_at_the_first(tmp_path: Path):
    """As Megatron-LM's are where a knob turns layers into mixtures of experts."""
    script, trust = tmp_path / "train.py", Trust(2)
    script.write_text(OPTIMIZERS)
    with ForkServer(load("dgx-a100")) as server:
        periods = [
            trust.run(server, Job(str(script), (str(optimizers),)), tmp_path / "run").period
            for optimizers in (1, 1, 1, 2, 2)
        ]
    assert periods == [1, 1, 1, 2, 2]
