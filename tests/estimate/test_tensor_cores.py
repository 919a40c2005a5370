"""Kernels of Triton that multiply matrices take what their products or their bytes take."""

from __future__ import annotations

import pytest

from maya.clusters import load
from maya.estimate import Estimator, Provenance
from maya.simulate.kinds import kind_of
from maya.trace.types import Gemm, Kernel, Work

SIDE = 4096
PRODUCT = Gemm(SIDE, SIDE, SIDE)


def kernel(flops: int, blocks: int = 1024, bytes_moved: int = 3 * SIDE * SIDE * 2) -> Kernel:
    work = Work(1 << 20, 0, 0, 1 << 16, flops)
    return Kernel("matmul_kernel", (blocks, 1, 1), (128, 1, 1), bytes=bytes_moved, work=work)


@pytest.mark.parametrize("cluster", ["dgx-h100", "dgx-a100"])
def test_products_take_what_they_do_with_cublas(cluster: str) -> None:
    estimates = Estimator(load(cluster)).estimate([kernel(2 * SIDE**3), PRODUCT])
    assert estimates.seconds[0] == pytest.approx(estimates.seconds[1], rel=0.02)
    assert estimates.flops[0] == estimates.flops[1]
    assert estimates.provenance[0] == Provenance.ROOFLINE
    assert kind_of(kernel(1)) == "gemm"


def test_few_blocks_leave_multiprocessors_idle() -> None:
    cluster = load("dgx-h100")
    half, whole = cluster.device.multiprocessors // 2, cluster.device.multiprocessors
    estimates = Estimator(cluster).estimate([kernel(1 << 37, half), kernel(1 << 37, whole), kernel(1 << 37)])
    assert estimates.seconds[0] == pytest.approx(2 * estimates.seconds[1], rel=0.02)
    assert estimates.seconds[1] == estimates.seconds[2]
    assert estimates.demand[0] == 0.5 and estimates.demand[1] == 1.0


def test_bytes_decide_where_products_are_few() -> None:
    few, none = Estimator(load("dgx-h100")).estimate([kernel(1 << 20), kernel(0)]).seconds
    assert few == none
