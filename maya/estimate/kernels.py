"""What a kernel does, read from its demangled name: a family, and how many bytes it moves.

The emulator's own byte count comes first; then operands (from the name) times elements; then the tensors of
the operator it was launched in. Names are those of PyTorch's ATen (at::native), Triton via Inductor, Apex and
Transformer Engine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from maya.trace.types import Kernel, Work

# The first of these in a name is the type of its operands.
_ITEM = re.compile(
    r"(?P<two>BFloat16|bfloat16|Half\b|__half|half_t|fp16|bf16|short|OpaqueType<2u>)"
    r"|(?P<eight>double|\blong\b|int64|complex<float>|OpaqueType<8u>)"
    r"|(?P<one>\bbool\b|unsigned char|signed char|Float8|fp8|int8|OpaqueType<1u>)"
    r"|(?P<four>float|\bint\b|unsigned int|fp32|OpaqueType<4u>)"
)
_ITEM_BYTES = {"two": 2, "eight": 8, "one": 1, "four": 4}
_OPERANDS = re.compile(r"(?:std::array|at::detail::Array)<char\s?\*, (\d+)")
_FOREACH = re.compile(r"Functor<[^<>]*?, (\d+), (\d+), (\d+)>")
_TENSOR_LISTS = re.compile(
    r"(?:TensorListMetadata|TensorListScalarListMetadata<[^>]*?|FusedOptimizerTensorListMetadata)<?,? ?(\d+)"
)
# fp32 to a 16-bit type: the name has the destination's type only.
_NARROWING = re.compile(r"(?:bfloat16|float16|half)_copy_kernel_cuda\(.*?lambda\(float\)")
# element-wise with a calculator of offsets, and how many elements a thread takes at a time
_STRIDED = re.compile(r"(?<!\w)elementwise_kernel<\d+, (\d+)")
_ADDRESSED_BYTES = 2**31  # that a launch of a TensorIterator kernel reaches: larger operands take several
_TRANSCENDENTAL = re.compile(r"gelu_backward|gelu")  # what its functions cost counts more than its bytes
_GATHER = re.compile(r"indexSelect|vectorized_gather|index_elementwise|embedding_(?:forward|kernel)")
_OUTPUTS = re.compile(r"reduce_kernel<\d+, [24],")
# Where blocks that share an output meet, one after the other, in waits of memory.WAIT_S: by the sums over rows of
# scripts/measure/operations.py on an H200 (scripts/fit/measured).
_MEETING_WAITS, _WAITS_A_BLOCK = 6.8, 0.065
# Where ranks that read each other's memory meet (torch/csrc/distributed/c10d/symm_mem).
_MEETING = re.compile(r"symmetric_memory::(?:barrier|put_signal|wait_signal)_kernel")
# Matrix products of libraries that make their own; PyTorch's own name for them is mm. What tells a grouped one where
# its groups lie makes none.
_PRODUCT = re.compile(
    r"(?<!prepare_grouped_)gemm|(?<![a-z])w?mma(?![a-z])|(?<![a-z])mm_kernel|marlin", re.IGNORECASE
)
# Named by the emulator, which knows what they move; how well they do it was measured nowhere.
_UNMEASURED = re.compile(
    r"cufft_|cusparse_|cudnn::(?:ops::bias_reduction|\w+_elementWise|ctc_loss|spatial_transformer)"
)
_STEPS = re.compile(r"cudnn::ctc_loss_steps_(\d+)")  # of time, each from what the one before left
# FSDP packs gradients that are reduced as they are: bare bytes, as many a thread (ATen/native/cuda/TensorShape.cu).
_PACKED, _PACKED_BYTES = "chunk_cat_cuda_kernel<char, char>", 16
_MOST_PER_THREAD = 64  # elements; a small helper kernel of an operator does not walk its tensors
_CHUNK_ELEMENTS = 65536  # of multi_tensor_apply (ATen/native/cuda/MultiTensorApply.cuh, kChunkSize)


@dataclass(frozen=True)
class Traffic:
    """What a kernel moves, how, and the fit of the memory family that suits it."""

    bytes: float
    variant: str = "elementwise"
    guessed: bool = False
    again: float = 0.0  # bytes that are read once more where the rows in flight do not stay in L1
    in_flight: float = 0.0  # bytes of the rows that one multiprocessor works on at a time
    elements: float = 0.0  # of which each costs a multiprocessor time; 0: only their bytes count
    waits: float = 0.0  # reads that wait for one another
    clocks: float = 0.0  # that it is told to wait
    rows: float = 0.0  # each a block's work, with a cost of its own
    passes: float = 0.0  # of a block over the rows that it adds up, one after the other
    blocks: float = 0.0  # that share the work; 0: more than the device has multiprocessors
    work: Work | None = None  # its instructions', where they could be read


@dataclass(frozen=True)
class Family:
    """Kernels whose name matches; `reads` + `writes` operands of the operator's largest tensor."""

    pattern: re.Pattern[str]
    operands: float
    variant: str = "elementwise"
    item: int | None = None  # bytes of an element, where the name does not say
    partial: bool = False  # walks parts of its tensors: the bytes behind its arguments are too many
    again: float = 0.0  # operands that later passes over a row read once more
    kept: float = 0.0  # operands of which a row in flight has to stay in L1 for that to be cheap
    resident: int = 0  # threads that a multiprocessor holds at a time
    one_block: bool = False  # walks all rows, a row a thread at a time
    walked: bool = False  # what a multiprocessor does with each element counts
    by_row: bool = False  # and with each row besides
    by_channel: bool = False  # each block has a channel of the operator's tensor
    adds_rows: bool = False  # each block adds up some columns of all rows
    masked: bool = False  # writes a mask of a byte an element
    by_thread: bool = False  # as many elements as the launch has threads, times _CUB_PER_THREAD


def _family(pattern: str, operands: float, variant: str = "elementwise", **known: Any) -> Family:
    return Family(re.compile(pattern), operands, variant, **known)


_CUB_PER_THREAD = 16  # items (cub's default policies: 7 to 23)
_NORM_THREADS = 1536  # 40 registers a thread
_FULL_THREADS = 2048
_NORM = {"again": 1, "kept": 1, "resident": _NORM_THREADS, "walked": True, "by_row": True}


# Passes over the largest tensor: what each algorithm must read and write once.
FAMILIES = (
    # Apex' causal softmax reads the lower triangle and writes the whole square.
    _family(r"scaled_upper_triang_masked_softmax\w*backward", 2, "softmax_once", item=2, partial=True),
    _family(r"scaled_upper_triang_masked_softmax", 1.5, "softmax_once", item=2, partial=True),
    # Transformer Engine's keep their rows in registers.
    _family(r"(ln|rmsnorm)_bwd_finalize", 0),  # sums what a few blocks have left
    _family(r"(ln|rmsnorm)_bwd", 3, "softmax_once"),
    _family(r"(ln|rmsnorm)_fwd", 2, "softmax_once"),
    _family(r"GammaBetaBackwardCUDAKernelTemplate", 2, "norm_weights", adds_rows=True),
    _family(r"GammaBeta|gamma_beta|cuComputePartGradGammaBeta|cuComputeGradGammaBeta", 2, "layer_norm"),
    _family(
        r"(layer_norm|LayerNorm|rms_?norm|RMSNorm).*(grad|Grad|backward|bwd)|cuComputeGradInput",
        3,
        "layer_norm",
        again=2,
        kept=2,
        resident=_NORM_THREADS,
    ),
    _family(r"RowwiseMoments", 1, "layer_norm"),
    _family(r"LayerNormForward", 2, "layer_norm"),  # its moments are there
    _family(r"vectorized_layer_norm_kernel<.*true>", 2, "rms_norm", **_NORM),
    _family(r"vectorized_layer_norm_kernel", 2, "welford_norm", **_NORM),
    _family(
        r"layer_norm|LayerNorm|rms_?norm|RMSNorm|cuApplyLayerNorm",
        2,
        "layer_norm",
        again=1,
        kept=1,
        resident=_NORM_THREADS,
    ),
    _family(r"batch_norm_transform\w*_channels_last", 2, "channels_last", walked=True),
    _family(r"batch_norm_backward_reduce\w*_channels_last", 2, "channels_last", walked=True),
    _family(r"batch_norm_backward_elemt\w*_channels_last", 3, "channels_last", walked=True),
    _family(r"batch_norm_collect_statistics", 1, "channel_statistics", walked=True, by_channel=True),
    _family(r"batch_norm_backward_kernel|bn_bw", 4, "channel_backward", walked=True, by_channel=True),
    _family(r"bn_fw_tr", 3, "channel_statistics", walked=True, by_channel=True),
    _family(r"batch_norm_backward|batchnorm_bwd", 5),
    _family(r"batch_norm|batchnorm|bn_fw", 3),
    _family(r"softmax_warp_backward|SoftMaxBackwardSmem", 3, "softmax_once"),
    _family(r"softmax_warp|SoftMaxForward(Smem|Reg)", 2, "softmax_once"),
    # Reads two operands again, and finds half of that in L2.
    _family(r"[Ss]oft_?[Mm]ax_?[Bb]ackward", 3, "softmax", again=1, kept=2, resident=_FULL_THREADS),
    _family(r"[Ss]oft_?[Mm]ax", 2, "softmax", again=2, kept=1, resident=_FULL_THREADS),
    # Reads one element a row (ATen/native/cuda/NLLLoss.cu).
    _family(r"nll_loss_(forward|backward)_reduce", 0, one_block=True),
    _family(r"nll_loss|cross_entropy", 1),
    # One value a block or thread.
    _family(
        r"\bcleanup\b|lp(norm|max)_cleanup|extract_seed_and_offset|amax_and_scale_update|prepare_grouped_gemm_data",
        0,
    ),
    _family(r"fused_dropout", 2, "dropout", walked=True, masked=True),
    _family(r"masked_scale", 2.5),
    _family(r"compute_grad_weight|sum_and_scatter", 1.5, "added_rows", walked=True),
    _family(r"embedding_backward|EmbeddingBackward", 1.5),
    _family(r"CatArrayBatchedCopy_", 2),
    _family(r"CatArrayBatchedCopy", 2, "concatenation", walked=True),
    _family(r"reduce_kernel|norm_kernel", 1),
    # Of cub a thread's share is told by the launch alone: its operator's tensors are others.
    _family(r"cub::.*(Onesweep|UniqueByKeySweep)", 4, by_thread=True),
    _family(r"cub::", 2, by_thread=True),
    _family(r"scan|cumsum", 2),
    _family(r"radix|sort|Sort|topk|TopK", 6),
    _family(r"thrust::", 4),
    _family(r"triu_tril", 2),
    _family(r"scatter|gather|index|take", 3),
    _family(r"max_pool_backward", 2, "pool_backward", walked=True),
    _family(r"max_pool_forward", 2, "pool", walked=True),
    _family(r"pool", 2),
    _family(r"upsample|roll|flip|transpose", 2),
    _family(r"normal_and_transform|normal_distribution", 1, "normal", walked=True),
    _family(r"distribution|random|bernoulli|normal_|uniform", 1),
    _family(r"fill|Fill|arange|range_kernel|zero", 1),
    _family(r"copy|Copy|cast", 2),
)


@lru_cache(maxsize=4096)
def _matching(name: str) -> Family | None:
    return next((family for family in FAMILIES if family.pattern.search(name)), None)


def traffic(kernel: Kernel) -> Traffic | None:
    """The bytes that kernel moves and what its instructions do, or None when nothing about it tells."""
    moved = _moved(kernel)
    return moved if moved is None or kernel.work is None else replace(moved, work=kernel.work)


def _moved(kernel: Kernel) -> Traffic | None:
    if "symmetric_memory::" in kernel.name:  # a write to each peer and a read of what it wrote
        return Traffic(0.0, guessed=True, waits=2) if is_meeting(kernel) else None
    if "at::cuda" in kernel.name and "spin_kernel" in kernel.name and kernel.elements is not None:
        return Traffic(0.0, clocks=kernel.elements)
    if found := _STRIDED.search(kernel.name):
        return _strided(kernel, int(found[1]))
    if _PACKED in kernel.name:
        return Traffic(2.0 * _PACKED_BYTES * math.prod(kernel.grid) * math.prod(kernel.block))
    family = _matching(kernel.name)
    variant = family.variant if family else "elementwise"
    operands = _operands(kernel)
    item = item_bytes(kernel.name)
    if operands is not None and kernel.elements is not None and _converts(kernel.name, item):
        bytes_moved = (4 * operands - 2) * kernel.elements
        if "unrolled_elementwise" in kernel.name:  # looks the type of each element up
            return Traffic(bytes_moved, "unrolled", elements=kernel.elements)
        return Traffic(bytes_moved, variant)
    if kernel.bytes is not None and not (family is not None and family.partial):
        if worked := _worked(kernel, float(kernel.bytes)):
            return worked
        if family is not None and family.by_channel:
            return replace(_passes(kernel, family, item), bytes=float(kernel.bytes))
        steps = _STEPS.match(kernel.name)
        guessed = _UNMEASURED.match(kernel.name) is not None
        return Traffic(float(kernel.bytes), variant, guessed, waits=float(steps[1]) if steps else 0.0)
    if "multi_tensor_apply" in kernel.name:
        return _multi_tensor(kernel)
    if "index_elementwise" in kernel.name and kernel.elements is not None:
        return Traffic(kernel.elements * (2.0 * row_item_bytes(kernel.name) + 8), variant)
    if _GATHER.search(kernel.name):
        return _gather(kernel)
    if operands is not None:
        elements = _elements(kernel)
        return Traffic(elements[0] * operands * item, variant, guessed=elements[1])
    if kernel.name.startswith("triton_"):  # Inductor's names
        return _triton(kernel)
    if family is not None:
        return _passes(kernel, family, family.item or item)
    if kernel.operator.sizes:
        total = sum(_numel(size) for size in kernel.operator.sizes) + _largest(kernel)
        threads = math.prod(kernel.grid) * math.prod(kernel.block)
        return Traffic(float(min(total, threads * _MOST_PER_THREAD) * item), guessed=True)
    return None


def _worked(kernel: Kernel, moved: float) -> Traffic | None:
    """Of a kernel whose arithmetic may take longer than the bytes it moves: the variant that costs its elements."""
    if found := _TRANSCENDENTAL.search(kernel.operator.name):
        return Traffic(moved, found[0], elements=float(kernel.elements or 0))
    return None


def is_product(kernel: Kernel) -> bool:
    """Whether a kernel multiplies matrices: their sizes are not in its name, and its bytes tell too little."""
    return _PRODUCT.search(kernel.name) is not None


def is_meeting(kernel: Kernel) -> bool:
    return _MEETING.search(kernel.name) is not None


def meeting_note(met: bool) -> tuple[str, ...]:
    """Says what is left out of barriers between ranks; nothing where ranks have not met."""
    if not met:
        return ()
    return (
        "symmetric memory: ranks are not made to wait for each other at its barriers and signals, which take as long "
        "as when all come at once; copies between devices have their links to themselves",
    )


def _strided(kernel: Kernel, per_thread: int) -> Traffic:
    """An element-wise kernel on tensors that are broadcast or not contiguous: it works out where each element lies.

    A thread has as many elements on their way at a time as the kernel's name says.
    """
    elements, guessed = _elements(kernel)
    item = item_bytes(kernel.name)
    tensors = [min(float(count), elements) for count in map(_numel, kernel.operator.sizes) if count]
    read = sum(tensors) if tensors and "copy" not in kernel.name else elements
    moved = (read + elements) * item if kernel.bytes is None else float(kernel.bytes)
    return Traffic(moved, f"strided_{per_thread}", guessed, elements=elements * max(item / 4, 1.0))


def _passes(kernel: Kernel, family: Family, item: int) -> Traffic:
    elements, guessed = _elements(kernel)
    threads = math.prod(kernel.block)
    if family.by_thread:
        elements, guessed = float(math.prod(kernel.grid) * threads * _CUB_PER_THREAD), True
    operand = elements * item
    mask = elements if family.masked else 0.0
    row = max((size for size in kernel.operator.sizes if size), key=math.prod, default=(0,))[-1]
    rows = elements / row if row else 0.0
    return Traffic(
        operand * family.operands + mask,
        family.variant,
        guessed,
        again=operand * family.again,
        in_flight=row * item * family.kept * (family.resident // threads),
        elements=elements if family.walked else 0.0,
        waits=_waits(kernel, family),
        rows=rows if family.by_row else 0.0,
        passes=rows / kernel.block[1] / kernel.grid[1] if family.adds_rows else 0.0,
        blocks=float(kernel.grid[0] * kernel.grid[1]) if family.adds_rows or family.by_channel else 0.0,
    )


def _waits(kernel: Kernel, family: Family) -> float:
    if family.one_block:
        return _rows(kernel) / math.prod(kernel.block)
    # A reduction adds up rows where a thread has several neighbouring outputs (ATen's Reduce.cuh).
    shared = kernel.grid[1]
    return _MEETING_WAITS + _WAITS_A_BLOCK * shared if shared > 1 and _OUTPUTS.search(kernel.name) else 0.0


def _rows(kernel: Kernel) -> int:
    """The length of the operator's longest vector: a loss' targets."""
    return max((_numel(size) for size in kernel.operator.sizes if len(size) == 1), default=0)


@lru_cache(maxsize=4096)
def item_bytes(name: str) -> int:
    """Bytes of one element, by the first type in the name; 4 (ATen's accumulation type) when none is there."""
    found = _ITEM.search(name)
    return 4 if found is None or found.lastgroup is None else _ITEM_BYTES[found.lastgroup]


@lru_cache(maxsize=4096)
def row_item_bytes(name: str) -> int:
    """Bytes of an element of what a kernel gathers; the type of its index is not that."""
    return item_bytes(name.replace("long", "").replace("int64", ""))


def _converts(name: str, item: int) -> bool:
    """Whether one operand has 16 bits and the others 32: LoadWithCast takes its types at run time, and what
    trains in mixed precision converts between these two."""
    return _NARROWING.search(name) is not None or (item == 4 and "LoadWithCast" in name)


def _operands(kernel: Kernel) -> float | None:
    """Tensors that an element-wise kernel walks: it names the length of its pointer array."""
    found = _OPERANDS.search(kernel.name)
    if found is None:
        return None
    return float(found[1])


def _numel(size: tuple[int, ...]) -> int:
    return math.prod(size) if size else 0


def _largest(kernel: Kernel) -> int:
    return max((_numel(size) for size in kernel.operator.sizes), default=0)


def _elements(kernel: Kernel) -> tuple[float, bool]:
    """(elements, whether that is a guess): recorded, else the operator's largest tensor, else the grid."""
    if kernel.elements is not None:
        return float(kernel.elements), False
    threads = math.prod(kernel.grid) * math.prod(kernel.block)
    largest = _largest(kernel)
    # A small helper does not walk its operator's tensors; a kernel that strides over its grid does.
    if "elementwise" in kernel.name and "grid_stride" not in kernel.name:
        largest = min(largest, threads * _MOST_PER_THREAD)
    if "CatArray" in kernel.name:
        return float(sum(map(_numel, kernel.operator.sizes))), False
    if largest > 0:
        while "reduce_kernel" in kernel.name and largest * item_bytes(kernel.name) > _ADDRESSED_BYTES:
            largest = (largest + 1) // 2
        return float(largest), False
    return 4.0 * threads, True  # ATen's element-wise kernels give a thread 4 elements (thread_work_size)


def _multi_tensor(kernel: Kernel) -> Traffic:
    """A block takes a chunk of up to 65,536 elements of each of its tensor lists.

    An operator's lists may take several launches; each gets its blocks' share of the operator's elements.
    """
    elements, guessed = _chunked_elements(kernel)
    functor = _FOREACH.search(kernel.name)
    if "Adam" in kernel.name:
        operands = 7.0  # reads parameter, gradient and both moments, writes all but the gradient
    elif "LpNorm" in kernel.name or "L2Norm" in kernel.name or "LpMax" in kernel.name:
        operands = 1.0
    elif "addcmul" in kernel.operator.name:  # Adam's: both factors are the gradient
        operands = 3.0
    elif functor is not None:
        operands = float(functor[2]) + 1  # <depth, arguments read, index of the result>
    else:
        lists = _TENSOR_LISTS.search(kernel.name)
        operands = max(float(lists[1]), 2.0) if lists else 2.0
    return Traffic(elements * operands * item_bytes(kernel.name), "multi_tensor", guessed=guessed)


def _chunked_elements(kernel: Kernel) -> tuple[float, bool]:
    if kernel.elements is not None:
        return float(kernel.elements), False
    blocks = float(kernel.grid[0])
    tensors = [count for count in map(_numel, kernel.operator.sizes) if count]
    chunks = sum(math.ceil(count / _CHUNK_ELEMENTS) for count in tensors)
    if chunks == 0:
        return blocks * _CHUNK_ELEMENTS, True
    return blocks * sum(tensors) / chunks, False


def _gather(kernel: Kernel) -> Traffic | None:
    """Rows of a table are read and written once; the index names how many."""
    sizes = [size for size in kernel.operator.sizes if _numel(size)]
    item = row_item_bytes(kernel.name)
    if len(sizes) < 2:
        elements = _elements(kernel)
        return Traffic(2 * elements[0] * item, guessed=True)
    table, index = sizes[0], sizes[1]
    whole = len(index) == len(table) and index[-1] == table[-1]  # aten::gather: an index for each element
    elements_read = _numel(index) if whole or len(table) < 2 else _numel(index) * table[-1]
    return Traffic(2.0 * elements_read * item)


def _triton(kernel: Kernel) -> Traffic:
    """Inductor fuses a chain of operators; without recorded bytes, three operands are assumed."""
    elements = _elements(kernel)
    return Traffic(elements[0] * 3 * 2, guessed=True)
