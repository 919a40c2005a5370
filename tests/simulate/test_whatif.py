"""Questions asked of a job that was recorded once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from maya.clusters import Cluster, load
from maya.predict import judge_trace
from maya.simulate import INSTANT, simulate
from maya.simulate.kinds import kind_of
from maya.simulate.types import Timeline
from maya.simulate.whatif import WhatIf, WhatIfError
from maya.trace.build import JobBuilder
from maya.trace.pipelines import Pipeline
from maya.trace.types import Collective, Gemm, Kernel, Memcpy


def run(job: JobBuilder, what_if: WhatIf, cluster: Cluster) -> Timeline:
    trace = what_if.slowed(what_if.apart(job.build()))
    known = {
        operation: float(s) for operation, s in zip(job.build().operations, job.durations_s, strict=True)
    }
    seconds = np.array([
        known[op] if op in known else op.bytes * 1e-9 for op in trace.operations  # type: ignore[union-attr]
    ])  # fmt: skip
    return simulate(trace, what_if.durations(trace, seconds), what_if.cluster(cluster), host=INSTANT)


def test_faster_kernels_shorten_what_they_are_all_of(ideal_cluster: Cluster) -> None:
    job = Pipeline(2, 4, forward_ns=100, backward_ns=200).job()
    before, after = (
        run(job, WhatIf.parse(scale=scale), ideal_cluster).iterations_ns[-1]
        for scale in ((), ("elementwise=0.5",))
    )
    assert after == before / 2


def test_a_group_scales_all_its_kinds(ideal_cluster: Cluster) -> None:
    job = Pipeline(1, 1, forward_ns=100, backward_ns=100, gradient_ns=100, replicas=2).job()
    iteration = run(job, WhatIf.parse(scale=["communication=3"]), ideal_cluster).iterations_ns[-1]
    assert iteration == 500


def test_a_slow_rank_holds_up_its_pipeline(ideal_cluster: Cluster) -> None:
    shape = Pipeline(stages=3, micro_batches=6, forward_ns=100, backward_ns=200, gradient_ns=40, replicas=4)
    slow = run(shape.job(), WhatIf.parse(slow_ranks=["5=1.5"]), ideal_cluster)
    # The slow stage's own 6 x 450, stage 0 before and after it, the slow stage's wait for the last stage's
    # first pass (300) beside its own second forward pass (150), and the gradients of stage 0.
    assert slow.iterations_ns[-1] == 6 * 450 + 300 + (300 - 150) + 40


def test_a_slow_rank_is_slow_in_an_unfolded_job_just_as_much(ideal_cluster: Cluster) -> None:
    shape = Pipeline(2, 4, forward_ns=60, backward_ns=120, transfer_ns=8, gradient_ns=90, replicas=3)
    what_if = WhatIf.parse(slow_ranks=["1=1.3"])
    ends = [run(shape.job(folded), what_if, ideal_cluster).iteration_end_ns for folded in (True, False)]
    assert ends[0].tolist() == ends[1].tolist()


def test_the_answer_carries_the_question() -> None:
    what_if = WhatIf.parse(scale=["gemm=0.5"], slow_ranks=["3=2"])
    assert what_if.notes == ("what if: --scale gemm=0.5", "what if: --slow-rank 3=2")


def test_links_are_scaled_or_replaced() -> None:
    cluster = WhatIf.parse(links=["nvlink=2x", "nic=800Gb/s"]).cluster(load("dgx-h100"))
    assert cluster.node.link.bandwidth == 900e9
    assert cluster.node.nic.bandwidth == 100e9


def test_collectives_timed_over_a_link_say_nothing_of_another() -> None:
    timings = {"all_reduce": {8: ((2.0**20, 1e-4),)}}
    own = load("dgx-h100")
    own = own.model_copy(update={"node": own.node.model_copy(update={"collectives": timings})})
    assert WhatIf.parse(links=["nic=2x"]).cluster(own).node.collectives == timings
    assert WhatIf.parse(links=["nvlink=2x"]).cluster(own).node.collectives == {}


@pytest.mark.parametrize(
    ("links", "cluster", "idle"),
    [
        (["nic=2x"], "dgx-h100", ["nic"]),
        (["nvlink=2x"], "dgx-h100", []),
        (["nvlink=2x", "infiniband=2x"], "dgx-h100", ["infiniband"]),
        (["pair_link=2x"], "a40-8", []),
        (["link=2x"], "a40-8", ["link"]),
    ],
)
def test_a_link_that_the_job_does_not_take_is_said(links: list[str], cluster: str, idle: list[str]) -> None:
    trace = Pipeline(1, 1, forward_ns=100, backward_ns=100, gradient_ns=100, replicas=2).job().build()
    notes = judge_trace(trace, load(cluster), what_if=WhatIf.parse(links=links)).prediction.notes
    told = [note for note in notes if "makes no difference" in note]
    assert [note.split()[1] for note in told] == idle


def test_a_slower_host_takes_longer(ideal_cluster: Cluster) -> None:
    job = Pipeline(1, 1, forward_ns=10, backward_ns=10, host_ns=50).job()
    before, after = (
        run(job, WhatIf.parse(scale=scale), ideal_cluster).iterations_ns[-1] for scale in ((), ("host=2",))
    )
    assert before == 110
    assert after == 210


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"scale": ["gem=0.5"]}, "no kind of operation is called 'gem'"),
        ({"scale": ["gemm"]}, "write it like gemm=0.5"),
        ({"scale": ["gemm=-1"]}, "no number above zero"),
        ({"scale": ["gemm=nan"]}, "no number above zero"),
        ({"links": ["nvlink=fast"]}, "neither a factor"),
        ({"slow_ranks": ["a=2"]}, "no rank"),
        ({"slow_ranks": ["1=0"]}, "no number above zero"),
        ({"scale": ["gemm=2", "gemm=3"]}, "--scale gemm: is asked twice"),
        ({"links": ["nvlink=2x", "nvlink=2x"]}, "--link nvlink: is asked twice"),
        ({"slow_ranks": ["0=2", "00=3"]}, "--slow-rank 0: is asked twice"),
    ],
)
def test_a_question_that_makes_no_sense_is_said_so(question: dict[str, list[str]], says: str) -> None:
    with pytest.raises(WhatIfError, match=says):
        WhatIf.parse(**question)


def test_a_question_that_does_not_fit_the_job_is_said_so(ideal_cluster: Cluster) -> None:
    job = Pipeline(1, 1, forward_ns=10, backward_ns=10).job()
    with pytest.raises(WhatIfError, match="--scale gemm: this job has no such operation, only elementwise"):
        run(job, WhatIf.parse(scale=["gemm=2"]), ideal_cluster)
    with pytest.raises(WhatIfError, match="--slow-rank 1: the job has ranks 0 to 0"):
        run(job, WhatIf.parse(slow_ranks=["1=2"]), ideal_cluster)
    with pytest.raises(WhatIfError, match="--link token-ring: dgx-h100 has nvswitch, infiniband"):
        run(job, WhatIf.parse(links=["token-ring=2x"]), ideal_cluster)


def test_operations_have_kinds() -> None:
    softmax = Kernel("void (anonymous namespace)::softmax_warp_forward<float>", (1, 1, 1), (1, 1, 1))
    assert kind_of(softmax) == "softmax"
    assert kind_of(dataclasses.replace(softmax, name="vectorized_elementwise_kernel")) == "elementwise"
    assert kind_of(dataclasses.replace(softmax, name="multi_tensor_apply_kernel<FusedAdam>")) == "optimizer"
    assert kind_of(Gemm(1, 1, 1)) == "gemm"
    assert kind_of(Memcpy("d2h", 8)) == "copy"
    assert kind_of(Collective("all_gather", "bf16", 8, (0, 1))) == "all_gather"
