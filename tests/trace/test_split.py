"""Splitting classes: a job taken apart does what it did merged."""

from __future__ import annotations

import numpy as np
import pytest

from maya.clusters import load
from maya.simulate.placement import place
from maya.trace import TraceError
from maya.trace.build import JobBuilder
from maya.trace.pipelines import Pipeline
from maya.trace.split import single_out, split, unfold
from maya.trace.types import JobTrace, RecordKind

SHAPE = Pipeline(3, 4, forward_ns=60, backward_ns=120, kernels=2, transfer_ns=8, gradient_ns=90, replicas=4)


def described(trace: JobTrace) -> dict[int, list[tuple[object, ...]]]:
    """What each representative does with whom."""
    done = {}
    for rank in trace.ranks:
        rows = rank.records[rank.records["kind"] == RecordKind.COLLECTIVE]
        calls = [trace.operations[op] for op in rows["operation"].tolist()]
        done[rank.rank] = [(call, int(n)) for call, n in zip(calls, rows["sequence"], strict=True)]
    return done


def test_unfolded_every_rank_does_what_it_does_in_the_job_that_was_never_folded() -> None:
    folded, apart = SHAPE.job().build(), SHAPE.job(folded=False).build()
    unfolded = unfold(folded)
    assert len(unfolded.ranks) == unfolded.world == 12
    assert described(unfolded) == described(apart)


def test_one_rank_singled_out_splits_only_whom_it_meets() -> None:
    trace = single_out(SHAPE.job().build(), [5])
    # Rank 5 is replica 1 of stage 1: its lane has three ranks of their own, the other lanes stay merged.
    assert trace.class_of_rank.tolist() == [0, 1, 0, 0, 2, 3, 2, 2, 4, 5, 4, 4]


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(TraceError, match="rank 12 of a job of 12 ranks"):
        single_out(SHAPE.job().build(), [12])


def test_a_job_that_is_fine_enough_stays_as_it_is() -> None:
    trace = SHAPE.job().build()
    assert split(trace, np.zeros(12, np.int64)) is trace


def test_a_ring_that_was_folded_on_itself_unrolls() -> None:
    job = JobBuilder(4, class_of_rank=(0, 0, 0, 0))
    ring = job.communicator((0, 1, 2, 3))
    job.ranks[0].send(ring, 1, 30, group=1)
    job.ranks[0].recv(ring, 3, 30, group=1)
    trace = unfold(job.build())
    peers = [[call.peer for call, _ in calls] for calls in described(trace).values()]
    assert peers == [[1, 3], [2, 0], [3, 1], [0, 2]]
    assert sorted(np.concatenate([rank.records["rendezvous"] for rank in trace.ranks]).tolist()) == [
        0, 0, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip


def test_members_that_are_not_known_are_an_error() -> None:
    job = JobBuilder(2, class_of_rank=(0, 0))
    pair = job.communicator((0, -1))
    job.ranks[0].collective(pair, 5)
    with pytest.raises(TraceError, match="not all of whose members are known"):
        unfold(job.build())


def test_a_rank_that_is_in_no_known_instance_of_what_it_calls_is_an_error() -> None:
    """Rank 2 ended as rank 1's copy before it made its pair with rank 3, which nothing tells."""
    job = JobBuilder(4, class_of_rank=(0, 1, 1, 3))
    pair = job.communicator((0, 1))
    job.ranks[0].send(pair, 1, 30)
    job.ranks[1].recv(pair, 0, 30)
    trace = job.build()
    with pytest.raises(TraceError, match=r"1 ranks call it .* --ranks all"):
        unfold(trace)
    assert place(trace, load("dgx-h100")) is trace
