"""A cluster whose host, launches and channels cost nothing, and kernels that take nothing of each other, so that
schedules can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from maya.clusters import Cluster, load
from maya.simulate import INSTANT, simulate
from maya.simulate.types import Timeline
from maya.trace.build import JobBuilder


@pytest.fixture(scope="session")
def ideal_cluster() -> Cluster:
    cluster = load("dgx-h100")
    device = cluster.device.model_copy(update={"launch_latency_s": 1e-12, "nccl_channels": 0})
    return cluster.model_copy(update={"device": device, "host_speed": 1.0})


Simulate = Callable[..., Timeline]


@pytest.fixture(scope="session")
def simulate_ideal(ideal_cluster: Cluster) -> Simulate:
    def run(
        job: JobBuilder,
        iterations: int = 3,
        queue_depth: int = 1024,
        buffered_bytes: int = 1 << 23,
        demand: float = 0.0,
    ) -> Timeline:
        return simulate(
            job.build(),
            job.durations_s,
            ideal_cluster,
            iterations,
            host=replace(INSTANT, queue_depth=queue_depth),
            demand=np.full(len(job.durations_s), demand),
            buffered_bytes=buffered_bytes,
        )

    return run
