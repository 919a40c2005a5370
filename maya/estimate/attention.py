"""Fused attention: the kernel's name and grid tell what it computes; rates are fitted on measured prefills.

Forward 4 b h s_q s_k d multiply-adds' flops, halved when causal; backward 2.5 times that (five products for
two; FlashAttention-2, Dao 2023, section 3.1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maya.clusters import Device
from maya.estimate import packed
from maya.estimate.fits import fit_for
from maya.estimate.types import Provenance
from maya.trace.types import Kernel

_FLASH = re.compile(
    r"flash_(?P<pass>fwd|bwd)_(?:splitkv_|dq_dk_dv_loop_)?(?:seqk_parallel_)?kernel<.*?"
    r"kernel_traits<(?P<head>\d+), (?P<block_m>\d+), (?P<block_n>\d+).*>, (?P<flags>(?:true|false)[^>]*)>"
)
_EFFICIENT = re.compile(r"fmha_cutlass(?P<pass>[FB])_\w*?aligned_(?P<queries>\d+)x(?P<keys>\d+)_")
_FUSED = re.compile(
    r"cudnn\w*_sdpa_\w*?(?P<pass>fprop|bprop)|fmha_v\d_flash_attention\w*|flash_attn|FlashAttn"
)
_AUXILIARY = re.compile(r"flash_bwd_(?:dot_do_o|convert_d)|flash_fwd_splitkv_combine|compute_delta")
# Of the memory-efficient kernels in fp32, over the same share of the vector units' rate: one shape on an H200, forward
# and backward (gpt_124m_fp32 of scripts/measure).
_FP32_TIMES = 0.24


@dataclass(frozen=True)
class Attention:
    """One fused pass. `queries`, `keys` in tokens; `heads` counts query heads. Of packed sequences these are means, and
    `pairs` of a query and a key of all of them are told beside."""

    backward: bool
    causal: bool
    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    engine: (
        str  # flash2 (mma.sync kernels), native (the generation's own: FlashAttention-3), cudnn, efficient
    )
    pairs: float | None = None

    @property
    def flops(self) -> float:
        products = 10 if self.backward else 4
        pairs = float(self.batch) * self.queries * self.keys if self.pairs is None else self.pairs
        return products * self._unmasked * pairs * self.heads * self.head_dim

    @property
    def _unmasked(self) -> float:
        """The share of pairs of a query and a key that a causal mask leaves. Where there are not as many of both,
        PyTorch's mask (cuDNN's) lets the first query see the first key, FlashAttention's the last one the last."""
        if not self.causal:
            return 1.0
        fewer, more = sorted((self.queries, self.keys))
        triangle = fewer / (2 * more)
        from_first = self.engine not in ("flash2", "native")
        return triangle if (self.queries <= self.keys) == from_first or fewer == more else 1 - triangle


def is_auxiliary(kernel: Kernel) -> bool:
    """The small passes around a fused backward: row sums of dO O, conversion of the dQ accumulator."""
    return _AUXILIARY.search(kernel.name) is not None


def auxiliary_bytes(kernel: Kernel) -> float:
    """dO and O are read (bf16), or the fp32 dQ is read and written in bf16: about 6 bytes a query element."""
    tensors = [size for size in kernel.operator.sizes if len(size) in (3, 4)]
    return 6.0 * math.prod(tensors[0]) if tensors else 0.0


def query_shape(kernel: Kernel) -> tuple[int, int, int, int] | None:
    """[batch, queries, heads, head_dim] from the operator's tensors, whichever axis order it uses."""
    tensors = [size for size in kernel.operator.sizes if len(size) == 4]
    if not tensors:
        return None
    a, b, c, d = tensors[0]
    return (a, c, b, d) if _heads_first(kernel) else (a, b, c, d)


def _heads_first(kernel: Kernel) -> bool:
    """Whether the operator's tensors are [batch, heads, tokens, head_dim] (flash's: heads after tokens)."""
    return "scaled_dot_product" in kernel.operator.name or "cudnn_attention" in kernel.operator.name


def recognise(kernel: Kernel) -> Attention | None:
    """The fused attention that kernel computes, or None when it is another kernel."""
    if is_auxiliary(kernel):
        return None
    flash = _FLASH.search(kernel.name)
    if flash is not None:
        return _flash(kernel, flash)
    other = _EFFICIENT.search(kernel.name) or _FUSED.search(kernel.name)
    if other is None:
        return None
    backward = other.groupdict().get("pass") in ("B", "bprop") or "backward" in kernel.operator.name
    engine = "cudnn" if "cudnn" in kernel.name else "native"
    tiles = _EFFICIENT.search(kernel.name)
    if tiles is not None:
        engine = "efficient_fp32" if "_f32_" in kernel.name else "efficient"
    told = kernel.attention or ()
    longest = told[2] if told else kernel.grid[0] * _tile(tiles) if tiles else 0
    if (sequences := packed.recognise(kernel, backward, longest)) is not None:
        return _packed(sequences, backward, bool(told[5]) if len(told) > 5 else True, engine)
    if told:
        batch, heads, queries, keys, head_dim = told[:5]
    elif (shape := query_shape(kernel)) is not None:
        batch, queries, heads, head_dim = shape
        keys = _keys(kernel, queries, backward)
    else:
        return None
    # The mask is an argument, not in the name: what does not tell is taken as causal where it is square.
    masked = bool(told[5]) if len(told) > 5 else queries == keys
    return Attention(backward, masked, batch, heads, queries, keys, head_dim, engine)


def _tile(efficient: re.Match[str]) -> int:
    """Queries that a block takes, backward keys: what the grid's first axis counts."""
    return int(efficient["queries"] if efficient["pass"] == "F" else efficient["keys"])


def _packed(sequences: packed.Packed, backward: bool, causal: bool, engine: str) -> Attention:
    count, heads = sequences.sequences, sequences.heads
    queries, keys = (math.ceil(tokens / count) for tokens in (sequences.queries, sequences.keys))
    return Attention(
        backward, causal, count, heads, queries, keys, sequences.head_dim, engine, sequences.pairs
    )


def _flash(kernel: Kernel, flash: re.Match[str]) -> Attention:
    flags = [flag.strip() == "true" for flag in flash["flags"].split(",")]
    backward = flash["pass"] == "bwd"
    causal = len(flags) > 1 and flags[1]  # template order: Is_dropout, Is_causal, ...
    blocks, batch, heads = kernel.grid  # of queries (of keys, backward) x batch x heads
    tokens = blocks * int(flash["block_n"] if backward else flash["block_m"])
    if (sequences := packed.recognise(kernel, backward, tokens)) is not None:
        return _packed(sequences, backward, causal, "flash2")
    shape = query_shape(kernel)
    if shape is not None:
        batch, queries, heads, head_dim = shape
        keys = _keys(kernel, queries, backward)
        return Attention(backward, causal, batch, heads, queries, keys, head_dim, "flash2")
    return Attention(backward, causal, batch, heads, tokens, tokens, int(flash["head"]), "flash2")


def _keys(kernel: Kernel, queries: int, backward: bool) -> int:
    """The operator's next tensor after the query is the key; backward begins with the output's gradient."""
    tensors = [size for size in kernel.operator.sizes if len(size) == 4]
    index = 2 if backward else 1
    if len(tensors) <= index:
        return queries
    axis = 2 if _heads_first(kernel) else 1
    return tensors[index][axis]


def estimate_attention(attention: Attention, device: Device) -> tuple[float, Provenance]:
    """Seconds of one pass. What no fit has seen (fp32, backward passes where tables have none) is answered as a
    roofline."""
    fit = fit_for("attention", device, attention.engine)
    seconds = pass_seconds(attention, device, fit.coefficients)
    if attention.engine == "efficient_fp32":
        return seconds * (_FP32_TIMES * device.tensor_flops / device.vector_flops), Provenance.ROOFLINE
    fitted = (not attention.backward or fit.both_passes) and attention.pairs is None
    return seconds, fit.provenance if fitted else Provenance.ROOFLINE


def pass_seconds(attention: Attention, device: Device, c: Mapping[str, Any]) -> float:
    """Seconds by the coefficients `c` of a fit: flops over the fitted rate, slowed by the blocks on the diagonal and
    each block's prologue.

    rate(s) = peak * efficiency / (1 + ramp_tokens / s): the mask's diagonal and fixed parts weigh less the
    longer the sequence. cuDNN's kernels are of 64 or 128 elements a head, or more.
    """
    head = "efficiency_64" if attention.head_dim <= 64 else "efficiency_128"
    efficiency = float(c[head]) * (float(c["backward"]) if attention.backward else 1.0)
    ramp = float(c["ramp_tokens"]) * (1.0 if attention.causal else 0.4)
    flops = attention.flops
    if attention.engine == "cudnn":
        flops *= 64 * math.ceil(attention.head_dim / 64) / attention.head_dim
    blocks = math.ceil(attention.queries / 128) * attention.batch * attention.heads
    filled = blocks / (math.ceil(blocks / device.multiprocessors) * device.multiprocessors)
    rate = device.tensor_flops * efficiency * max(filled, 1e-3)
    return float(c["launch_s"]) + flops * (1 + ramp / max(attention.queries, 1)) / rate
