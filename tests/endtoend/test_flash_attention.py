"""flash-attn's interface over PyTorch's kernels, as Transformer Engine and scripts call it."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from pathlib import Path

from maya.trace import read_job
from maya.trace.types import Kernel

INTERFACE = Path(__file__).parents[2] / "examples/flash_attention"

SCRIPT = """
import importlib.metadata

import torch
from flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward

assert importlib.metadata.version("flash-attn").startswith("2.")
weight = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-3)
q, k, v = (torch.randn(2, 512, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (8, 2, 2))
ends = torch.tensor([0, 300, 512], dtype=torch.int32, device="cuda")
for _ in range(500000):
    batched = flash_attn_func(q * weight.bfloat16(), k, v, dropout_p=0.1, causal=True)
    assert batched.shape == q.shape
    packed = flash_attn_varlen_func(q[0] * weight.bfloat16(), k[0], v[0], ends, ends, 300, 300, window_size=(64, 0))
    assert packed.shape == q[0].shape
    (batched.sum() + packed.sum()).backward()
    options = {"dropout_p": 0.0, "softmax_scale": 0.125, "causal": False}
    out, lse, _, state = _flash_attn_forward(q, k, v, **options)
    gradients = [torch.empty_like(tensor) for tensor in (q, k, v)]
    before = [gradient.data_ptr() for gradient in gradients]
    _flash_attn_backward(out, q, k, v, out, lse, *gradients, **options, rng_state=state)
    assert [gradient.shape for gradient in gradients] == [q.shape, k.shape, v.shape]
    assert all(gradient.data_ptr() != old for gradient, old in zip(gradients, before))
    optimizer.step()
    optimizer.zero_grad()
"""


def test_attention_takes_pytorchs_flash_kernels(maya, tmp_path):
    script = tmp_path / "attend.py"
    script.write_text(textwrap.dedent(SCRIPT))
    places = [str(INTERFACE), *filter(None, [os.environ.get("PYTHONPATH")])]
    completed = maya(
        "trace", "--gpus", 1, "--out", "trace", "--", script,
        environment=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    trace = read_job(tmp_path / "trace")
    names = [trace.operations[index] for index in trace.ranks[0].records["operation"].tolist() if index >= 0]
    called = [each.name for each in names if isinstance(each, Kernel)]
    parts = ("flash_fwd_kernel", "flash_fwd_splitkv_kernel", "flash_bwd_dq")
    kernels = Counter(part for part in parts for name in called if part in name)
    # Few heads and no dropout: the third attention's keys are split over more SMs.
    assert kernels == {"flash_fwd_kernel": 2, "flash_fwd_splitkv_kernel": 1, "flash_bwd_dq": 3}


def test_what_pytorchs_kernels_lack_is_refused(maya, tmp_path):
    script = tmp_path / "alibi.py"
    script.write_text(
        "import torch\nfrom flash_attn import flash_attn_func\n"
        "q = torch.randn(1, 64, 2, 64, device='cuda', dtype=torch.bfloat16)\n"
        "flash_attn_func(q, q, q, alibi_slopes=torch.ones(2, device='cuda'))\n"
    )
    completed = maya(
        "trace", "--gpus", 1, "--out", "trace", "--", script,
        environment=os.environ | {"PYTHONPATH": os.pathsep.join([str(INTERFACE), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert completed.returncode != 0
    assert "FlashAttention-2 kernels have no alibi_slopes" in completed.stdout + completed.stderr
