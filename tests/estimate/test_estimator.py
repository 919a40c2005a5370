"""The estimator as a whole: order kept, answers repeatable, convolutions and fits in place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.clusters import load, names
from maya.estimate import Estimator, Provenance
from maya.estimate.fits import HOME, entries, fit_for
from maya.trace.types import Collective, Convolution, Gemm, Kernel, Memcpy, Memset, Operation

OPERATIONS: list[Operation] = [
    Gemm(512, 512, 512),
    Gemm(512, 512, 512, dtype="fp32"),
    Kernel("mystery", (1, 1, 1), (1, 1, 1)),
    Memcpy("d2d", 4096),
    Memset(4096),
    Collective("all_reduce", "bf16", 4096, (0, 1)),
]


def convolution(direction: str, channels: int = 64, groups: int = 1) -> Convolution:
    shape = (32, channels, 56, 56)
    return Convolution(
        direction,  # type: ignore[arg-type]
        shape, (channels, channels // groups, 3, 3), shape, (1, 1), (1, 1), (1, 1), groups, "bf16", "nhwc",
    )  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_every_shipped_cluster_gets_a_positive_answer_to_everything(name: str) -> None:
    answer = Estimator(load(name)).estimate(OPERATIONS)
    assert (answer.seconds > 0).all()
    assert answer.unknown == ("kernel mystery",)


@settings(max_examples=30)
@given(st.permutations(range(len(OPERATIONS))))
def test_answers_follow_their_operations_and_repeat_to_the_bit(order: list[int]) -> None:
    straight = Estimator(load("dgx-a100")).estimate(OPERATIONS)
    shuffled = Estimator(load("dgx-a100")).estimate([OPERATIONS[i] for i in order])
    assert list(shuffled.seconds) == [straight.seconds[i] for i in order]
    assert list(shuffled.provenance) == [straight.provenance[i] for i in order]


def test_no_operations_give_no_durations() -> None:
    answer = Estimator(load("dgx-h100")).estimate([])
    assert answer.seconds.size == answer.provenance.size == answer.flops.size == 0


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_the_passes_of_a_convolution_have_the_same_flops(direction: str) -> None:
    answer = Estimator(load("dgx-a100")).estimate([convolution(direction)])
    assert answer.flops[0] == 2 * 32 * 56 * 56 * 64 * 64 * 9
    assert answer.flops[0] / answer.seconds[0] < 312e12
    assert answer.provenance[0] == Provenance.ROOFLINE


def test_grouped_convolution_has_fewer_flops_and_is_not_free() -> None:
    whole, depthwise = (convolution("forward", groups=groups) for groups in (1, 64))
    answer = Estimator(load("dgx-a100")).estimate([whole, depthwise])
    assert answer.flops[1] == answer.flops[0] / 64
    assert answer.seconds[1] > 2 * 2 * 32 * 64 * 56 * 56 / 2.039e12  # it reads and writes the images


@pytest.mark.parametrize("family", sorted(path.stem for path in HOME.glob("*.json")))
def test_every_fit_names_its_source_and_licence(family: str) -> None:
    for fit in entries(family):
        assert fit.source
        assert fit.licence


def test_a_device_without_fits_borrows_from_its_own_generation() -> None:
    l40 = load("a40-8").device.model_copy(update={"key": "l40", "compute_capability": (8, 9)})
    fit = fit_for("gemm", l40, "bf16")
    assert (fit.device, fit.own) == ("l40s", False)
    hopper = load("dgx-h100").device.model_copy(update={"key": "gh200"})
    assert fit_for("gemm", hopper, "bf16").compute_capability == (9, 0)
