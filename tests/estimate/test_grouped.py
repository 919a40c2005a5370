"""Grouped matrix products take what all groups' products take, by the sizes of the operator."""

from __future__ import annotations

import pytest

from maya.clusters import load
from maya.estimate import Estimator, Provenance
from maya.estimate.gemm import flops
from maya.estimate.grouped import recognise
from maya.simulate.kinds import kind_of
from maya.trace.types import Gemm, Kernel, Operator

# As the emulator records it: c++filt gives names of so many templates up.
NAME = (
    "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9xINS_4gemm6kernel13GemmUniversal"
    "INS5_17GroupProblemShapeIN4cute5tupleIJiiiEEEEENS5_10collective13CollectiveMma"
)
TOKENS, EXPERTS, HIDDEN, INNER = 8192, 8, 1024, 4096


def grouped(*sizes: tuple[int, ...], operator: str = "aten::_grouped_mm") -> Kernel:
    return Kernel(NAME, (132, 1, 1), (384, 1, 1), operator=Operator(operator, sizes))


@pytest.mark.parametrize(
    "kernel",
    [
        grouped((TOKENS, HIDDEN), (EXPERTS, HIDDEN, INNER), (EXPERTS,), (), ()),  # forward
        grouped((HIDDEN, TOKENS), (TOKENS, INNER), (EXPERTS,), (), ()),  # gradients of weights
        grouped((EXPERTS, INNER, HIDDEN), (HIDDEN, TOKENS), (EXPERTS,), (), ()),
        grouped((EXPERTS, TOKENS // EXPERTS, HIDDEN), (EXPERTS, HIDDEN, INNER), (), (), ()),
        grouped(
            (TOKENS, HIDDEN), (EXPERTS, HIDDEN, INNER), (TOKENS,), (EXPERTS, INNER), (EXPERTS,), (),
            operator="aten::_scaled_grouped_mm",
        ),
    ],
)  # fmt: skip
def test_all_groups_are_counted_however_they_are_laid_out(kernel: Kernel) -> None:
    product = recognise(kernel)
    assert product is not None and product.batch == EXPERTS
    assert flops(product) == 2 * TOKENS * HIDDEN * INNER
    assert product.dtype == ("fp8_e4m3" if "scaled" in kernel.operator.name else "bf16")
    assert kind_of(kernel) == "gemm"


def test_they_take_what_a_batch_of_products_does() -> None:
    kernel = grouped((TOKENS, HIDDEN), (EXPERTS, HIDDEN, INNER), (EXPERTS,), (), ())
    estimates = Estimator(load("dgx-h100")).estimate(
        [kernel, Gemm(INNER, TOKENS // EXPERTS, HIDDEN, EXPERTS)]
    )
    assert estimates.seconds[0] == estimates.seconds[1] and estimates.flops[0] == estimates.flops[1]
    assert estimates.provenance[0] == Provenance.ROOFLINE


def test_what_is_no_grouped_product_is_none() -> None:
    plain = Kernel("cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>>", (1, 1, 1), (128, 1, 1))
    assert recognise(plain) is None
    assert recognise(Kernel(NAME, (132, 1, 1), (384, 1, 1))) is None


def test_what_tells_them_where_their_groups_lie_is_no_product() -> None:
    kernel = Kernel(
        "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>(cutlass::bfloat16_t*, int)",
        (1, 1, 1),
        (EXPERTS, 1, 1),
        operator=Operator(
            "aten::_grouped_mm", ((TOKENS, HIDDEN), (EXPERTS, HIDDEN, INNER), (EXPERTS,), (), ())
        ),
    )
    estimates = Estimator(load("dgx-h100")).estimate([kernel])
    assert not estimates.unknown and estimates.seconds[0] < 5e-6
    assert kind_of(kernel) != "gemm"
