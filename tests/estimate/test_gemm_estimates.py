"""Matrix products: measured entries first, then the fitted model, then a borrowed one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from maya.clusters import Cluster, load
from maya.estimate import Estimates, Estimator, Provenance
from maya.estimate.gemm import aligned, flops, narrowness
from maya.estimate.tables import gemm_table
from maya.trace.types import Gemm

SIZE = st.integers(1, 40_000)


def estimate(cluster: str, *gemms: Gemm) -> Estimates:
    return Estimator(load(cluster)).estimate(gemms)


def reached(cluster: str, product: Gemm) -> float:
    """TFLOP/s."""
    return flops(product) / estimate(cluster, product).seconds[0] * 1e-12


def linear(tokens: int, features: int, k: int, dtype: str = "bf16") -> Gemm:
    """As PyTorch's linear arrives: row-major out[tokens, features] is column-major m=features, n=tokens."""
    return Gemm(m=features, n=tokens, k=k, dtype=dtype, transpose_a=True)


@pytest.mark.parametrize("tokens, features, k, microseconds", [(16, 512, 512, 10), (16, 1760, 1760, 38)])
def test_a_small_product_in_fp32_is_not_charged_its_launch(
    tokens: int, features: int, k: int, microseconds: float
) -> None:
    """Measured on a V100 by DeepBench, on the device; the fit rests on times of the host's clock."""
    product = Gemm(features, tokens, k, dtype="fp32")
    assert estimate("dgx-v100", product).seconds[0] < 2.5e-6 * microseconds


@pytest.mark.parametrize(
    ("product", "least", "most"),
    [
        (linear(8192, 8192, 8192), 1.10, 1.16),  # 132 / 116 = 1.14
        (linear(16, 8192, 8192), 1.0, 1.01),  # as long as its weights take to be read
    ],
)
def test_a_product_is_slower_on_the_multiprocessors_that_it_is_left(
    product: Gemm, least: float, most: float
) -> None:
    times = estimate("dgx-h100", product, *(replace(product, multiprocessors=n) for n in (116, 132, 300)))
    alone, left, all_of_them, more = times.seconds
    assert least <= left / alone <= most
    assert alone == all_of_them == more


@pytest.mark.parametrize(
    "product", [Gemm(1, 1, 2**23, dtype="fp32"), Gemm(2**13, 1, 2**13), Gemm(1, 1, 2**24)]
)
def test_dot_products_and_products_with_a_vector_take_what_their_bytes_take(product: Gemm) -> None:
    item = 4 if product.dtype == "fp32" else 2
    least = item * (product.m + 1) * product.k / load("dgx-h100").device.memory_bandwidth
    assert least < estimate("dgx-h100", product).seconds[0] < 2.5 * least


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"])
def test_a_measured_shape_gets_its_measured_duration(cluster: str) -> None:
    table = gemm_table(load(cluster).device.key, "bf16")
    assert table is not None
    answer = estimate(cluster, linear(4096, 8192, 2048))
    assert answer.seconds[0] == table.exact(4096, 8192, 2048)
    assert answer.provenance[0] == Provenance.PROFILED


@pytest.mark.parametrize(
    "cluster, tokens, features, k, microseconds",
    [
        ("dgx-h200", 1024, 384, 768, 5.5),
        ("dgx-h200", 4096, 512, 2048, 11.6),
        ("dgx-h200", 2048, 2048, 4096, 27.9),
        ("dgx-h200", 8192, 1536, 4096, 81.0),
        ("dgx-h200", 2048, 12288, 12288, 446),
        ("dgx-h100", 512, 2048, 4096, 13.2),
        ("dgx-h100", 4096, 2048, 8192, 99.8),
    ],
)
def test_a_product_in_fp8_takes_what_it_took_without_the_quantisation_of_its_input(
    cluster: str, tokens: int, features: int, k: int, microseconds: float
) -> None:
    """Measured by PyTorch's profiler (scripts/measure); the tables' readings hold both, twice as much for some."""
    answer = estimate(cluster, linear(tokens, features, k, "fp8_e4m3"))
    assert answer.seconds[0] == pytest.approx(microseconds * 1e-6, rel=0.25)
    assert answer.provenance[0] == Provenance.LEARNED


def test_tokens_are_the_tables_m() -> None:
    """128 tokens x 65,536 features is another kernel than 65,536 x 128."""
    table = gemm_table("h100_sxm", "bf16")
    assert table is not None
    rows = table.m == 128
    measured = table.seconds[rows, table.n == 65536, table.k == 4096]
    assert estimate("dgx-h100", linear(128, 65536, 4096)).seconds[0] == measured


def test_a_shape_between_measured_ones_is_learned() -> None:
    answer = estimate("dgx-h100", linear(4096, 4608, 12288))
    assert answer.provenance[0] == Provenance.LEARNED
    around = estimate("dgx-h100", linear(4096, 4096, 12288), linear(4096, 5120, 12288)).seconds
    assert around[0] * 0.95 < answer.seconds[0] < around[1] * 1.05


def test_backward_layouts_are_learned_from_the_forward_neighbour() -> None:
    forward = linear(4096, 8192, 2048)
    dgrad = Gemm(m=8192, n=4096, k=2048)
    wgrad = Gemm(m=8192, n=4096, k=2048, transpose_b=True)
    answer = estimate("dgx-h100", forward, dgrad, wgrad)
    assert list(answer.provenance) == [Provenance.PROFILED, Provenance.LEARNED, Provenance.LEARNED]
    assert answer.seconds[1:] == pytest.approx(answer.seconds[0], rel=0.01)


def test_a_device_without_measurements_borrows_and_says_so() -> None:
    base = load("dgx-h100")
    unknown = base.model_copy(update={"device": base.device.model_copy(update={"key": "h20_sxm"})})
    answer = Estimator(unknown).estimate([linear(4096, 8192, 2048)])
    assert answer.provenance[0] == Provenance.BORROWED
    assert answer.seconds[0] == pytest.approx(
        estimate("dgx-h100", linear(4096, 8192, 2048)).seconds[0], rel=0.2
    )


def test_fp16_and_bf16_take_the_same_time() -> None:
    seconds = estimate("dgx-a100", linear(4096, 8192, 2048), linear(4096, 8192, 2048, "fp16")).seconds
    assert seconds[0] == seconds[1]


def test_narrow_types_are_faster() -> None:
    fp8, bf16, fp32 = estimate(
        "dgx-h100", *(linear(8192, 8192, 8192, d) for d in ("fp8", "bf16", "fp32"))
    ).seconds
    assert fp8 < bf16 < fp32


def test_flops_are_two_a_multiply_add() -> None:
    assert estimate("dgx-h100", Gemm(m=3, n=5, k=7, batch=11)).flops[0] == 2 * 3 * 5 * 7 * 11


def test_batched_product_costs_less_than_its_parts() -> None:
    batched, single = estimate("dgx-a100", Gemm(128, 128, 64, batch=96), Gemm(128, 128, 64)).seconds
    assert single < batched < 96 * single


@settings(max_examples=60)
@given(tokens=SIZE, features=SIZE, k=SIZE)
def test_no_product_beats_the_datasheet(tokens: int, features: int, k: int) -> None:
    device = load("dgx-h100").device
    answer = estimate("dgx-h100", linear(tokens, features, k))
    assert np.isfinite(answer.seconds[0])
    assert answer.seconds[0] > answer.flops[0] / device.peak_flops["bf16"]


@pytest.fixture(scope="module")
def borrowed() -> Cluster:
    base = load("dgx-a100")
    return base.model_copy(update={"device": base.device.model_copy(update={"key": "unmeasured"})})


@settings(max_examples=60)
@given(m=SIZE, n=SIZE, k=SIZE, more=st.integers(2, 4))
def test_roofline_grows_with_the_contraction(borrowed: Cluster, m: int, n: int, k: int, more: int) -> None:
    short, long = Gemm(m, n, k), Gemm(m, n, k * more)
    # What alone is aligned can be faster, and so can what alone has rows of an even length.
    assume(aligned(short) == aligned(long) and narrowness(short) == narrowness(long))
    small, large = Estimator(borrowed).estimate([short, long]).seconds
    assert 0 < small <= large


@pytest.mark.parametrize(
    ("cluster", "own"),  # of the two: an A100's transposed products have no fit of their own
    [
        ("dgx-a100", (False, True)),
        ("dgx-h200", (True, True)),
        ("dgx-h100", (False,) * 2),
        ("dgx-b200", (False,) * 2),
    ],
)
def test_rows_of_no_multiple_of_16_bytes_cost_what_narrow_loads_do(
    cluster: str, own: tuple[bool, bool]
) -> None:
    padded = linear(16_384, 50_304, 4096)
    odd = linear(16_384, 50_257, 4096)
    backward = Gemm(m=4096, n=16_384, k=50_257)
    tokens_only = linear(16_383, 50_304, 4096)  # how many rows there are does not shift their beginnings
    answer = estimate(cluster, padded, odd, backward, tokens_only)
    assert 1.8 < answer.seconds[1] / answer.seconds[0] < 15
    assert answer.seconds[0] < answer.seconds[2] <= answer.seconds[1] * 1.001  # an odd operand costs no more
    assert answer.seconds[3] == pytest.approx(answer.seconds[0], rel=0.05)
    learned = answer.provenance[3]
    assert learned == Provenance.LEARNED
    assert [each == learned for each in answer.provenance[1:3]] == list(own)
    assert set(answer.provenance[1:3]) <= {Provenance.LEARNED, Provenance.BORROWED}
    assert (
        len(answer.notes) == 1
        and "2 16-bit matrix products" in answer.notes[0]
        and "50257" in answer.notes[0]
    )


@pytest.mark.parametrize(
    ("product", "measured_us"),  # on an H200, scripts/measure/operations.py
    [
        (Gemm(2048, 8192, 50257), 11_922),  # the gradient of what a vocabulary's weights read
        (Gemm(50257, 4096, 2048, transpose_a=True), 8788),
        (Gemm(4098, 8192, 4096, transpose_a=True), 989),
        (Gemm(4096, 8192, 4097, transpose_a=True), 2143),
    ],
)
def test_unaligned_products_take_what_an_h200_took(product: Gemm, measured_us: float) -> None:
    seconds = estimate("dgx-h200", product).seconds[0]
    assert seconds == pytest.approx(measured_us * 1e-6, rel=0.25)


@pytest.mark.parametrize(
    ("product", "tflops", "within"),  # on an A100, EleutherAI/cookbook's sizing/results
    [
        (Gemm(2048, 2048, 108, 128, "fp16"), 63.9, 0.1),  # scores of heads of 108 elements
        (Gemm(108, 2048, 2048, 128, "fp16"), 104.6, 0.25),  # memory decides: that of 40 GB has three quarters
        (Gemm(14_336, 8192, 51_137, 1, "fp16"), 76.1, 0.1),
        (Gemm(14_336, 8192, 51_138, 1, "fp16"), 136.9, 0.25),
        (Gemm(14_274, 8192, 51_200, 1, "fp16"), 172.0, 0.25),
        (Gemm(14_273, 8192, 51_200, 1, "fp16"), 72.0, 0.1),
    ],
)
def test_unaligned_products_take_what_an_a100_took(product: Gemm, tflops: float, within: float) -> None:
    assert reached("dgx-a100", product) == pytest.approx(tflops, rel=within)


@pytest.mark.parametrize(
    ("product", "tflops"),  # on a V100, as above
    [
        (Gemm(4096, 4096, 4096, 1, "fp16"), 84.2),
        (Gemm(4096, 4096, 4096, 16, "fp16"), 64.3),
        (Gemm(2048, 2048, 2048, 16, "fp16"), 65.7),
        (Gemm(254, 4096, 27_648, 1, "fp16"), 53.5),  # unaligned
    ],
)
def test_a_v100s_products_take_longer_in_batches(product: Gemm, tflops: float) -> None:
    assert reached("dgx-v100", product) == pytest.approx(tflops, rel=0.25)


def test_a_small_product_is_as_fast_unaligned() -> None:
    answer = estimate("dgx-h100", linear(64, 8, 1024), linear(64, 7, 1024))
    assert answer.seconds[1] == pytest.approx(answer.seconds[0], rel=0.1) and answer.notes == ()
