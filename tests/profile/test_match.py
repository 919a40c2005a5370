"""Matching what a GPU did with what the virtual device recorded."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.errors import MayaError
from maya.profile.kineto import SPACING_S, read_activities
from maya.profile.match import match
from maya.profile.types import Activity
from maya.trace.types import Collective, Convolution, Gemm, Kernel, Memcpy, Memset, Operation, Operator

ADD = Operator("aten::add_", ((4, 8), (4, 8), ()))
ADDMM = Operator("aten::addmm", ((8,), (4, 8), (8, 8)))
ADD_KERNEL = Kernel("add<float>(int)", (2, 1, 1), (128, 1, 1), elements=32, operator=ADD)
PRODUCT = Gemm(m=8, n=4, k=8, operator=ADDMM)


def kernel(name: str, seconds: float, operator: Operator, call: int, **launch: Any) -> Activity:
    shape = {"grid": (2, 1, 1), "block": (128, 1, 1), **launch}
    return Activity("kernel", name, seconds, operator, call, **shape)


def test_own_kernel_is_known_by_its_launch() -> None:
    measured = [kernel("add< float >(int)", 2e-6, ADD, 1), kernel("add<float>(int)", 3e-6, ADD, 2)]
    matched = match({ADD_KERNEL: 1}, measured, iterations=2)
    assert matched.samples == {ADD_KERNEL: [2e-6, 3e-6]}
    assert matched.share == 1.0


def test_kernel_of_another_grid_is_another() -> None:
    wider = Kernel("add<float>(int)", (3, 1, 1), (128, 1, 1), operator=ADD)
    matched = match({ADD_KERNEL: 1, wider: 1}, [kernel("add<float>(int)", 2e-6, ADD, 1, grid=(3, 1, 1))], 1)
    assert matched.samples == {wider: [2e-6]}
    assert matched.unmeasured == (ADD_KERNEL,)


def test_library_call_takes_all_kernels_of_its_operator() -> None:
    measured = [
        kernel("cutlass_gemm", 4e-6, ADDMM, 7),
        kernel("splitKreduce", 1e-6, ADDMM, 7),
        kernel("cutlass_gemm", 6e-6, ADDMM, 9),
        kernel("splitKreduce", 1e-6, ADDMM, 9),
    ]
    assert match({PRODUCT: 1}, measured, iterations=2).samples[PRODUCT] == pytest.approx([5e-6, 7e-6])


def test_two_library_calls_of_one_operator_share_its_time() -> None:
    measured = [kernel("cutlass_gemm", 3e-6, ADDMM, 7), kernel("cutlass_gemm", 5e-6, ADDMM, 7)]
    assert match({PRODUCT: 2}, measured, iterations=1).samples[PRODUCT] == pytest.approx([4e-6, 4e-6])


def test_different_library_calls_of_one_operator_cannot_be_told_apart() -> None:
    other = Gemm(m=16, n=4, k=8, operator=ADDMM)
    measured = [kernel("cutlass_gemm", 3e-6, ADDMM, 7), kernel("cutlass_gemm", 5e-6, ADDMM, 7)]
    matched = match({PRODUCT: 1, other: 1}, measured, iterations=1)
    assert matched.samples == {}
    assert matched.unmatched == {"cutlass_gemm in aten::addmm": pytest.approx(8e-6)}
    assert set(matched.unmeasured) == {PRODUCT, other}


def test_operator_of_a_shortened_tensor_list_is_known_by_its_name() -> None:
    whole, shortened = (
        Operator("aten::_foreach_add_", ((4,),) * 40),
        Operator("aten::_foreach_add_", ((4,),) * 30),
    )
    update = Kernel("multi_tensor_apply", (2, 1, 1), (128, 1, 1), operator=whole)
    assert match({update: 1}, [kernel("multi_tensor_apply", 1e-6, shortened, 3)], 1).samples == {
        update: [1e-6]
    }


def test_copies_are_known_by_direction_size_and_pinning() -> None:
    copies = [
        Activity("memcpy", "Memcpy HtoD (Pinned -> Device)", 1e-6, bytes=64),
        Activity("memcpy", "Memcpy HtoD (Pageable -> Device)", 2e-6, bytes=64),
        Activity("memcpy", "Memcpy DtoD (Device -> Device)", 3e-6, bytes=64),
        Activity("memset", "Memset (Device)", 4e-6, bytes=64),
    ]
    pinned, pageable = Memcpy("h2d", 64), Memcpy("h2d", 64, pinned=False)
    matched = match({pinned: 1, pageable: 1, Memcpy("d2d", 64): 1, Memset(64): 1}, copies, 1)
    assert matched.samples == {
        pinned: [1e-6], pageable: [2e-6], Memcpy("d2d", 64): [3e-6], Memset(64): [4e-6],
    }  # fmt: skip


def test_collectives_are_not_measured_alone() -> None:
    reduce = Collective("all_reduce", "fp32", 64, (0, 1))
    assert match({reduce: 1}, [kernel("ncclDevKernel", 1e-6, Operator(), 0)], 1).unmeasured == (reduce,)


def kineto(events: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": [{"ph": "X", "ts": n, **event} for n, event in enumerate(events)]})
    )
    return path


def test_profilers_trace_names_the_operator_of_a_kernel(tmp_path: Path) -> None:
    operator = {"External id": 5, "Input Dims": [[[4], [4]], [8, 8], []]}
    launch = {"External id": 5, "grid": [2, 1, 1], "block": [128, 1, 1], "correlation": 9}
    path = kineto(
        [
            {"cat": "cpu_op", "name": "aten::cat", "dur": 9, "args": operator},
            {"cat": "kernel", "name": "cat_kernel(int)", "dur": 1.5, "args": launch},
            {"cat": "gpu_memset", "name": "Memset (Device)", "dur": 2, "args": {"bytes": 16}},
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 3, "args": {}},
        ],
        tmp_path,
    )
    operator_of_it = Operator("aten::cat", ((4,), (4,), (8, 8), ()))
    assert read_activities(path) == [
        Activity("kernel", "cat_kernel(int)", 1.5e-6 + SPACING_S, operator_of_it, 5, (2, 1, 1), (128, 1, 1)),
        Activity("memset", "Memset (Device)", 2e-6 + SPACING_S, bytes=16),
    ]


def queued(kernels: int, gap_us: float, launched_us: float) -> list[dict[str, Any]]:
    """Kernels of 10 us, each launched so long after the start of the one before."""
    start = [n * (10 + gap_us) for n in range(kernels)]
    calls = [
        {"cat": "cuda_runtime", "ts": at - 10 - gap_us + launched_us, "dur": 0, "args": {"correlation": n}}
        for n, at in enumerate(start)
    ]
    on_device = [
        {"cat": "kernel", "name": "k", "ts": at, "dur": 10, "args": {"correlation": n, "stream": 7}}
        for n, at in enumerate(start)
    ]
    return [*calls, *on_device]


@pytest.mark.parametrize(
    ("launched_us", "spacing_s"),
    [(-1, 2e-6), (5, SPACING_S)],  # kernels that were waiting tell; those that came late do not
)
def test_kernel_takes_the_gap_to_the_next_one_that_waits(
    tmp_path: Path, launched_us: float, spacing_s: float
) -> None:
    activities = read_activities(kineto(queued(40, 2, launched_us), tmp_path))
    assert [activity.seconds for activity in activities] == pytest.approx([10e-6 + spacing_s] * 40)


def test_compressed_trace_is_read(tmp_path: Path) -> None:
    path = kineto(
        [{"cat": "gpu_memset", "name": "Memset (Device)", "dur": 2, "args": {"bytes": 16}}], tmp_path
    )
    compressed = tmp_path / "trace.json.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_activities(compressed) == read_activities(path)
    compressed.write_bytes(compressed.read_bytes()[:-9])
    with pytest.raises(MayaError, match="not a trace"):
        read_activities(compressed)


def test_trace_without_device_activity_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(MayaError, match="CUPTI"):
        read_activities(kineto([{"cat": "cpu_op", "name": "aten::cat", "dur": 9}], tmp_path))


JSON = st.recursive(
    st.none()
    | st.integers(-9, 9)
    | st.floats()
    | st.sampled_from(["X", "kernel", "cpu_op", "cuda_runtime", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ph", "cat", "ts", "dur", "name", "args", "External id", "grid"]), inner
        )
    ),
    max_leaves=20,
)


@given(events=JSON)
@settings(max_examples=200)
def test_whatever_is_in_a_trace_is_read_or_refused(
    events: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with contextlib.suppress(MayaError):
        assert all(isinstance(activity, Activity) for activity in read_activities(path))


MM = Operator("aten::mm", ((8, 8), (8, 8)))
FORWARD, DATA, WEIGHTS = (
    Gemm(m=8, n=8, k=8, transpose_a=a, transpose_b=b, operator=MM)
    for a, b in ((True, False), (False, False), (False, True))
)


def test_products_of_one_operator_are_told_apart_by_their_kernels_layout() -> None:
    measured = [
        kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", 4e-6, MM, 1),
        kernel("sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize64x64x64_stage3", 5e-6, MM, 2),
        kernel("cutlass_80_tensorop_s16816gemm_bf16_64x128_64x4_nt_align8", 6e-6, MM, 3),
        kernel("void cublasLt::splitKreduce_kernel<32, 16>(float)", 1e-6, MM, 3),
    ]
    matched = match({FORWARD: 1, DATA: 1, WEIGHTS: 1}, measured, 1)
    assert matched.samples == {FORWARD: [4e-6], DATA: [5e-6], WEIGHTS: [pytest.approx(7e-6)]}


@pytest.mark.parametrize("name", ["magma_gemm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NTT"])
def test_products_stay_apart_where_a_name_does_not_tell(name: str) -> None:
    measured = [kernel(name, 4e-6, MM, 1), kernel("nvjet_sm90_TNT", 4e-6, MM, 2)]
    assert match({FORWARD: 1, DATA: 1}, measured, 1).samples == {}  # NT is neither's


def test_products_of_one_layout_stay_apart() -> None:
    half = Gemm(m=8, n=8, k=8, transpose_a=True, dtype="fp16", operator=MM)
    measured = [kernel("nvjet_sm90_TNT", 4e-6, MM, 1), kernel("nvjet_sm90_TNT", 5e-6, MM, 2)]
    assert match({FORWARD: 1, half: 2}, measured, 1).samples == {}


@pytest.mark.parametrize(
    ("dtype", "compute", "name"),
    [
        ("fp16", "fp32", "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT"),
        ("fp16", "fp32", "void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align4>"),
        ("fp32", "fp32", "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>"),
        ("fp32", "fp32", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3"),
        ("fp32", "tf32", "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align4>"),
        ("fp32", "tf32", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x128x32_warpgroupsize1x1x1"),
    ],
)
def test_products_of_one_layout_are_told_apart_by_their_kernels_types(
    dtype: str, compute: str, name: str
) -> None:
    other = Gemm(m=8, n=8, k=8, transpose_a=True, dtype=dtype, compute=compute, operator=MM)
    measured = [kernel("nvjet_sm90_tst_32x64_64x16_4x2_h_bz_TNT", 4e-6, MM, 1), kernel(name, 5e-6, MM, 2)]
    assert match({FORWARD: 1, other: 1}, measured, 1).samples == {FORWARD: [4e-6], other: [5e-6]}


@pytest.mark.parametrize("recorded", [{FORWARD: 1, DATA: 1}, {FORWARD: 3, DATA: 1}])
def test_products_are_as_many_as_were_recorded(recorded: dict[Operation, int]) -> None:
    names = ("nvjet_sm90_TNT", "nvjet_sm90_TNT", "nvjet_sm90_NNT")
    measured = [kernel(name, 4e-6, MM, call) for call, name in enumerate(names)]
    assert match(recorded, measured, 1).samples == {}


def test_only_product_of_an_operator_is_not_one_of_another_layout() -> None:
    assert match({FORWARD: 1}, [kernel("nvjet_sm90_NNT", 4e-6, MM, 1)], 1).unmeasured == (FORWARD,)


BACKWARD = Operator("aten::convolution_backward", ((2, 8, 4, 4), (2, 8, 4, 4), (8, 8, 1, 1)))


def convolution(direction: Literal["backward_data", "backward_filter"], layout: str) -> Convolution:
    shapes = ((2, 8, 4, 4), (8, 8, 1, 1), (2, 8, 4, 4))
    return Convolution(direction, *shapes, (0, 0), (1, 1), (1, 1), 1, "bf16", layout, BACKWARD)


def test_passes_of_a_convolution_are_told_apart_by_their_kernels_names() -> None:
    data, weights = (convolution(direction, "nhwc") for direction in ("backward_data", "backward_filter"))
    measured = [
        kernel("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32", 4e-6, BACKWARD, 1),
        kernel("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_splitK_NTT", 5e-6, BACKWARD, 1),
        kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_ssched_bz_coopA_NNT", 6e-6, BACKWARD, 2),
        kernel("sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16", 7e-6, BACKWARD, 2),
    ]
    assert match({data: 2, weights: 2}, measured, 1).samples == {data: [4e-6, 6e-6], weights: [5e-6, 7e-6]}


TO_NHWC, TO_NCHW = (
    f"void cudnn::engines_precompiled::{name}Kernel<float>" for name in ("nchwToNhwc", "nhwcToNchw")
)
DATA_NHWC, WEIGHTS_NHWC = (
    f"sm90_xmma_{name}_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32"
    for name in ("dgrad", "wgrad")
)
REDUCE = "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>"


def convolving(name: str, operator: Operator, call: int) -> Activity:
    if name == "memset":
        return Activity("memset", "Memset (Device)", 1e-6, operator, call, bytes=64)
    return kernel(name, 1e-6, operator, call)


@pytest.mark.parametrize(
    ("layout", "first", "second"),
    [
        ("nhwc", ["memset", DATA_NHWC], ["void init_device_workspace<wgrad_indexed>", WEIGHTS_NHWC]),
        ("nhwc", ["memset", "nvjet_sm90_NNT"], ["memset", "cutlass_s16816gemm_nt", "splitKreduce"]),
        ("nchw", ["nvjet_sm90_NTT"], ["cutlass_s1688gemm_tn", REDUCE]),
        ("nchw", [TO_NHWC, "memset", DATA_NHWC, TO_NCHW], [TO_NHWC, TO_NHWC, WEIGHTS_NHWC, TO_NCHW]),
        ("nchw", ["nvjet_sm90_NTT"], [TO_NHWC, TO_NHWC, WEIGHTS_NHWC]),
    ],
)
def test_what_surrounds_a_pass_of_a_convolution_belongs_to_it(
    layout: str, first: list[str], second: list[str]
) -> None:
    data, weights = (convolution(direction, layout) for direction in ("backward_data", "backward_filter"))
    measured = [convolving(name, BACKWARD, 1) for name in first + second]
    matched = match({data: 1, weights: 1}, measured, 1)
    assert matched.samples == {
        data: [pytest.approx(len(first) * 1e-6)], weights: [pytest.approx(len(second) * 1e-6)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("nchw", [TO_NHWC, TO_NHWC, DATA_NHWC, WEIGHTS_NHWC]),  # converted once, for both
        (
            "nchw",
            [TO_NHWC, "nvjet_sm90_NTT", TO_NCHW, TO_NHWC, WEIGHTS_NHWC],
        ),  # of which layout is the product?
        ("nhwc", [DATA_NHWC, "nhwcAddPaddingKernel", WEIGHTS_NHWC]),  # of the one, or for the other
        ("nhwc", ["convolve_sgemm", WEIGHTS_NHWC]),  # may be either's
        ("nchw", ["convolve_sgemm", "cutlass_s1688gemm_tn", REDUCE]),
        ("nhwc", [WEIGHTS_NHWC]),  # the other one was recorded as well
    ],
)
def test_passes_whose_kernels_names_do_not_tell_stay_together(layout: str, names: list[str]) -> None:
    data, weights = (convolution(direction, layout) for direction in ("backward_data", "backward_filter"))
    measured = [convolving(name, BACKWARD, 1) for name in names]
    assert match({data: 1, weights: 1}, measured, 1).samples == {}


def test_convolutions_are_told_apart_by_the_layout_of_their_tensors() -> None:
    planes, last = convolution("backward_data", "nchw"), convolution("backward_data", "nhwc")
    measured = [
        convolving(name, BACKWARD, call)
        for call, names in enumerate(([TO_NHWC, DATA_NHWC, TO_NCHW], [DATA_NHWC]))
        for name in names
    ]
    matched = match({planes: 1, last: 1}, measured, 1)
    assert matched.samples == {planes: [pytest.approx(3e-6)], last: [1e-6]}


def test_product_may_be_either_layouts_pass() -> None:
    last, planes = convolution("backward_filter", "nhwc"), convolution("backward_data", "nchw")
    calls = ([TO_NHWC, DATA_NHWC], [WEIGHTS_NHWC], ["nvjet_sm90_NTT"])
    measured = [convolving(name, BACKWARD, call) for call, names in enumerate(calls) for name in names]
    assert match({last: 2, planes: 2}, measured, 1).samples == {}


def test_transposes_around_both_passes_are_neithers() -> None:
    data, weights = (convolution(direction, "nchw") for direction in ("backward_data", "backward_filter"))
    names = ("nchwToNhwcKernel", "sm90_xmma_dgrad_implicit_gemm", "sm90_xmma_wgrad_implicit_gemm")
    measured = [kernel(name, 4e-6, BACKWARD, 1) for name in names]
    assert match({data: 1, weights: 1}, measured, 1).samples == {}


def test_compiled_kernel_is_known_whatever_its_region_is_called() -> None:
    region = Operator("CompiledFunction", ((4, 8),))
    fused = Kernel("triton_poi_fused_add_0", (2, 1, 1), (128, 1, 1), bytes=64, operator=region)
    measured = [kernel("triton_poi_fused_add_0", 2e-6, Operator("triton_poi_fused_add_0"), 1)]
    assert match({fused: 1}, measured, 1).samples == {fused: [2e-6]}
    other = Kernel("triton_poi_fused_add_0", (2, 1, 1), (128, 1, 1), bytes=128, operator=region)
    assert match({fused: 1, other: 1}, measured, 1).samples == {}  # two graphs' kernels of one name


def test_compiled_kernels_of_unknown_work_stay_apart() -> None:
    fused = [
        Kernel("triton_red_fused_sum_0", (2, 1, 1), (128, 1, 1), operator=Operator("CompiledFunction", sizes))
        for sizes in (((4, 8),), ((4, 16),))
    ]
    measured = [kernel("triton_red_fused_sum_0", 2e-6, Operator("triton_red_fused_sum_0"), 1)]
    assert match(dict.fromkeys(fused, 1), measured, 1).samples == {}


SORT = "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<long>(long*)"
EMBEDDING = Operator("aten::embedding_dense_backward", ((8, 1024, 768), (8, 1024)))


def test_kernel_of_cub_is_known_whatever_its_range_is_called() -> None:
    sort = Kernel(SORT, (2, 1, 1), (128, 1, 1), operator=Operator("nvtx"))
    assert match({sort: 2}, [kernel(SORT, 2e-6, EMBEDDING, 1)], 1).samples == {sort: [2e-6]}
    of_another = Kernel(SORT, (2, 1, 1), (128, 1, 1), operator=Operator("aten::sort", ((8,),)))
    assert match({sort: 1, of_another: 1}, [kernel(SORT, 2e-6, EMBEDDING, 1)], 1).samples == {}


def test_other_kernels_are_not_known_without_their_operator() -> None:
    assert match({ADD_KERNEL: 1}, [kernel("add<float>(int)", 2e-6, EMBEDDING, 1)], 1).samples == {}


TRITON = Kernel("triton_poi_fused_add_0", (2, 1, 1), (128, 1, 1), operator=Operator("CompiledFunction"))


def tuned(sizes: int, grid: int) -> Activity:
    operator = Operator("triton_poi_fused_add_0", ((sizes,),))
    return kernel("triton_poi_fused_add_0", 2e-6, operator, 1, grid=(grid, 1, 1))


def test_kernel_that_the_device_tuned_is_known_by_its_name() -> None:
    assert match({TRITON: 2}, [tuned(64, 4), tuned(64, 4)], 1).samples == {TRITON: [2e-6, 2e-6]}


@pytest.mark.parametrize(
    "launched", [[tuned(64, 4), tuned(64, 8)], [tuned(64, 4), tuned(32, 4)], [tuned(64, 4)]]
)
def test_kernel_of_one_name_and_several_launches_stays_unknown(launched: list[Activity]) -> None:
    assert match({TRITON: 2}, launched, 1).samples == {}


def test_tuned_kernels_of_one_name_stay_apart() -> None:
    other = Kernel("triton_poi_fused_add_0", (3, 1, 1), (128, 1, 1), operator=Operator("CompiledFunction"))
    assert match({TRITON: 1, other: 1}, [tuned(64, 4)], 1).samples == {}
