"""What share of the devices' peak a job uses, with and without what it computes twice, and what it costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from maya.clusters import Cluster, load
from maya.estimate import Estimator
from maya.estimate.types import Estimates, Provenance
from maya.simulate import simulate, summarise
from maya.simulate.types import Prediction
from maya.trace.build import JobBuilder
from maya.trace.types import Convolution, JobTrace, Lapack, Pass

FORWARD, BACKWARD = 100, 200  # ns of products whose peak rate takes just as long


def trained(cluster: Cluster, threads: str, recompute: bool = False, frozen: bool = False) -> Prediction:
    """An iteration of one forward and one backward product; `threads` is "two", "one" or "unknown"."""
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.gemm(FORWARD)
    if recompute:
        rank.gemm(FORWARD)
    rank.gemm(FORWARD if frozen else BACKWARD)
    rank.step(host_ns=1000)
    trace = job.build()
    calls = len(trace.ranks[0].records)
    passes = np.full(calls, Pass.FORWARD, np.uint8)
    if threads == "two":
        passes[1 : calls - 1] = Pass.BACKWARD
        if recompute:
            passes[1] = Pass.RECOMPUTATION
    own = dataclasses.replace(trace.ranks[0], passes=None if threads == "unknown" else passes)
    return summarised(dataclasses.replace(trace, ranks=(own,)), job, cluster)


def summarised(trace: JobTrace, job: JobBuilder, cluster: Cluster) -> Prediction:
    peak = cluster.device.peak_flops["bf16"]
    sources = np.full(len(job.durations_s), Provenance.LEARNED, np.uint8)
    estimates = Estimates(job.durations_s, sources, job.durations_s * peak)
    return summarise(trace, simulate(trace, job.durations_s, cluster), estimates, cluster)


def test_recomputation_counts_for_the_hardware_and_not_for_the_model(ideal_cluster: Cluster) -> None:
    prediction = trained(ideal_cluster, "two", recompute=True)
    iteration_ns = prediction.iteration_time_s * 1e9
    assert prediction.hardware_flops_utilization == pytest.approx((2 * FORWARD + BACKWARD) / iteration_ns)
    assert prediction.model_flops_utilization == pytest.approx((FORWARD + BACKWARD) / iteration_ns)


def test_without_recomputation_both_are_equal(ideal_cluster: Cluster) -> None:
    prediction = trained(ideal_cluster, "two")
    assert prediction.model_flops_utilization == pytest.approx(prediction.hardware_flops_utilization)


def test_convolutions_in_fp32_are_set_against_the_rate_that_they_are_computed_at() -> None:
    cluster = load("dgx-a100")
    job = JobBuilder(1)
    for _ in range(20):
        job.ranks[0].gemm(1000)
    job.ranks[0].step()
    trace = job.build()
    images, filters = (64, 256, 56, 56), (256, 256, 3, 3)
    one = Convolution("forward", images, filters, images, (1, 1), (1, 1), (1, 1), 1, "fp32", "nhwc")
    trace = dataclasses.replace(trace, operations=tuple(one for _ in trace.operations))
    estimates = Estimator(cluster).estimate(trace.operations)
    prediction = summarise(trace, simulate(trace, estimates.seconds, cluster), estimates, cluster)
    assert prediction.hardware_flops_utilization is not None
    assert 0.3 < prediction.hardware_flops_utilization < 1


def test_a_factorisation_keeps_little_of_the_device_busy_while_its_steps_wait() -> None:
    cluster = load("dgx-h100")
    job = JobBuilder(1)
    job.ranks[0].gemm(1000)
    job.ranks[0].step()
    trace = job.build()
    busy = []
    for one in (Lapack("geqrf", 4096, 64), Lapack("getrf", 64, 64, batch=1000, batched=True)):
        each = dataclasses.replace(trace, operations=tuple(one for _ in trace.operations))
        estimates = Estimator(cluster).estimate(each.operations)
        prediction = summarise(each, simulate(each, estimates.seconds, cluster), estimates, cluster)
        busy.append(max(prediction.sm_busy))
    assert busy[0] < 0.2 < 0.9 < busy[1]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_with_frozen_parameters_counts_what_it_executes_once(
    ideal_cluster: Cluster, recompute: bool
) -> None:
    prediction = trained(ideal_cluster, "two", frozen=True, recompute=recompute)
    iteration_ns = prediction.iteration_time_s * 1e9
    assert prediction.model_flops_utilization == pytest.approx(2 * FORWARD / iteration_ns)


@pytest.mark.parametrize("threads", ["one", "unknown"])
def test_where_backward_cannot_be_told_from_forward_there_is_no_mfu(
    ideal_cluster: Cluster, threads: str
) -> None:
    prediction = trained(ideal_cluster, threads)
    assert prediction.hardware_flops_utilization is not None
    assert prediction.model_flops_utilization is None


def test_an_iteration_costs_its_time_at_the_price_of_all_devices(ideal_cluster: Cluster) -> None:
    priced = ideal_cluster.model_copy(update={"price_per_gpu_hour": 3.6e9})  # a dollar a microsecond
    assert trained(ideal_cluster, "two").dollars_per_iteration is None
    prediction = trained(priced, "two")
    assert prediction.dollars_per_iteration == pytest.approx(prediction.iteration_time_s * 1e6)
