"""Kernels by name: what PyTorch 2.11 launches, and the bytes or flops each stands for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate import Estimator, Provenance, attention, kernels, packed
from maya.trace.types import Kernel, Memcpy, Memset, Operator

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
TO_BF16 = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)"
)
SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, "
    "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(c10::BFloat16*, c10::BFloat16 const*, int)"
)
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, "
    "float const*, float const*, float const*, float*, float*, float*)"
)
NORM_BACKWARD = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, float, false>()"
)
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)"
FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<3>, at::native::(anonymous namespace)::PointwiseOpScalarFunctor<float, 3, 3, 0>, "
    "std::multiplies<float>, float>()"
)
FUSED_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false>, float const*, double>()"
)
TRAITS = (
    "<128, 128, 64, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >"
)
FLASH = (
    f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits{TRAITS}, false, %s, false, false, true, "
    "true, false, false>(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACKWARD = (
    f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits{TRAITS}, "
    "false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)"
)


def kernel(name: str, grid: int = 1024, sizes: tuple[tuple[int, ...], ...] = (), **known: int) -> Kernel:
    return Kernel(name, (grid, 1, 1), (128, 1, 1), operator=Operator("aten::op", sizes), **known)


def moved(*arguments: object, **known: object) -> float:
    traffic = kernels.traffic(kernel(*arguments, **known))  # type: ignore[arg-type]
    assert traffic is not None
    return traffic.bytes


def test_recorded_bytes_are_taken_as_they_are() -> None:
    assert moved(ADD, bytes=12345) == 12345


def test_operands_times_elements_times_item() -> None:
    assert moved(ADD, elements=1000) == 3 * 1000 * 2


def test_elements_come_from_the_operator_when_none_were_recorded() -> None:
    assert moved(ADD, sizes=((8, 1024), (8, 1024), ())) == 3 * 8192 * 2


def test_cast_to_16_bit_reads_four_and_writes_two() -> None:
    assert moved(TO_BF16, elements=1000, bytes=8000) == 6000


def test_adding_a_16_bit_gradient_to_fp32_reads_two_bytes_less() -> None:
    name = (
        "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, "
        "4, at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1> >(int)"
    )
    assert moved(name, elements=1000, bytes=12000) == 10000


def test_softmax_reads_and_writes_once() -> None:
    assert moved(SOFTMAX, sizes=((4, 1000), (), ())) == 2 * 4000 * 2


def test_layer_norm_backward_walks_three_tensors() -> None:
    assert moved(NORM, sizes=((16, 64), (64,))) == 2 * 1024 * 4
    assert moved(NORM_BACKWARD, sizes=((16, 64), (16, 64), ())) == 3 * 1024 * 4


def test_gradients_that_fsdp_packs_as_bytes_move_once_whatever_their_type() -> None:
    name = (
        "void at::native::detail::chunk_cat_cuda_kernel<char, char>(char**, char*, long*, long*, long, long)"
    )
    sizes = ((4096, 4096), (), (), (4, 4096 * 1024))
    for item in (2, 4):
        blocks = 4096 * 4096 * item // (128 * 16)
        assert kernels.traffic(kernel(name, blocks, sizes)) == kernels.Traffic(2 * 4096 * 4096 * item)


def test_gather_moves_rows_not_the_table() -> None:
    assert moved(GATHER, sizes=((50304, 768), (8192,))) == 2 * 8192 * 768 * 4


def test_foreach_counts_the_operators_elements_by_its_blocks() -> None:
    sizes = ((3 * 65536,), (65536,), (32768,)) * 3  # three lists of three tensors; 5 chunks a list
    traffic = kernels.traffic(kernel(FOREACH, grid=5, sizes=sizes))
    assert traffic is not None
    assert traffic.bytes == pytest.approx(4.5 * 65536 * 4 * 4)  # three read, one written, fp32


def test_fused_adam_reads_four_lists_and_writes_three() -> None:
    assert moved(FUSED_ADAM, grid=10, elements=1000) == 7 * 1000 * 4


def test_unknown_kernel_is_named_and_charged_the_floor() -> None:
    answer = Estimator(load("dgx-h100")).estimate([kernel("mystery")])
    assert answer.unknown == ("kernel mystery",)
    assert answer.provenance[0] == Provenance.UNKNOWN
    assert answer.seconds[0] > 0


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("void cutlass::device_kernel<enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<", True),
        ("void at::native::tinygemm_m16n8k16_chunk_kernel<float>(int)", True),
        ("sm90_fp8_gemm_1d2d_impl", True),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616>", True),
        ("void Marlin<4, 256>(int4 const*)", True),
        ("void at::native::GammaBetaBackwardCUDAKernel<float>", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::lgamma_kernel>", False),
        ("void (anonymous namespace)::commandBuffer<int>", False),
    ],
)  # fmt: skip
def test_a_product_that_nothing_recognises_is_not_timed_by_its_bytes(name: str, product: bool) -> None:
    answer = Estimator(load("dgx-h100")).estimate([kernel(name, sizes=((4096, 4096), (4096, 4096)))])
    assert (answer.provenance[0] == Provenance.UNKNOWN) == product
    assert bool(answer.unknown) == product


def test_a_guess_from_the_grid_is_no_better_than_a_roofline() -> None:
    answer = Estimator(load("dgx-a100")).estimate([kernel(ADD), kernel(ADD, elements=1 << 20)])
    assert list(answer.provenance) == [Provenance.ROOFLINE, Provenance.LEARNED]


@pytest.mark.parametrize(
    ("engine", "queries", "keys", "share"),
    [
        ("cudnn", 1024, 1024, 0.5), ("cudnn", 1024, 4096, 1 / 8), ("cudnn", 4096, 1024, 7 / 8),
        ("flash2", 1024, 1024, 0.5), ("flash2", 1024, 4096, 7 / 8), ("flash2", 4096, 1024, 1 / 8),
    ],
)  # fmt: skip
def test_a_causal_mask_is_not_half_of_what_is_not_square(
    engine: str, queries: int, keys: int, share: float
) -> None:
    masked, full = (
        attention.Attention(False, causal, 2, 16, queries, keys, 64, engine) for causal in (True, False)
    )
    assert masked.flops == share * full.flops


@pytest.mark.parametrize(("causal", "share"), [("true", 0.5), ("false", 1.0)])
def test_flash_attention_is_read_from_name_and_grid(causal: str, share: float) -> None:
    fused = attention.recognise(Kernel(FLASH % causal, (16, 4, 32), (128, 1, 1)))
    assert fused is not None
    assert (fused.batch, fused.heads, fused.queries, fused.head_dim) == (4, 32, 2048, 128)
    assert fused.flops == 4 * share * 4 * 32 * 2048**2 * 128


def test_flash_attention_prefers_the_operators_sizes() -> None:
    shape = (2, 1000, 16, 128)
    operator = Operator("aten::_flash_attention_forward", (shape, shape, shape))
    fused = attention.recognise(Kernel(FLASH % "true", (8, 2, 16), (128, 1, 1), operator=operator))
    assert fused is not None
    assert (fused.batch, fused.queries, fused.heads, fused.keys) == (2, 1000, 16, 1000)


EFFICIENT = "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)"
EFFICIENT_BACKWARD = (
    "fmha_cutlassB_bf16_aligned_128x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)"
)
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
JAGGED, LINED_UP, ENDS = (
    (2536, 8, 64),
    (1, 2536, 8, 64),
    (5,),
)  # lengths 512, 1024, 300 and 700, as PyTorch records them


@pytest.mark.parametrize(
    ("name", "grid", "sizes", "known"),
    [
        (FLASH % "true", (8, 4, 8), (JAGGED, JAGGED, JAGGED, ENDS, ENDS), {}),
        (FLASH_BACKWARD, (16, 4, 8), (JAGGED,) * 5 + ((8, 2536), ENDS, ENDS, (), (2,)), {}),
        (EFFICIENT, (16, 8, 4), (LINED_UP, LINED_UP, LINED_UP, (), ENDS, ENDS), {}),
        (EFFICIENT_BACKWARD, (16, 8, 4), (LINED_UP,) * 4 + ((), LINED_UP, ENDS, ENDS), {}),
        (CUDNN, (8, 8, 4), (JAGGED, JAGGED, JAGGED, (), ENDS, ENDS), {"attention": (4, 8, 1024, 1024, 64, 1)}),
    ],
)  # fmt: skip
def test_sequences_of_unlike_lengths_do_not_count_as_the_longest(
    name: str,
    grid: tuple[int, int, int],
    sizes: tuple[tuple[int, ...], ...],
    known: dict[str, tuple[int, ...]],
) -> None:
    operator = Operator("aten::_attention_backward" if len(sizes) > 6 else "aten::_attention_forward", sizes)
    jagged = Kernel(name, grid, (128, 1, 1), operator=operator, **known)  # type: ignore[arg-type]
    fused = attention.recognise(jagged)
    assert fused is not None and fused.causal
    true = sum(length**2 for length in (512, 1024, 300, 700)) / 2
    products = 10 if fused.backward else 4
    assert 0.9 < fused.flops / (products * true * 8 * 64) < 1.2  # 2.2 and, in one line, 3.4 before
    answer = Estimator(load("dgx-h100")).estimate([jagged])
    assert answer.provenance[0] == Provenance.ROOFLINE
    assert len(answer.notes) == 1 and "4 sequences of unlike lengths" in answer.notes[0]


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=20))
def test_packed_sequences_are_between_equal_ones_and_the_longest(lengths: list[int]) -> None:
    tokens = sum(lengths)
    told = packed.Packed(len(lengths), tokens, tokens, 1, 64, max(lengths))
    pairs = sum(length**2 for length in lengths)
    least, most = tokens**2 / len(lengths), tokens * max(lengths)
    assert least * (1 - 1e-9) <= told.pairs <= most * (1 + 1e-9)
    assert told.pairs >= pairs / 2
    if len(set(lengths)) == 1:
        assert told.pairs == pytest.approx(pairs)


@pytest.mark.parametrize("named", [True, False])
def test_cudnn_attention_runs_at_its_own_generations_rate(named: bool) -> None:
    shape = (2, 32, 4096, 128)  # [batch, heads, queries, head_dim]
    operator = Operator("aten::_cudnn_attention_forward", (shape, shape, shape)) if named else Operator()
    name = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
    graph = None if named else (2, 32, 4096, 4096, 128, 1)
    own = Kernel(name, (32, 32, 2), (128, 1, 1), operator=operator, attention=graph)
    flash = Kernel(FLASH % "true", (32, 2, 32), (128, 1, 1))
    answer = Estimator(load("dgx-h100")).estimate([own, flash])
    assert answer.flops[0] == answer.flops[1] == 2 * 2 * 32 * 4096**2 * 128
    assert answer.seconds[0] < answer.seconds[1]


def test_cudnn_attention_of_all_keys_does_twice_the_work() -> None:
    name = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
    causal, full = (
        Kernel(name, (32, 32, 2), (128, 1, 1), attention=(2, 32, 4096, 4096, 128, n)) for n in (1, 0)
    )
    answer = Estimator(load("dgx-h200")).estimate([causal, full])
    assert answer.flops[1] == 2 * answer.flops[0] and answer.seconds[1] > 1.5 * answer.seconds[0]


def test_attention_backward_has_two_and_a_half_times_the_flops_and_more_than_twice_the_time() -> None:
    forward = Kernel(FLASH % "true", (32, 4, 32), (128, 1, 1))
    backward = Kernel(FLASH_BACKWARD, (64, 4, 32), (256, 1, 1))
    answer = Estimator(load("dgx-a100")).estimate([forward, backward])
    assert answer.flops[1] == 2.5 * answer.flops[0]
    assert 2 < answer.seconds[1] / answer.seconds[0] < 4
    assert list(answer.provenance) == [Provenance.LEARNED, Provenance.ROOFLINE]


def test_attention_helpers_are_charged_by_bytes_without_flops() -> None:
    shape = (2, 1024, 16, 128)
    operator = Operator("aten::_flash_attention_backward", (shape,) * 5)
    name = "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64> >()"
    answer = Estimator(load("dgx-a100")).estimate([Kernel(name, (8, 2, 16), (256, 1, 1), operator=operator)])
    assert answer.flops[0] == 0
    assert answer.seconds[0] < 50e-6


@settings(max_examples=50)
@given(st.integers(1, 1 << 34), st.integers(2, 16))
def test_memory_time_grows_with_bytes(size: int, more: int) -> None:
    for cluster in ("dgx-v100", "dgx-b200"):
        operations = [
            kernel(ADD, bytes=size),
            kernel(ADD, bytes=size * more),
            Memset(size),
            Memset(size * more),
        ]
        seconds = Estimator(load(cluster)).estimate(operations).seconds
        assert 0 < seconds[0] < seconds[1]
        assert 0 < seconds[2] < seconds[3]


def test_pageable_copies_are_slower_than_pinned() -> None:
    copies = [Memcpy("h2d", 1 << 28), Memcpy("h2d", 1 << 28, pinned=False), Memcpy("d2d", 1 << 28)]
    pinned, pageable, inside = Estimator(load("dgx-h100")).estimate(copies).seconds
    assert inside < pinned < pageable


def test_causal_softmax_reads_the_triangle_that_its_arguments_do_not_show() -> None:
    scores = (32, 1024, 1024)
    name = "scaled_upper_triang_masked_softmax_forward"
    traffic = kernels.traffic(kernel(name, sizes=(scores, ()), bytes=4 * 32 * 1024**2))
    assert traffic == kernels.Traffic(1.5 * 2 * 32 * 1024**2, "softmax_once")


def test_a_gather_of_single_elements_does_not_read_whole_rows() -> None:
    name = "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<float>(long)>"
    traffic = kernels.traffic(kernel(name, sizes=((2048, 50304), (2048,)), elements=2048))
    assert traffic is not None
    assert traffic.bytes == 2048 * (2 * 4 + 8)


STRIDED = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
)
STRIDED_COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}> >(int)"
)


def seconds_on(cluster: str, *kernels_: Kernel) -> list[float]:
    return list(map(float, Estimator(load(cluster)).estimate(kernels_).seconds))


def test_a_broadcast_operand_is_read_as_often_as_it_has_elements() -> None:
    rows = kernel(STRIDED, elements=4096 * 1024, sizes=((4096, 1024), (4096, 1)))
    traffic = kernels.traffic(rows)
    assert traffic is not None
    assert traffic.bytes == (4096 * 1024 + 4096 + 4096 * 1024) * 4
    assert traffic.variant == "strided_2"


def test_a_strided_copy_does_not_read_where_it_writes() -> None:
    assert moved(STRIDED_COPY, elements=1000, sizes=((1000,), (1000,), ())) == 2 * 1000 * 2


def test_one_launch_of_a_broadcast_over_two_gigabytes_is_charged_its_part() -> None:
    assert moved(STRIDED, elements=1 << 29, sizes=((8192, 1 << 17), (8192, 1))) == (2 * (1 << 29) + 8192) * 4


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
def test_finding_elements_by_their_strides_costs_more_than_walking_in_a_line(cluster: str) -> None:
    strided = STRIDED.replace("float", "c10::BFloat16").replace("<128, 2", "<128, 4")
    walked = kernel(ADD, elements=1 << 26)
    found = kernel(strided, elements=1 << 26, sizes=((1 << 13, 1 << 13), (1 << 13, 1 << 13)))
    fast, slow = seconds_on(cluster, walked, found)
    assert fast < slow < 2 * fast


def test_a_strided_kernel_gains_nothing_from_faster_memory() -> None:
    cluster = load("dgx-a100")
    device = cluster.device.model_copy(update={"memory_bandwidth": 2 * cluster.device.memory_bandwidth})
    faster = cluster.model_copy(update={"device": device})
    rows = kernel(STRIDED, elements=1 << 26, sizes=((1 << 13, 1 << 13), (1 << 13, 1)))
    for of in (cluster, faster):
        assert Estimator(of).estimate([rows]).seconds[0] == pytest.approx(seconds_on("dgx-a100", rows)[0])


@pytest.mark.parametrize(
    ("name", "short", "long", "threads", "passes"),
    [
        (NORM, 256, 32768, 128, 3 / 2),
        (NORM_BACKWARD, 256, 32768, 128, 5 / 3),
        (SOFTMAX, 2048, 131072, 1024, 4 / 2),
    ],
)
def test_long_rows_are_read_anew_by_each_pass(
    name: str, short: int, long: int, threads: int, passes: float
) -> None:
    def of(columns: int) -> Kernel:
        rows = (1 << 28) // columns
        return Kernel(name, (rows, 1, 1), (threads, 1, 1), operator=Operator("aten::op", ((rows, columns),)))

    held, spilled = seconds_on("dgx-a100", of(short), of(long))
    assert held < spilled < 1.05 * passes * held
    assert spilled > 0.85 * passes * held


def test_a_loss_summed_by_one_block_waits_for_its_rows() -> None:
    name = (
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>()"
    )

    def of(rows: int) -> Kernel:
        return Kernel(
            name, (1, 1, 1), (1024, 1, 1), operator=Operator("aten::nll_loss", ((rows, 9), (rows,)))
        )

    few, many = seconds_on("dgx-a100", of(1024), of(65536))
    assert many - few == pytest.approx(63 * 1.1e-6)


def test_concatenation_moves_all_its_inputs() -> None:
    name = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>()"
    traffic = kernels.traffic(
        kernel(name.replace("OpaqueType<2u>", "Half"), sizes=((8, 64), (8, 64), (8, 128), ()))
    )
    assert traffic is not None
    assert traffic.bytes == 2 * 8 * 256 * 2
    assert traffic.elements == 8 * 256


def test_transformer_engines_last_sums_are_no_pass_over_the_activations() -> None:
    name = "void transformer_engine::normalization::ln_bwd_finalize_general_kernel<float>()"
    assert moved(name, sizes=((4096, 1024),)) == 0
