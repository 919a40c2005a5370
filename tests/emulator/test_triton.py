"""Triton kernels and torch.compile, compiled for the virtual device and launched on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


LOSS = """
import triton
import triton.language as tl

@triton.jit
def loss(x, labels, z, columns, first, TILE: tl.constexpr):
    label = tl.load(labels + tl.program_id(0))
    x += tl.program_id(0) * columns
    chosen = 0.0
    if label >= first:  # one tensor rank's columns
        if label < first + columns:
            chosen = tl.load(x + label - first)
    total = 0.0
    for at in range(0, columns, TILE):
        total += tl.sum(tl.exp(tl.load(x + at + tl.arange(0, TILE))))
    tl.store(z + tl.program_id(0), chosen - tl.log(total))
"""


def test_random_labels_do_not_make_another_operation(emulate: Callable[..., Any], tmp_path: Path) -> None:
    """Or no iteration would repeat one before it; of more of them than are looked at, too."""
    run = emulate(
        """
        import torch
        from kernels import loss
        x, z = torch.empty(64, 4096, device="cuda"), torch.empty(64, device="cuda")
        for _ in range(40):
            labels = torch.randint(8192, (64,)).cuda()
            loss[(64,)](x, labels, z, 4096, 4096, TILE=1024)
        result = bool(z.isnan().any())
        """,
        files={"kernels.py": LOSS},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    kernels = [kernel for kernel in run.launched("kernel") if kernel["kernel"] == "loss"]
    assert len(kernels) == 40
    assert {kernel["bytes"] for kernel in kernels} == {64 * (4096 * 4 + 8 + 4)}
    assert len({tuple(kernel["work"]) for kernel in kernels}) == 1


def test_products_as_many_as_known_data_tell_are_counted(emulate: Callable[..., Any], tmp_path: Path) -> None:
    """Anew where the data are others, and as before where they are the same elsewhere."""
    run = emulate(
        """
        import torch
        from kernels import product_of_some
        x, z = torch.ones(64, 512, device="cuda", dtype=torch.float16), torch.empty(64, 64, device="cuda")
        for depth in (384, 128, 384):
            product_of_some[(1, 1)](x, x, z, torch.tensor([depth], device="cuda"), 512, TILE=64)
        """,
        files={"kernels.py": PRODUCT},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    kernels = [kernel for kernel in run.launched("kernel") if kernel["kernel"] == "product_of_some"]
    assert [kernel["work"][-1] for kernel in kernels] == [2 * 64 * 64 * depth for depth in (384, 128, 384)]
    assert run.trace.uncovered == ()


INTEGERS = """
import triton
import triton.language as tl

@triton.jit
def ranks(x, sums, order, untouched, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, inside, 0)
    tl.store(sums + row, tl.sum(tl.where(values > 3, values, 0), 0))
    tl.store(order + row * columns + at, tl.sort(values), inside)
    tl.store(untouched + 2 * (row * columns + at), tl.cumsum(values, 0) // 3 - at, inside)

@triton.jit
def later(x, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, at < columns, 0)
    if tl.max(values, 0) > 100:
        tl.store(y + at, values % 7, at < columns)
    else:
        tl.store(y + at, -values, at < columns)
"""


@pytest.mark.parametrize("dtype", ["int32", "int64", "int16"])
@pytest.mark.parametrize("warps", [1, 4])
def test_integers_are_computed(emulate: Callable[..., Any], tmp_path: Path, dtype: str, warps: int) -> None:
    """Across threads and warps; what a kernel leaves between its results stays."""
    run = emulate(
        f"""
        import torch
        from kernels import later, ranks
        x = torch.tensor([[(17 * row + 5 * at * at) % 64 for at in range(128)] for row in range(6)])
        on_device = x.to(torch.{dtype}).cuda()
        sums, order = torch.zeros(6, dtype=torch.int64, device="cuda"), torch.zeros_like(on_device)
        untouched = torch.full((6, 256), 9, device="cuda", dtype=torch.int64)
        ranks[(6,)](on_device, sums, order, untouched, 128, BLOCK=128, num_warps={warps})
        computed, at = untouched.cpu(), torch.arange(128)
        result = [
            torch.equal(sums.cpu(), torch.where(x > 3, x, 0).sum(1)),
            torch.equal(order.cpu().long(), x.sort(1).values),
            torch.equal(computed[:, ::2], x.cumsum(1) // 3 - at),
            bool((computed[:, 1::2] == 9).all()),
        ]
        for most in (100, 101):
            y = torch.zeros(128, dtype=torch.int64, device="cuda")
            values = at.clamp(max=most) if most == 100 else at
            later[(1,)](values.cuda(), y, 128, BLOCK=128, num_warps={warps})
            result.append(torch.equal(y.cpu(), -values if most == 100 else values % 7))
        """,
        files={"kernels.py": INTEGERS},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert run.result == [True] * 6
    assert run.trace.uncovered == ()


OPERATIONS = """
import random

import torch
import triton
import triton.language as tl

def expression(draw, depth):
    if depth == 0:
        return draw.choice(["x", "y", "at", str(draw.choice([0, 1, 2, 3, 7, 31, 100]))])
    a, b, c = (expression(draw, depth - 1) for _ in range(3))
    return draw.choice([
        f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} & {b})", f"({a} | {b})", f"({a} ^ {b})",
        f"(({a}) >> {draw.randrange(4)})", f"(({a}) << {draw.randrange(4)})", f"(({a}) // {draw.choice([3, 5, 8])})",
        f"(({a}) % {draw.choice([3, 7, 16])})", f"tl.minimum({a} + x, {b} + x)", f"tl.maximum({a} + x, {b} + x)",
        f"tl.where(({a}) > ({b}), {c}, {a})", f"tl.where((({a}) <= ({b})) & (x != {c}), {b}, {c})",
        f"(({a} + x).to(tl.{draw.choice(['int8', 'int16', 'int32', 'int64', 'uint8', 'uint32'])}))",
    ])

KERNEL = '''
import triton
import triton.language as tl

@triton.jit
def kernel(X, Y, Z, n, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + at, at < n, 0)
    y = tl.load(Y + at, at < n, 1)
    tl.store(Z + at, ({} + x).to(tl.int64), at < n)
'''

def results(device, folder):
    draw, found = random.Random(0), []
    for number in range(16):
        source = KERNEL.format(expression(draw, draw.randrange(1, 4)))
        with open(f"{folder}/kernel_{number}.py", "w") as file:
            file.write(source)
        kernel = __import__(f"kernel_{number}").kernel
        dtypes = [draw.choice([torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]) for _ in "xy"]
        N, warps = draw.choice([64, 128, 512]), draw.choice([1, 2, 4])
        n = 3 * N - draw.choice([0, 5, N // 2])
        x, y = (torch.tensor([draw.randrange(100) - 30 for _ in range(n)]).to(dtype) for dtype in dtypes)
        z = torch.zeros(n, dtype=torch.int64, device=device)
        kernel[(3,)](x.to(device), y.to(device), z, n, N=N, num_warps=warps)
        found.append(z.tolist())
    return found
"""


def test_operations_are_those_of_tritons_interpreter(emulate: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "operations.py").write_text(OPERATIONS)
    interpreted = subprocess.run(
        [sys.executable, "-c", "import json, operations; print(json.dumps(operations.results('cpu', '.')))"],
        cwd=tmp_path,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": "."},
        check=True,
        capture_output=True,
        text=True,
    )
    run = emulate(
        """
        import os, sys
        from operations import results
        os.makedirs("kernels")
        sys.path.insert(0, "kernels")
        result = results("cuda", "kernels")
        """,
        files={"operations.py": OPERATIONS},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert run.result == json.loads(interpreted.stdout)


def test_what_follows_from_unknown_values_stays_unknown(emulate: Callable[..., Any], tmp_path: Path) -> None:
    run = emulate(
        """
        import torch
        from kernels import ranks
        x = torch.zeros(2, 128, dtype=torch.int32, device="cuda")
        x[1] = (torch.rand(128, device="cuda") * 64).int()  # nobody draws it
        sums, order = torch.full((2,), 5, device="cuda"), torch.zeros_like(x)
        ranks[(2,)](x + 4, sums, order, torch.zeros(2, 256, device="cuda", dtype=torch.int64), 128, BLOCK=128)
        result = sums.tolist()
        """,
        files={"kernels.py": INTEGERS},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert run.result == [0, 0]


BESIDE = """
import triton
import triton.language as tl

@triton.jit
def beside(x, order, pairs, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(pairs + 2 * at, tl.load(order + at))
    tl.store(pairs + 2 * at + 1, tl.load(x + at))
"""


def test_what_a_launch_came_to_does_not_stand_where_other_values_are_known(
    emulate: Callable[..., Any], tmp_path: Path
) -> None:
    run = emulate(
        """
        import torch
        from kernels import beside
        def drawn():  # by nobody
            return (torch.rand(32, device="cuda") * 64).int()
        half_known = drawn()
        half_known[16:] = 9
        known = torch.full((32,), 7, dtype=torch.int32, device="cuda")
        order = torch.arange(32, dtype=torch.int32, device="cuda")
        result = []
        for x in (drawn(), known, drawn(), half_known, drawn(), known + 1):
            pairs = torch.full((32, 2), 5, dtype=torch.int32, device="cuda")
            beside[(1,)](x, order, pairs, BLOCK=32)
            result.append(pairs.T.tolist())
        """,
        files={"kernels.py": BESIDE},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    unknown, known = [0] * 32, [7] * 32
    copied = [unknown, known, unknown, [0] * 16 + [9] * 16, unknown, [8] * 32]
    assert run.result == [[list(range(32)), values] for values in copied]


UNFOLLOWED = """
import triton
import triton.language as tl

@triton.jit
def mark(scores, marks, BLOCK: tl.constexpr):
    if tl.load(scores) > 0.5:
        tl.store(marks + tl.arange(0, BLOCK), 1)
"""


def test_what_a_kernel_may_write_that_cannot_be_followed_is_not_what_it_was(
    emulate: Callable[..., Any], tmp_path: Path
) -> None:
    run = emulate(
        """
        import torch
        from kernels import mark
        marks, scores = torch.full((64,), 7, device="cuda"), torch.rand(1, device="cuda")
        mark[(1,)](scores, marks, BLOCK=64)
        result = [marks.tolist(), len(set(scores.tolist()))]
        """,
        files={"kernels.py": UNFOLLOWED},
        variables={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert run.result == [[0] * 64, 1]


@pytest.mark.parametrize("compiled", [True, False])
def test_flex_attention_goes_over_its_masks_blocks(
    emulate: Callable[..., Any], tmp_path: Path, compiled: bool
) -> None:
    """Forward two products over each, backward seven."""
    run = emulate(
        f"""
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        documents = (torch.arange(1024) // 256).cuda()
        masks = {{
            "causal": lambda b, h, q, k: q >= k,
            "documents": lambda b, h, q, k: (q >= k) & (documents[q] == documents[k]),
        }}
        attend = torch.compile(flex_attention, dynamic=False)
        make = torch.compile(create_block_mask) if {compiled} else create_block_mask
        q, k, v = (torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
        result = {{}}
        for name, mask in masks.items():
            blocks = make(mask, None, None, 1024, 1024)
            attend(q, k, v, block_mask=blocks).sum().backward()
            result[name] = blocks.kv_num_blocks.sum().item() + blocks.full_kv_num_blocks.sum().item()
        """,
        variables={
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        },
    )
    assert run.result == {"causal": 36, "documents": 12}  # of 64 blocks of 128 by 128
    products = [
        kernel["work"][-1] for kernel in run.launched("kernel") if "tem_fused_flex" in kernel["kernel"]
    ]
    of_a_block = 2 * 4 * 2 * 128 * 128 * 64
    expected = [times * blocks * of_a_block for blocks in run.result.values() for times in (2, 7)]
    assert products == pytest.approx(expected, rel=0.05)
    assert run.trace.uncovered == ()


def test_compiled_blocks_of_a_mask_are_those_of_the_cpu(emulate: Callable[..., Any], tmp_path: Path) -> None:
    """Of 128 in a row, whose places a kernel hands on through shared memory."""
    run = emulate(
        """
        import torch
        from torch.nn.attention.flex_attention import create_block_mask

        def make(device, create):
            last = (torch.arange(256) // 100 * 7000).to(device)
            mask = lambda b, h, q, k: (q * 50 >= k) & (k <= last[q])
            return create(mask, None, None, 256, 16384, device=device)

        found, expected = make("cuda", torch.compile(create_block_mask)), make("cpu", create_block_mask)
        parts = [f"{of}_{what}" for of in "kv q full_kv full_q".split() for what in ("num_blocks", "indices")]
        result = [torch.equal(getattr(found, part).cpu(), getattr(expected, part)) for part in parts]
        """,
        variables={
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        },
    )
    assert run.result == [True] * 8


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
