"""Stand-ins for the kernels of NVIDIA Apex, so that the example runs without it as Megatron-LM runs with it.

`provide_fused_kernels` gives megatron.core those that are not installed; they have Apex's names and signatures and
move the same bytes.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import megatron.core.optimizer as optimizers
import torch
import triton
import triton.language as tl
from megatron.core.jit import jit_fuser
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.optimizer import clip_grads, optimizer
from megatron.core.tensor_parallel import layers
from megatron.core.transformer.moe import moe_utils


@triton.jit
def scaled_upper_triang_masked_softmax_forward(output, scores, scale, length, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)  # of all rows of all batches and heads
    columns = tl.arange(0, BLOCK)
    visible = columns <= row % length
    x = tl.load(scores + row * length + columns, mask=visible, other=-float("inf")).to(tl.float32) * scale
    e = tl.exp(x - tl.max(x, axis=0))
    probabilities = e / tl.sum(e, axis=0)
    tl.store(output + row * length + columns, probabilities, mask=columns < length)


@triton.jit
def scaled_upper_triang_masked_softmax_backward(
    output, gradients, probabilities, scale, length, BLOCK: tl.constexpr  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    visible = columns <= row % length
    g = tl.load(gradients + row * length + columns, mask=visible, other=0.0).to(tl.float32)
    p = tl.load(probabilities + row * length + columns, mask=visible, other=0.0).to(tl.float32)
    tl.store(output + row * length + columns, scale * p * (g - tl.sum(g * p, axis=0)), mask=columns < length)


def _rows(scores: torch.Tensor) -> dict[str, Any]:
    """Launch options of one program a row; `scores` [batches, queries, keys]."""
    length = scores.size(-1)
    return {"BLOCK": triton.next_power_of_2(length), "num_warps": 4 if length <= 2048 else 8}


def softmax_forward(scores: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(scores)
    grid = (scores.numel() // scores.size(-1),)
    kernel = scaled_upper_triang_masked_softmax_forward[grid]
    kernel(output, scores, scale.item(), scores.size(-1), **_rows(scores))
    return output


def softmax_backward(
    gradients: torch.Tensor, probabilities: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    gradients = gradients.contiguous()
    grid = (gradients.numel() // gradients.size(-1),)
    kernel = scaled_upper_triang_masked_softmax_backward[grid]
    # As Apex does: the result takes the place of the incoming gradient.
    kernel(gradients, gradients, probabilities, scale.item(), gradients.size(-1), **_rows(gradients))
    return gradients


def accumulate_weight_gradient_fp32(x: torch.Tensor, gradient: torch.Tensor, main: torch.Tensor) -> None:
    """`main` (fp32) += gradient^T x, in one matrix product; [tokens, in], [tokens, out], [out, in]."""
    torch.addmm(main, gradient.t(), x, out_dtype=torch.float32, out=main)


def accumulate_weight_gradient_fp16(x: torch.Tensor, gradient: torch.Tensor, main: torch.Tensor) -> None:
    main.addmm_(gradient.t(), x)


def l2_norm(
    chunk: int, noop: torch.Tensor, lists: list[list[torch.Tensor]], per_tensor: bool = False
) -> tuple[torch.Tensor, None]:
    """amp_C.multi_tensor_l2norm: one norm over all tensors of a list."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(lists[0]))).reshape(1), None


def scale_tensors(chunk: int, noop: torch.Tensor, lists: list[list[torch.Tensor]], scale: float) -> None:
    """amp_C.multi_tensor_scale: lists[1] = scale * lists[0]."""
    source, target = lists
    if source is not target:
        torch._foreach_copy_(target, source)
    if scale != 1.0:
        torch._foreach_mul_(target, scale)


class FusedAdam(torch.optim.AdamW):
    """Apex's FusedAdam: one kernel reads and writes parameters and moments; AdamW's rule only."""

    def __init__(self, params: Any, adam_w_mode: bool = True, **options: Any) -> None:
        super().__init__(params, fused=True, **options)


def provide_fused_kernels() -> None:
    """To be called before the model is built."""
    _provide("scaled_upper_triang_masked_softmax_cuda", forward=softmax_forward, backward=softmax_backward)
    # Megatron asks this one only how many batches a block takes; here a program takes a row.
    _provide("scaled_masked_softmax_cuda", get_batch_per_block=lambda sq, sk, b, heads: 1)
    if not layers._grad_accum_fusion_available:
        layers._grad_accum_fusion_available = True
        _provide(
            "fused_weight_gradient_mlp_cuda",
            wgrad_gemm_accum_fp32=accumulate_weight_gradient_fp32,
            wgrad_gemm_accum_fp16=accumulate_weight_gradient_fp16,
        )
        layers.fused_weight_gradient_mlp_cuda = sys.modules["fused_weight_gradient_mlp_cuda"]
    if optimizers.USING_PYTORCH_OPTIMIZER:
        optimizers.Adam, optimizers.USING_PYTORCH_OPTIMIZER = FusedAdam, False
        clip_grads.l2_norm_impl = l2_norm
        clip_grads.multi_tensor_scale_impl = optimizer.multi_tensor_scale_impl = scale_tensors
    if not hasattr(moe_utils, "te_general_gemm"):  # the router asks for it, Transformer Engine or not
        moe_utils.te_general_gemm = None


def _provide(name: str, **members: Any) -> None:
    """Registers a module that megatron.core imports only when it calls it."""
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        module = ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module


def fuse_rotary_embedding() -> None:
    """Compiles megatron.core's rotary embedding into one kernel, as Transformer Engine's and Apex' is."""
    rope_utils._apply_rotary_pos_emb_bshd = jit_fuser(rope_utils._apply_rotary_pos_emb_bshd)
