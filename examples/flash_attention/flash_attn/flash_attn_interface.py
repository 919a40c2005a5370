"""The functions of flash_attn.flash_attn_interface that training calls, with its names, arguments and results.

q, k, v and outputs are [batch, seq, heads, channels], or [tokens, heads, channels] where `cu_seqlens` cut them.
"""

from typing import Any

import torch

_forward = torch.ops.aten._flash_attention_forward
_backward = torch.ops.aten._flash_attention_backward
Tensor = torch.Tensor


def _lacking(**arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value]
    if given:
        raise NotImplementedError(f"PyTorch's FlashAttention-2 kernels have no {', '.join(given)}")


def _flash_attn_forward(
    q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1,
    softcap=0.0, alibi_slopes=None, return_softmax=False,
):  # fmt: skip
    return _flash_attn_varlen_forward(
        q, k, v, None, None, q.size(1), k.size(1), dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, return_softmax,
    )  # fmt: skip


def _flash_attn_varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
    block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False,
):  # fmt: skip
    """Returns the output, its log-sum-exp, the dropout mask where asked for, and the random state that drew it."""
    _lacking(softcap=softcap, alibi_slopes=alibi_slopes is not None, block_table=block_table is not None)
    _lacking(leftpad_k=leftpad_k is not None, seqused_k=seqused_k is not None)
    out, lse, rng_state, _, mask = _forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, causal,
        return_softmax and dropout_p > 0, scale=softmax_scale,
        window_size_left=window_size_left, window_size_right=window_size_right,
    )  # fmt: skip
    return out, lse, mask, rng_state


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None,
):  # fmt: skip
    return _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, None, None, q.size(1), k.size(1), dropout_p, softmax_scale,
        causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state,
    )  # fmt: skip


def _flash_attn_varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
    deterministic=False, rng_state=None, zero_tensors=False,
):  # fmt: skip
    """Leaves the gradients in `dq`, `dk` and `dv`.

    PyTorch's kernels repeat where `torch.use_deterministic_algorithms` says so, which `deterministic` cannot.
    """
    _lacking(softcap=softcap, alibi_slopes=alibi_slopes is not None)
    gradients = _gradients(
        dout, q, k, v, out, softmax_lse, (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), dropout_p, causal,
        rng_state, softmax_scale, window_size_left, window_size_right,
    )  # fmt: skip
    # PyTorch's return new tensors, flash-attn's write into these: the memory changes hands, no copy.
    for given, gradient in zip((dq, dk, dv), gradients, strict=True):
        given.set_(gradient)


def _gradients(
    dout, q, k, v, out, lse, lengths, dropout_p, causal, rng_state, softmax_scale, window_size_left, window_size_right
):  # fmt: skip
    return _backward(
        dout, q, k, v, out, lse, *lengths, dropout_p, causal, rng_state, _no_tensor(q), scale=softmax_scale,
        window_size_left=window_size_left, window_size_right=window_size_right,
    )  # fmt: skip


_NO_TENSOR: dict[torch.device, Tensor] = {}


def _no_tensor(like: Tensor) -> Tensor:
    """The argument that PyTorch's operator takes and does not read, allocated once."""
    return _NO_TENSOR.setdefault(like.device, like.new_empty(0))


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, options):
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out, lse, _, rng_state = _flash_attn_varlen_forward(q, k, v, *lengths, **options)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.lengths, ctx.options = lengths, options
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse, rng_state = ctx.saved_tensors
        gradients = _gradients(dout, q, k, v, out, lse, ctx.lengths, rng_state=rng_state, **ctx.options)
        return *gradients, *(None,) * 5


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    return flash_attn_varlen_func(
        q, k, v, None, None, q.size(1), k.size(1), dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
    causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False, block_table=None,
):  # fmt: skip
    _lacking(return_attn_probs=return_attn_probs, block_table=block_table is not None)
    _lacking(softcap=softcap, alibi_slopes=alibi_slopes is not None)
    options = {
        "dropout_p": dropout_p, "softmax_scale": softmax_scale, "causal": causal,
        "window_size_left": window_size[0], "window_size_right": window_size[1],
    }  # fmt: skip
    return _FlashAttention.apply(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, options)


def flash_attn_with_kvcache(*_: object, **__: object) -> None:
    _lacking(kv_cache=True)
