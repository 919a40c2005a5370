"""What an operation leaves of a device while it runs alone."""

from dataclasses import replace

import pytest

from maya.clusters import load
from maya.estimate import Estimator
from maya.trace.types import Gemm, Kernel, Memcpy, Memset, Operator

LARGE, SMALL = Gemm(8192, 8192, 8192), Gemm(128, 128, 512)
SKINNY = Gemm(8192, 8, 8192)  # reads its weights and computes next to nothing


def kernel(elements):
    name = "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >"
    return Kernel(name, (elements // 512, 1, 1), (128, 1, 1), elements=elements)


def test_large_work_takes_the_device_and_small_work_leaves_it():
    operations = [LARGE, SKINNY, kernel(1 << 28), SMALL, kernel(1 << 10), Memset(1 << 10)]
    large, skinny, long, small, short, fill = Estimator(load("dgx-h100")).estimate(operations).demand
    assert large == 1.0
    assert skinny > 0.8 and long > 0.9
    assert small < 0.1 and short < 0.1 and fill < 0.1


def test_a_product_leaves_the_multiprocessors_that_its_caller_has_it_leave():
    (demand,) = Estimator(load("dgx-h100")).estimate([replace(LARGE, multiprocessors=116)]).demand
    assert demand == pytest.approx(116 / 132)


def test_copies_out_of_the_device_have_their_own_engines():
    directions = ("h2d", "d2h", "p2p", "d2d")
    copies = [Memcpy(direction, 1 << 30) for direction in directions]
    assert list(Estimator(load("dgx-h100")).estimate(copies).demand[:3]) == [0.0, 0.0, 0.0]
    assert Estimator(load("dgx-h100")).estimate(copies).demand[3] > 0.9


def test_a_copy_between_devices_takes_their_link():
    copy = Memcpy("p2p", 1 << 30)
    for cluster in (load("dgx-h100"), load("dgx-a100")):
        rate = copy.bytes / Estimator(cluster).estimate([copy]).seconds[0]
        assert 0.8 < rate / cluster.node.link.bandwidth < 0.9
    mesh = load("dgx-v100")
    assert copy.bytes / Estimator(mesh).estimate([copy]).seconds[0] < 25e9  # one NVLink of six


def symmetric(name):
    return Kernel(
        f"c10d::symmetric_memory::{name}(unsigned int**, int, int, int, unsigned long)", (1, 1, 1), (32, 1, 1)
    )


def test_ranks_meet_in_a_few_microseconds_and_a_note_says_that_none_waits():
    estimates = Estimator(load("dgx-h100")).estimate([symmetric("barrier_kernel")])
    assert 2e-6 < estimates.seconds[0] < 10e-6
    assert not estimates.unknown
    assert any("symmetric memory" in note for note in estimates.notes)
    assert not Estimator(load("dgx-h100")).estimate([LARGE]).notes


def test_a_reduction_over_symmetric_memory_is_not_known():
    reduction = symmetric("one_shot_all_reduce_kernel")
    sized = Kernel(
        reduction.name, (8, 1, 1), (512, 1, 1), operator=Operator("symm_mem::one_shot_all_reduce", ((4096,),))
    )
    for each in (reduction, sized):
        assert len(Estimator(load("dgx-h100")).estimate([each]).unknown) == 1


@pytest.mark.parametrize("cycles", [100, 10**9])
def test_a_kernel_that_is_told_to_wait_waits(cycles):
    spin = Kernel("at::cuda::(anonymous namespace)::spin_kernel(long)", (1, 1, 1), (1, 1, 1), elements=cycles)
    device = load("dgx-h100").device
    seconds = Estimator(load("dgx-h100")).estimate([spin]).seconds[0]
    assert seconds == pytest.approx(cycles / device.clock_hz, abs=5e-6)
