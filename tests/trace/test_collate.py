"""Rank traces become one job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maya.launch.layout import FLAG_STEPPING
from maya.launch.topology import FamilyNumbers, groups_path
from maya.launch.types import Run
from maya.trace import TraceError, collate
from maya.trace.split import unfold
from maya.trace.types import Collective, Kernel, Pass, RecordKind


def run_of(directory: Path, representative_of: tuple[int, ...], steady: tuple[int, int] = (1, 3)) -> Run:
    launched = len(set(representative_of))
    return Run("traced", directory, len(representative_of), launched, representative_of, steady)


def training(rank: Any, iteration: Any, steps: int = 3) -> None:
    rank.kernel("warm_up")
    for _ in range(steps):
        iteration(rank)
        rank.step()


def test_steady_iteration_ends_with_its_step(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    training(rank, lambda r: [r.kernel("a"), r.kernel("b")])
    rank.kernel("after")
    rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0,)))
    kinds = [RecordKind(k) for k in job.ranks[0].records["kind"]]
    assert kinds == [RecordKind.KERNEL, RecordKind.KERNEL, RecordKind.STEP]
    assert [op.name for op in job.operations if isinstance(op, Kernel)] == ["a", "b"]
    assert job.iterations_recorded == 2


def test_forward_is_neither_backward_nor_the_optimizers_own(rank_writer: Any, tmp_path: Path) -> None:
    def iteration(rank: Any) -> None:
        rank.kernel("of the last step, which goes on with other parameters", flags=FLAG_STEPPING)
        rank.kernel("forward")
        rank.kernel("backward", thread=1)
        rank.kernel("of a closure: forward", flags=FLAG_STEPPING)
        rank.kernel("of a closure: backward", thread=1)
        rank.kernel("of the optimizer", flags=FLAG_STEPPING)

    rank = rank_writer()
    training(rank, iteration)
    rank.write(tmp_path)
    (of_rank,) = collate(run_of(tmp_path, (0,))).ranks
    assert of_rank.passes is not None
    forward, backward, optimizer, _ = Pass
    of_the_step = forward  # its own record
    assert of_rank.passes.tolist() == [
        optimizer, forward, backward, forward, backward, optimizer, of_the_step,
    ]  # fmt: skip


@pytest.mark.parametrize("recomputed", [["a", "b", "c", "d"], ["b", "c", "d", "e", "f"], ["a", "b", "c"], []])
def test_what_a_backward_pass_recomputes_is_told_from_what_it_computes(
    rank_writer: Any, tmp_path: Path, recomputed: list[str]
) -> None:
    def iteration(rank: Any) -> None:
        for name in "abcdef":
            rank.kernel(name)
        for name in ["of f", *recomputed, "of e", "of d", "b", "of c"]:
            rank.kernel(name, thread=1)

    rank = rank_writer()
    training(rank, iteration)
    rank.write(tmp_path)
    (of_rank,) = collate(run_of(tmp_path, (0,))).ranks
    assert of_rank.passes is not None
    expected = Pass.RECOMPUTATION if len(recomputed) >= 4 else Pass.BACKWARD
    assert of_rank.passes[6] == Pass.BACKWARD
    assert of_rank.passes[7:-5].tolist() == [expected] * len(recomputed)
    assert of_rank.passes[-5:-1].tolist() == [Pass.BACKWARD] * 4


@pytest.mark.parametrize(
    ("steps", "iterations"),
    [([1, 1], 2), ([1, 2], 1), ([1, 1, 2], 1), ([1, 2, 1, 2], 2), ([0, 0], 1), ([1, 1, 1, 1, 2, 2], 2)],
)
def test_each_iteration_steps_every_optimizer_equally_often(
    rank_writer: Any, tmp_path: Path, steps: list[int], iterations: int
) -> None:
    rank = rank_writer()
    for _ in range(3):
        for number, optimizer in enumerate(steps):
            rank.kernel(f"of step {number}")
            rank.step(optimizer)
    rank.write(tmp_path)
    last = 3 * len(steps)
    run = replace(run_of(tmp_path, (0,), (len(steps), last)), period=len(steps))
    assert collate(run).iterations_per_cycle == iterations


def test_host_time_is_the_median_of_equal_iterations(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    for host in (999, 10, 30, 20):
        rank.kernel("a", host_ns=host)
        rank.step()
    rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0,), (1, 4)))
    assert job.ranks[0].records["host_ns"][0] == 20
    assert job.iterations_recorded == 3


@pytest.mark.parametrize(
    ("first", "second", "usual"),
    [
        (200_000_000, 400_000, 400_000),  # the first of them compiled
        (200_000_000, 150_000_000, 175_000_000),  # both work on the host for so long
        (900_000, 50_000, 475_000),
    ],
)
def test_what_one_of_two_iterations_takes_once_is_not_its_time(
    rank_writer: Any, tmp_path: Path, first: int, second: int, usual: int
) -> None:
    rank = rank_writer()
    for host in (1_000_000_000, first, second):
        rank.kernel("a", host_ns=1000)
        rank.kernel("b", host_ns=host)
        rank.step()
    rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0,), (1, 3)))
    assert job.ranks[0].records["host_ns"][1] == usual


@pytest.mark.parametrize("last", [1, 2])  # iterations that are cut
def test_iterations_that_go_around_a_pool_of_streams_are_equal(
    rank_writer: Any, tmp_path: Path, last: int
) -> None:
    rank = rank_writer()
    for iteration in range(4):
        for stream in (0, 7 + iteration % 3, 8 - iteration % 3, 7 + iteration % 3):
            rank.kernel("a", stream=stream)
        rank.step()
    rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0,), (4 - last, 4)))
    assert job.iterations_recorded == last and job.notes == ()


def test_iterations_on_other_streams_are_not_equal(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    for streams in ((7, 8), (7, 7), (0, 7), (7, 8)):
        for stream in streams:
            rank.kernel("a", stream=stream)
        rank.step()
    rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0,), (1, 4)))
    assert job.notes == ("rank 0: 1 of 3 steady iterations equal the last one",)


def test_what_a_compiler_times_before_the_first_step_tells_nothing_of_host_time(
    rank_writer: Any, tmp_path: Path
) -> None:
    times = []
    for timed in (0, 600):
        rank = rank_writer()
        for at in range(timed):
            rank.kernel("candidate", host_ns=10 if at % 100 == 0 else 40)
        rank.step()
        for _ in range(10):
            rank.kernel("a", host_ns=1000)
            rank.step()
        rank.write(tmp_path)
        job = collate(run_of(tmp_path, (0,), (1, 11)))
        times.append(job.ranks[0].records["host_ns"].tolist())
    assert times[0] == times[1]


def test_iteration_of_two_steps(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    for _ in range(3):
        rank.kernel("generator")
        rank.step()
        rank.kernel("discriminator")
        rank.step()
    rank.write(tmp_path)
    run = Run("traced", tmp_path, 1, 1, (0,), (2, 6), period=2)
    job = collate(run)
    assert job.iterations_recorded == 2
    assert len(job.ranks[0].records) == 4


@pytest.mark.parametrize(("policies", "told"), [(128, ["31 iterations' matrix products"]), (8, [])])
def test_a_rollout_before_the_first_step_is_told(
    rank_writer: Any, tmp_path: Path, policies: int, told: list[str]
) -> None:
    def product(rank: Any) -> None:
        op = rank.op(kind="gemm", m=64, n=64, k=64, dtype_a="fp32", dtype_c="fp32", compute="fp32")
        rank.record(RecordKind.KERNEL, op=op)

    rank = rank_writer()
    for _ in range(policies - 4):
        product(rank)
    training(rank, lambda r: [product(r) for _ in range(4)])
    rank.write(tmp_path)
    notes = collate(run_of(tmp_path, (0,))).notes
    assert [note[: len("31 iterations' matrix products")] for note in notes if "rollout" in note] == told


def test_wait_resolves_to_the_latest_record_before_it_or_of_the_iteration_before(
    rank_writer: Any, tmp_path: Path
) -> None:
    def iteration(r: Any) -> None:
        r.record(RecordKind.STREAM_WAIT_EVENT, arg=5)  # row 0: event 5 of the previous iteration, row 4
        r.record(RecordKind.EVENT_RECORD, arg=6)
        r.record(RecordKind.EVENT_RECORD, arg=6)
        r.record(RecordKind.STREAM_WAIT_EVENT, arg=6)  # row 3: the second record
        r.record(RecordKind.EVENT_RECORD, arg=5)
        r.record(RecordKind.EVENT_SYNCHRONIZE, arg=77)  # never recorded

    rank = rank_writer()
    training(rank, iteration)
    rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0,)))
    assert job.ranks[0].records["wait"].tolist() == [4, -1, -1, 2, -1, -1, -1]


@pytest.mark.parametrize(
    ("ago", "row", "wait"),
    [
        (0, 1, 3),  # reused: the one that this iteration is yet to record
        (1, 1, 3),
        (1, 4, 3 - 6),  # this iteration has recorded another one there
        (2, 1, -1),
    ],
)
def test_wait_for_an_event_of_an_earlier_iteration_that_made_its_own(
    rank_writer: Any, tmp_path: Path, ago: int, row: int, wait: int
) -> None:
    rank = rank_writer()
    for number in range(5):
        for at in range(5):
            if at == row:
                rank.record(RecordKind.EVENT_SYNCHRONIZE, arg=50 + (number - ago) * (ago > 0))
            elif at == 3:
                rank.record(RecordKind.EVENT_RECORD, arg=50 + number * (ago > 0))
            else:
                rank.kernel(f"{at}")
        rank.step()
    rank.write(tmp_path)
    waits = collate(run_of(tmp_path, (0,), (1, 5))).ranks[0].records["wait"].tolist()
    assert waits == [wait if at == row else -1 for at in range(6)]


def test_waits_after_another_iteration_are_for_events_of_their_own(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    for number in range(3):
        rank.record(RecordKind.EVENT_SYNCHRONIZE, arg=50)
        rank.kernel("another" if number == 1 else "usual")
        rank.record(RecordKind.EVENT_RECORD, arg=50)
        rank.step()
    rank.write(tmp_path)
    assert collate(run_of(tmp_path, (0,))).ranks[0].records["wait"].tolist() == [2, -1, -1, -1]


def test_operator_and_its_sizes_belong_to_the_kernel(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    training(rank, lambda r: r.kernel("a", operator="aten::add"))
    rank.write(tmp_path)
    (kernel,) = collate(run_of(tmp_path, (0,))).operations
    assert isinstance(kernel, Kernel)
    assert (kernel.operator.name, kernel.operator.sizes) == ("aten::add", ((2, 3), ()))


def two_stages(rank_writer: Any, directory: Path, world: int = 2) -> None:
    """Stage 0 sends two micro-batches to stage 1; data-parallel replicas when the world is 4."""
    replicas = world // 2
    for r in range(world):
        rank = rank_writer(r, world)
        stage, replica = divmod(r, replicas)
        rank.communicator(0, f"pp{replica}", 2, stage)
        if replicas > 1:
            rank.communicator(1, f"dp{stage}", replicas, replica)

        def iteration(rank: Any, stage: int = stage) -> None:
            for _ in range(2):
                rank.collective("recv" if stage else "send", 0, peer=1 - stage)
            if replicas > 1:
                rank.collective("all_reduce", 1)

        training(rank, iteration)
        rank.write(directory)


def test_both_sides_of_a_transfer_meet(rank_writer: Any, tmp_path: Path) -> None:
    two_stages(rank_writer, tmp_path)
    job = collate(run_of(tmp_path, (0, 1)))
    first, second = (rank.records for rank in job.ranks)
    assert first["rendezvous"].tolist() == second["rendezvous"].tolist() == [0, 1, -1]
    assert first["peer_class"].tolist() == [1, 1, -1]
    assert first["sequence"].tolist() == [0, 1, -1]


def test_equal_communicators_of_deduplicated_ranks_fold_into_one(rank_writer: Any, tmp_path: Path) -> None:
    two_stages(rank_writer, tmp_path, world=4)
    job = collate(run_of(tmp_path, (0, 0, 2, 2)))
    assert job.class_of_rank.tolist() == [0, 0, 1, 1]
    shapes = [(c.members, c.classes, c.instances) for c in job.communicators]
    assert shapes == [((0, 2), (0, 1), 2), ((0, 1), (0,), 1), ((2, 3), (1,), 1)]
    sends = [op for op in job.operations if isinstance(op, Collective) and op.collective == "send"]
    assert [(op.members, op.peer) for op in sends] == [((0, 2), 2)]


def test_representatives_of_different_instances_still_meet(rank_writer: Any, tmp_path: Path) -> None:
    two_stages(rank_writer, tmp_path, world=4)
    job = collate(run_of(tmp_path, (0, 0, 3, 3)))
    first, second = (rank.records["rendezvous"] for rank in job.ranks)
    assert first[:2].tolist() == second[:2].tolist()


def test_ring_of_one_class_meets_itself(rank_writer: Any, tmp_path: Path) -> None:
    for r in range(4):
        rank = rank_writer(r, 4)
        rank.communicator(0, "ring", 4, r)

        def iteration(rank: Any, r: int = r) -> None:
            rank.collective("send", peer=(r + 1) % 4, group=1)
            rank.collective("recv", peer=(r - 1) % 4, group=1)

        training(rank, iteration)
        rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0, 0, 0, 0)))
    assert job.ranks[0].records["rendezvous"].tolist() == [0, 0, -1]


def test_members_that_never_announced_themselves_are_inferred(rank_writer: Any, tmp_path: Path) -> None:
    two_stages(rank_writer, tmp_path, world=8)
    for rank in (1, 2, 3, 5, 6, 7):
        (tmp_path / f"rank-{rank:05d}.ops").unlink()
    job = collate(run_of(tmp_path, (0, 0, 0, 0, 4, 4, 4, 4)))
    assert job.communicators[0].members == (0, 4)
    assert -1 in job.communicators[1].members  # one member known, nothing to tell the spacing


Groups = list[tuple[int, ...]]


def merged_early(writer: Any, directory: Path, early: list[Groups], late: list[Groups]) -> None:
    """Four ranks that reduce in each kind of group; 1 and 3 stop before they make the late ones."""
    for r in range(4):
        rank = writer(r, 4)
        kinds = early if r in (1, 3) else early + late
        for index, groups in enumerate(kinds):
            own = next(group for group in groups if r in group)
            rank.communicator(index, f"{index}-{own}", len(own), own.index(r))

        def iteration(rank: Any, count: int = len(kinds)) -> None:
            for index in range(count):
                rank.collective("all_reduce", index)

        training(rank, iteration)
        rank.write(directory)


@pytest.mark.parametrize(
    ("early", "late", "folded"),
    [
        # The members of an earlier one.
        ([[(0, 3), (2, 1)]], [[(0, 3), (2, 1)]], [((0, 3), (2, 1))] * 2),
        ([[(0,), (1,), (2,), (3,)]], [[(0,), (1,), (2,), (3,)]] * 2, [((0,), (1,)), ((2,), (3,))] * 3),
        # As far apart.
        ([], [[(0, 2), (1, 3)]], [((0, 2), (1, 3))]),
        # The same one.
        ([], [[(0, 1, 2, 3)]], [((0, 1, 2, 3),)]),
    ],
)
def test_ranks_merged_early_have_the_communicators_that_come_later(
    rank_writer: Any, tmp_path: Path, early: list[Groups], late: list[Groups], folded: list[Groups]
) -> None:
    merged_early(rank_writer, tmp_path, early, late)
    job = collate(run_of(tmp_path, (0, 0, 2, 2)))
    assert sorted(c.all_members for c in job.communicators) == sorted(folded)
    assert not any("unknown" in note for note in job.notes)
    whole = unfold(job)
    for rank in whole.ranks:
        calls = rank.records["operation"][rank.records["kind"] == RecordKind.COLLECTIVE]
        reduced = [whole.operations[number] for number in calls]
        assert all(isinstance(op, Collective) and rank.rank in op.members for op in reduced)


def test_process_groups_tell_the_later_communicators_of_ranks_merged_early(
    rank_writer: Any, tmp_path: Path
) -> None:
    """Rank 1 ends as a copy of 0 before both pair up with ranks that do different work."""
    pairs = [(0, 2), (1, 3)]
    for r in range(4):
        rank, own = rank_writer(r, 4), pairs[r % 2]
        if r != 1:
            rank.communicator(0, f"{own}", 2, own.index(r), members=own, family=FamilyNumbers().add(own))
            training(rank, lambda rank: rank.collective("all_reduce"))
        rank.write(tmp_path)
    groups_path(tmp_path).write_bytes(np.array([[2, *pair] for pair in pairs], "<i4").tobytes())
    job = collate(run_of(tmp_path, (0, 0, 2, 3)))
    assert job.notes == ()
    assert job.class_of_rank.tolist() == [0, 1, 2, 3]
    assert {c.members for c in job.communicators} == set(pairs)


def test_communicators_that_cannot_be_told_of_ranks_merged_early_are_noted(
    rank_writer: Any, tmp_path: Path
) -> None:
    merged_early(rank_writer, tmp_path, [], [[(0,), (1, 2, 3)]])
    job = collate(run_of(tmp_path, (0, 0, 2, 2)))
    (note,) = job.notes
    assert "stopped as copies before they made" in note and "--ranks all" in note


def test_disagreement_on_the_number_of_collectives_shows_the_numbers(
    rank_writer: Any, tmp_path: Path
) -> None:
    for r, calls in enumerate((3, 2)):
        rank = rank_writer(r, 2)
        rank.communicator(0, "world", 2, r)
        training(rank, lambda rank, calls=calls: [rank.collective("all_reduce") for _ in range(calls)])
        rank.write(tmp_path)
    with pytest.raises(TraceError, match=r"rank 0: 3, rank 1: 2"):
        collate(run_of(tmp_path, (0, 1)))


def test_disagreement_on_a_collective_names_both(rank_writer: Any, tmp_path: Path) -> None:
    for r, name in enumerate(("all_reduce", "all_gather")):
        rank = rank_writer(r, 2)
        rank.communicator(0, "world", 2, r)
        training(rank, lambda rank, name=name: rank.collective(name))
        rank.write(tmp_path)
    with pytest.raises(TraceError, match="rank 0 calls all_reduce, rank 1 calls all_gather"):
        collate(run_of(tmp_path, (0, 1)))


def test_a_send_nobody_receives_is_an_error(rank_writer: Any, tmp_path: Path) -> None:
    for r in range(2):
        rank = rank_writer(r, 2)
        rank.communicator(0, "world", 2, r)
        training(rank, lambda rank, r=r: rank.collective("send", peer=1) if r == 0 else rank.kernel("x"))
        rank.write(tmp_path)
    with pytest.raises(TraceError, match="rank 0 sends to rank 1 1 times an iteration, rank 1 receives 0"):
        collate(run_of(tmp_path, (0, 1)))


def test_script_without_steps_is_cut_by_its_repetition(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    rank.kernel("warm_up")
    for _ in range(4):
        rank.kernel("a")
        rank.kernel("b")
    rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0,), (0, 0)))
    assert len(job.ranks[0].records) == 2
    assert job.iterations_recorded == 4


def test_missing_step_is_an_error(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    training(rank, lambda r: r.kernel("a"))
    rank.write(tmp_path)
    with pytest.raises(TraceError, match=r"steady steps \(1, 9\].*recorded are steps 1 to 3"):
        collate(run_of(tmp_path, (0,), (1, 9)))


def test_peak_memory_counts_the_context(rank_writer: Any, tmp_path: Path) -> None:
    rank = rank_writer()
    rank.record(RecordKind.ALLOCATE, size=4096)
    training(rank, lambda r: r.kernel("a"))
    rank.record(RecordKind.FREE, size=96)
    rank.write(tmp_path)
    (trace,) = collate(run_of(tmp_path, (0,))).ranks
    assert trace.peak_reserved_bytes == 1500
    assert trace.allocations is not None
    assert trace.allocations["bytes"].tolist() == [4096, -96]
    assert trace.allocations["step"].tolist() == [0, 3]


def test_stages_that_call_alike_but_wait_for_different_ones_are_told_apart(
    rank_writer: Any, tmp_path: Path
) -> None:
    """Forward passes only: stages 1, 2 and 3 of five make equal calls, so only stage 1 ran to the end."""
    for r in range(5):
        rank = rank_writer(r, 5)
        rank.communicator(0, "pp", 5, r)

        def iteration(rank: Any, r: int = r) -> None:
            if r > 0:
                rank.collective("recv", peer=r - 1)
            if r < 4:
                rank.collective("send", peer=r + 1)

        training(rank, iteration)
        rank.write(tmp_path)
    job = collate(run_of(tmp_path, (0, 1, 1, 1, 4)))
    assert job.class_of_rank.tolist() == [0, 1, 2, 3, 4]
    assert [rank.rank for rank in job.ranks] == [0, 1, 2, 3, 4]
    sends = [rank.records["rendezvous"][-2] for rank in job.ranks[:-1]]
    receives = [rank.records["rendezvous"][0] for rank in job.ranks[1:]]
    assert sends == receives
    assert len(set(sends)) == 4
    assert not job.notes
