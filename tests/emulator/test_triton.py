"""Triton kernels and torch.compile, compiled for the virtual device and launched on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SCALE = """
import triton
import triton.language as tl

@triton.jit
def scale_rows(x, rows_of, y, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    inside = offsets < columns
    factor = tl.load(rows_of + row)
    tl.store(y + row * columns + offsets, factor * tl.load(x + row * columns + offsets, inside), inside)
"""


def test_jit_kernel_launches_with_its_arguments(emulate: Callable[..., Any], tmp_path: Path) -> None:
    run = emulate(
        """
        import torch
        from kernels import scale_rows
        rows, columns = 48, 1000
        x = torch.empty(rows, columns, device="cuda", dtype=torch.float16)
        factors, y = torch.empty(rows, device="cuda"), torch.empty(rows, columns, device="cuda")
        launched = scale_rows[(rows,)](x, factors, y, columns, BLOCK=1024, num_warps=8)
        result = launched.n_regs
        """,
        files={"kernels.py": SCALE},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert 8 <= run.result <= 255  # registers a thread, from the cubin
    (kernel,) = [kernel for kernel in run.launched("kernel") if kernel["kernel"] == "scale_rows"]
    assert (kernel["grid"], kernel["block"]) == ([48, 1, 1], [256, 1, 1])
    assert kernel["bytes"] == 48 * 1000 * (2 + 4) + 48 * 4  # x and y once, one factor a row
    assert run.trace.unsupported == ()


PRODUCT = """
import triton
import triton.language as tl

@triton.jit
def product(x, y, z, SIDE: tl.constexpr):
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    place = row * SIDE + column
    tl.store(z + place, tl.dot(tl.load(x + place), tl.load(y + place)))
"""


def test_products_in_a_kernel_are_told_to_be_missing(emulate: Callable[..., Any], tmp_path: Path) -> None:
    run = emulate(
        """
        import torch
        from kernels import product
        x, z = torch.ones(64, 64, device="cuda", dtype=torch.float16), torch.empty(64, 64, device="cuda")
        for _ in range(3):
            product[(1,)](x, x, z, SIDE=64)
        """,
        files={"kernels.py": PRODUCT},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert run.trace.uncovered == (
        "matrix products in Triton's kernel product: it takes what its bytes take",
    )


def test_compiled_bias_gelu_runs_forward_and_backward(emulate: Callable[..., Any], tmp_path: Path) -> None:
    tokens, hidden, bf16 = 256, 4096, 2
    run = emulate(
        f"""
        import torch

        @torch.compile
        def bias_gelu(bias, y):
            x = bias + y
            return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

        y = torch.randn({tokens}, {hidden}, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        bias = torch.randn({hidden}, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2):
            bias_gelu(bias, y).sum().backward()
        result = [list(y.grad.shape), list(bias.grad.shape)]
        """,
        variables={
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        },
    )
    assert run.result == [[tokens, hidden], [hidden]]
    fused = [kernel for kernel in run.launched("kernel") if kernel["kernel"].startswith("triton_poi_fused")]
    assert {"tanh_backward" in kernel["kernel"] for kernel in fused} == {False, True}
    # The last forward launch reads y and the bias, and writes the output, each once.
    forward = [kernel for kernel in fused if "backward" not in kernel["kernel"]][-1]
    assert forward["bytes"] == 2 * tokens * hidden * bf16 + hidden * bf16
    assert run.trace.unsupported == ()
