"""Estimates against what an H200 took for operations of jobs that nothing was fitted on (scripts/measure/h200)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maya.clusters import load
from maya.estimate import Estimator
from maya.estimate.profiles import Profiles, identity, operation_of
from maya.estimate.types import Provenance
from maya.trace.types import Convolution, Kernel, Operation, Operator, Work

MEASURED = [
    (operation_of(json.dumps(row["operation"])), row["microseconds"] * 1e-6)
    for row in json.loads((Path(__file__).parent / "h200_operations.json").read_text())
]


def seconds(operation: Operation, cluster: str = "dgx-h200") -> float:
    return float(Estimator(load(cluster), profiles=Profiles()).estimate([operation]).seconds[0])


@pytest.mark.parametrize(
    ("operation", "measured_s"),
    MEASURED,
    ids=[f"{o.operator.name}-{n}" for n, (o, _) in enumerate(MEASURED) if isinstance(o, Kernel)],
)
def test_kernel_takes_about_what_the_device_took(operation: Operation, measured_s: float) -> None:
    assert seconds(operation) == pytest.approx(measured_s, rel=0.3)


def test_all_of_them_are_known() -> None:
    answer = Estimator(load("dgx-h200"), profiles=Profiles()).estimate(
        [operation for operation, _ in MEASURED]
    )
    assert answer.unknown == () and Provenance.UNKNOWN not in answer.provenance


def test_identity_tells_the_operation() -> None:
    for operation, _ in MEASURED:
        assert operation_of(identity(operation)) == operation


NORM_WEIGHTS = (
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u>(int)"
)


def norm_weights(rows: int, hidden: int) -> Kernel:
    sizes = ((rows, hidden), (rows, hidden))
    operator = Operator("aten::native_layer_norm_backward", sizes)
    return Kernel(NORM_WEIGHTS, (hidden // 32, 1, 1), (32, 32, 1), operator=operator)


def test_few_columns_are_added_up_by_few_blocks() -> None:
    """Of as many bytes, those of narrow rows take longer: each block goes over all rows."""
    assert seconds(norm_weights(65_536, 512)) > 2 * seconds(norm_weights(4096, 8192))


def test_sum_over_rows_waits_for_the_blocks_that_share_an_output() -> None:
    name = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, sum>>(x)"
    operator = Operator("aten::sum", ((8192, 512), (), ()))
    alone = Kernel(name, (512, 1, 1), (32, 4, 1), operator=operator)
    shared = Kernel(name, (4, 128, 1), (32, 4, 1), operator=operator)  # 18.7 us on an H200
    assert seconds(alone) < 10e-6 < seconds(shared) == pytest.approx(18.7e-6, rel=0.2)


def test_helper_of_one_block_does_not_walk_its_operators_tensors() -> None:
    name = "void at::native::unrolled_elementwise_kernel_for_multi_outputs<3, x, std::array<char*, 7ul>>(int)"
    operator = Operator("aten::native_batch_norm", ((64, 64, 112, 112), (64,), (64,)))
    assert seconds(Kernel(name, (1, 1, 1), (128, 1, 1), operator=operator)) < 5e-6  # 2.4 us on an H200


def test_attention_in_fp32_does_not_run_on_tensor_cores() -> None:
    operator = Operator("aten::_efficient_attention_forward", ((4, 1024, 12, 64),) * 3)
    fp32, bf16 = (
        seconds(
            Kernel(
                f"fmha_cutlassF_{dtype}_aligned_64x64_rf_sm80(x)", (16, 12, 4), (32, 4, 1), operator=operator
            )
        )
        for dtype in ("f32", "bf16")
    )
    assert bf16 < fp32 / 3 and fp32 == pytest.approx(289.8e-6, rel=0.3)  # measured on an H200


@pytest.mark.parametrize(
    ("dtype", "sizes", "measured_s"),
    [
        ("float", (32, 512, 768), 36.6e-6),
        ("c10::BFloat16", (2048, 2, 1024), 9.7e-6),
        ("c10::BFloat16", (4, 16, 2048, 2048), 438.8e-6),
    ],
)
def test_dropout_draws_its_mask(dtype: str, sizes: tuple[int, ...], measured_s: float) -> None:
    name = f"void at::native::(anonymous namespace)::fused_dropout_kernel_vec<{dtype}, float, unsigned int, 1, 8>(x)"
    operator = Operator("aten::native_dropout", (sizes, (), ()))
    kernel = Kernel(name, (1056, 1, 1), (256, 1, 1), operator=operator)
    assert seconds(kernel) == pytest.approx(measured_s, rel=0.12)


# A sum and its dropout: random numbers are of integers, of which multiprocessors of many generations do as many.
DROPOUT = (58_722_312, Work(791_900_000, 0, 2_097_152, 622_400), 32.8e-6)


@pytest.mark.parametrize(
    ("bytes_moved", "work", "measured_s"),
    [
        # bias, dropout and residual: Philox for each element
        (58_722_312, Work(768_606_208, 0, 2_097_152, 622_592), 32.8e-6),
        # to FP8, transposed: two divisions in double precision, logarithms and powers an element
        (67_129_344, Work(2_222_981_120, 436_207_616, 167_772_160, 1_310_720), 85.9e-6),
        # likewise within a loop over rows, whose bytes go to as many lines
        (536_920_064, Work(6_994_141_184, 926_941_184, 461_373_440, 38_834_176), 551.7e-6),
        # a gated activation: as fast as its bytes
        (335_544_320, Work(1_166_016_512, 0, 100_663_296, 2_621_440), 79.2e-6),
        DROPOUT,
    ],
)
def test_a_compiled_kernel_takes_what_its_instructions_or_its_bytes_take(
    bytes_moved: int, work: Work, measured_s: float
) -> None:
    kernel = Kernel("triton_poi_fused_0", (8192, 1, 1), (128, 1, 1), bytes=bytes_moved, work=work)
    assert seconds(kernel) == pytest.approx(measured_s, rel=0.2)


def test_a_kernel_of_integers_takes_as_many_clocks_on_an_older_device() -> None:
    moved, work, measured_s = DROPOUT
    kernel = Kernel("triton_poi_fused_0", (8192, 1, 1), (128, 1, 1), bytes=moved, work=work)
    clocks_s = measured_s * 132 * 1.98 / (108 * 1.41)  # multiprocessors and GHz of an H200, of an A100
    assert seconds(kernel, "dgx-a100") == pytest.approx(clocks_s, rel=0.2)


def test_double_precision_is_slow_where_a_device_has_few_units_for_it() -> None:
    work = Work(2_222_981_120, 436_207_616, 167_772_160, 1_310_720)
    kernel = Kernel("triton_poi_fused_0", (16_384, 1, 1), (128, 1, 1), bytes=67_129_344, work=work)
    assert seconds(kernel, "a40-8") > 5 * seconds(kernel, "dgx-a100")


@pytest.mark.parametrize(("elements", "measured_s"), [(1_048_576, 7.8e-6), (67_108_864, 153.6e-6)])
def test_normal_numbers_start_generators_and_are_drawn_for_all_elements(
    elements: int, measured_s: float
) -> None:
    name = "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, normal_and_transform<float>>(x)"
    kernel = Kernel(name, (1056, 1, 1), (256, 1, 1), operator=Operator("aten::normal_", ((elements,),)))
    assert seconds(kernel) == pytest.approx(measured_s, rel=0.3)


def convolution(
    direction: str, layout: str, channels: int, side: int, taps: int, groups: int = 1
) -> Convolution:
    shape = (128, channels, side, side)
    weights = (channels, channels // groups, taps, taps)
    padding, ones = (taps // 2,) * 2, (1, 1)
    return Convolution(direction, shape, weights, shape, padding, ones, ones, groups, "bf16", layout)  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_contiguous_convolution_takes_longer_than_one_of_channels_last(direction: str) -> None:
    contiguous, last = (seconds(convolution(direction, layout, 256, 14, 3)) for layout in ("nchw", "nhwc"))
    assert 1.1 * last < contiguous < 3 * last
    assert contiguous == pytest.approx(80e-6, rel=0.35)  # 74.4, 74.7 and 92.1 us on an H200


def test_convolution_of_single_pixels_over_aligned_images_is_a_product_as_it_is() -> None:
    aligned, odd = (
        convolution("forward", "nchw", 256, side, 1) for side in (28, 14)
    )  # 1,568 and 392 bytes an image
    as_last = (seconds(convolution("forward", "nhwc", 256, side, 1)) for side in (28, 14))
    assert [seconds(aligned), seconds(odd)] == [
        pytest.approx(next(as_last)),
        pytest.approx(2.7 * next(as_last), rel=0.4),
    ]


def test_filter_for_each_channel_is_no_product() -> None:
    whole, each = (convolution("forward", "nhwc", 384, 14, 7, groups) for groups in (1, 384))
    assert seconds(each) < seconds(whole) and seconds(each) == pytest.approx(
        2 * 50.1e-6, rel=0.3
    )  # of twice the images
