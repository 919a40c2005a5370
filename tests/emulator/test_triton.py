"""Triton kernels and torch.compile, compiled for the virtual device and launched on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
def product(x, y, z, depth, row, TILE: tl.constexpr):
    across, down = tl.arange(0, TILE)[None, :], tl.arange(0, TILE)[:, None]
    sums = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, depth, TILE):
        left = tl.load(x + (tl.program_id(0) * TILE + down) * row + k + across)
        right = tl.load(y + (tl.program_id(1) * TILE + down) * row + k + across)
        sums = tl.dot(left, right.T, sums)
    tl.store(z + (tl.program_id(0) * TILE + down) * row + tl.program_id(1) * TILE + across, sums)

@triton.jit
def product_of_some(x, y, z, depth, row, TILE: tl.constexpr):
    product(x, y, z, tl.load(depth), row, TILE)
"""


@pytest.mark.parametrize("major, instruction", [(9, "wgmma.mma_async"), (8, "mma.sync")])
@pytest.mark.parametrize("dtype, relative", [("float16", 1), ("bfloat16", 1), ("float32", 2)])
def test_products_in_a_kernel_are_counted(
    emulate: Callable[..., Any], tmp_path: Path, dtype: str, relative: int, major: int, instruction: str
) -> None:
    """Of TF32's, which take tensor cores twice as long as those of 16 bits, twice as many."""
    run = emulate(
        f"""
        import torch
        from kernels import product
        x, z = torch.empty(512, 512, device="cuda", dtype=torch.{dtype}), torch.empty(512, 512, device="cuda")
        compiled = product[(8, 8)](x, x, z, 384, 512, TILE=64)
        result = "{instruction}" in compiled.asm["ptx"]
        """,
        files={"kernels.py": PRODUCT},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
        major=major,
    )
    assert run.result  # the products' instruction is the device's own
    (kernel,) = [kernel for kernel in run.launched("kernel") if kernel["kernel"] == "product"]
    assert kernel["work"][-1] == 2 * 512 * 512 * 384 * relative
    assert run.trace.uncovered == ()


def test_products_as_many_as_data_tell_are_told_to_be_missing(
    emulate: Callable[..., Any], tmp_path: Path
) -> None:
    run = emulate(
        """
        import torch
        from kernels import product_of_some
        x, z = torch.ones(64, 64, device="cuda", dtype=torch.float16), torch.empty(64, 64, device="cuda")
        depth = torch.rand(1, device="cuda").int()
        for _ in range(3):
            product_of_some[(1, 1)](x, x, z, depth, 64, TILE=64)
        """,
        files={"kernels.py": PRODUCT},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert run.trace.uncovered == (
        "matrix products in Triton's kernel product_of_some: its PTX alone does not tell how many",
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
