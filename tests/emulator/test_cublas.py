"""What PyTorch's matrix products become in the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def shapes(run: Any) -> list[tuple[int, int, int, int]]:
    return [(gemm["m"], gemm["n"], gemm["k"], gemm["batch"]) for gemm in run.launched("gemm")]


def test_linear_is_three_products_forward_and_backward(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        layer = torch.nn.Linear(1024, 4096, bias=False, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        layer(x).sum().backward()
        """
    )
    forward, first, second = run.launched("gemm")
    # y[512, 4096] = x w^T, row-major; column-major y^T[4096, 512] = w x^T, with w stored [4096, 1024].
    assert forward == {
        **forward,
        "m": 4096,
        "n": 512,
        "k": 1024,
        "batch": 1,
        "dtype_a": "bf16",
        "dtype_b": "bf16",
        "dtype_c": "bf16",
        "compute": "fp32",
        "transpose_a": True,
        "transpose_b": False,
    }
    assert sorted((gemm["m"], gemm["n"], gemm["k"]) for gemm in (first, second)) == [
        (1024, 512, 4096),  # of the input
        (1024, 4096, 512),  # of the weight
    ]
    assert run.trace.unsupported == ()


def test_bmm_is_one_batched_product(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        a = torch.randn(24, 128, 64, device="cuda", dtype=torch.float16)
        b = torch.randn(24, 64, 256, device="cuda", dtype=torch.float16)
        torch.bmm(a, b)
        """
    )
    assert shapes(run) == [(256, 128, 64, 24)]
    (gemm,) = run.launched("gemm")
    assert (gemm["dtype_a"], gemm["transpose_a"], gemm["transpose_b"]) == ("fp16", False, False)


def test_addmm_carries_the_bias_in_its_epilogue_or_beta(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        layer = torch.nn.Linear(768, 3072, device="cuda", dtype=torch.bfloat16)
        layer(torch.randn(256, 768, device="cuda", dtype=torch.bfloat16))
        """
    )
    (gemm,) = run.launched("gemm")
    assert (gemm["m"], gemm["n"], gemm["k"]) == (3072, 256, 768)
    assert (gemm["library"], gemm["epilogue"]) in {("cublaslt", "bias"), ("cublas", "")}


def test_a_product_is_left_as_many_multiprocessors_as_its_caller_says(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.randn(256, 768, device="cuda").to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        for carveout in (None, 16):
            torch._C._set_sm_carveout_experimental(carveout)
            torch._scaled_mm(x, x.T, one, one, out_dtype=torch.bfloat16)
        """
    )
    assert [gemm.get("multiprocessors") for gemm in run.launched("gemm")] == [None, 132 - 16]


def test_autocast_multiplies_in_bf16(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        layer = torch.nn.Linear(256, 512, bias=False, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            layer(torch.randn(64, 256, device="cuda")).float().sum().backward()
        """
    )
    assert {(gemm["dtype_a"], gemm["dtype_c"]) for gemm in run.launched("gemm")} == {("bf16", "bf16")}


@pytest.mark.parametrize(("allowed", "compute"), [(True, "tf32"), (False, "fp32")])
def test_single_precision_runs_in_tf32_only_where_allowed(
    allowed: bool, compute: str, emulate: Callable[..., Any]
) -> None:
    run = emulate(
        f"""
        import torch
        torch.backends.cuda.matmul.allow_tf32 = {allowed}
        torch.randn(64, 64, device="cuda") @ torch.randn(64, 64, device="cuda")
        """
    )
    (gemm,) = run.launched("gemm")
    assert (gemm["dtype_a"], gemm["compute"]) == ("fp32", compute)


def test_vector_products_are_narrow_gemms(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        a, x = torch.randn(300, 200, device="cuda"), torch.randn(200, device="cuda")
        torch.mv(a, x), torch.dot(x, x)
        """
    )
    assert shapes(run) == [(300, 1, 200, 1), (1, 1, 200, 1)]


def test_small_results_nobody_computed_read_zero(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        stale = torch.full((8, 8), 7.0, device="cuda")
        torch.mm(stale, stale, out=stale)
        result = stale.cpu().flatten().tolist()
        """
    )
    assert run.result == [0.0] * 64


HANDLES = """
import ctypes
blas = ctypes.CDLL("libcuda.so.1")
handle, version = ctypes.c_void_p(), ctypes.c_int()
assert blas.cublasCreate_v2(ctypes.byref(handle)) == 0
"""


def test_destroyed_and_foreign_handles_are_not_initialized(emulate: Callable[..., Any]) -> None:
    run = emulate(
        HANDLES
        + """
foreign = ctypes.create_string_buffer(4096)
before = blas.cublasSetStream_v2(handle, None)
blas.cublasDestroy_v2(handle)
result = [before, blas.cublasSetStream_v2(handle, None), blas.cublasSetStream_v2(foreign, None),
          blas.cublasLtMatmul(foreign, *[None] * 15), blas.cublasDestroy_v2(handle)]
"""
    )
    assert run.result == [0, 1, 1, 1, 1]


def test_descriptor_attributes_have_the_librarys_sizes(emulate: Callable[..., Any]) -> None:
    run = emulate(
        HANDLES
        + """
u64, byref = ctypes.c_uint64, ctypes.byref
matmul, written = ctypes.c_void_p(), u64()
assert blas.cublasLtMatmulDescCreate(byref(matmul), 68, 0) == 0
epilogue, short = ctypes.c_uint32(36), ctypes.c_uint16(1)
result = [blas.cublasLtMatmulDescSetAttribute(matmul, 7, byref(epilogue), u64(4)),
          blas.cublasLtMatmulDescSetAttribute(matmul, 7, byref(short), u64(2)),
          blas.cublasLtMatmulDescGetAttribute(matmul, 8, None, u64(0), byref(written)), written.value,
          blas.cublasLtMatmulDescGetAttribute(matmul, 7, byref(epilogue), u64(4), byref(written)), epilogue.value,
          blas.cublasLtMatmulDescDestroy(matmul), blas.cublasLtMatmulDescDestroy(matmul)]
"""
    )
    invalid_value = 7
    assert run.result == [0, invalid_value, 0, 8, 0, 36, 0, invalid_value]


def test_row_major_and_column_major_ask_for_the_same_product(emulate: Callable[..., Any]) -> None:
    run = emulate(
        HANDLES
        + """
u64, byref = ctypes.c_uint64, ctypes.byref
matmul = ctypes.c_void_p()
blas.cublasLtMatmulDescCreate(byref(matmul), 68, 0)
def layout(rows, columns, row_major):
    made, order = ctypes.c_void_p(), ctypes.c_int32(1)
    ld = columns if row_major else rows
    assert blas.cublasLtMatrixLayoutCreate(byref(made), 14, u64(rows), u64(columns), ctypes.c_int64(ld)) == 0
    if row_major:
        assert blas.cublasLtMatrixLayoutSetAttribute(made, 1, byref(order), u64(4)) == 0
    return made
def multiply(row_major, m, n, k):
    a, b, d = (layout(*shape, row_major) for shape in ((m, k), (k, n), (m, n)))
    operands = (None, None, a, None, b, None, None, d, None, d, None, None, u64(0), None)
    assert blas.cublasLtMatmul(handle, matmul, *operands) == 0
multiply(False, 96, 32, 64)
multiply(True, 32, 96, 64)
"""
    )
    first, second = run.launched("gemm")
    assert first == second
    assert shapes(run) == [(96, 32, 64, 1)] * 2
