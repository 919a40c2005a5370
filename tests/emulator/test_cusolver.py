"""Dense factorisations and solves: the routine that torch.linalg calls, its sizes, and that its checks pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# [m, n, k, batch, vectors, batched]
Call = tuple[str, int, int, int, int, bool, bool]


def calls(run: Any) -> list[Call]:
    fields = ("routine", "m", "n", "k", "batch", "vectors", "batched")
    return [tuple(op[field] for field in fields) for op in run.launched("lapack")]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("qr(draw(64, 32))", [("geqrf", 64, 32, 0, 1, False, False), ("orgqr", 64, 32, 32, 1, False, False)]),
        ("cholesky(draw(64, 64))", [("potrf", 64, 64, 0, 1, False, False)]),
        ("cholesky(draw(4, 64, 64))", [("potrf", 64, 64, 0, 4, False, True)]),
        ("eigh(draw(600, 600))", [("syevd", 600, 600, 0, 1, True, False)]),
        ("eigvalsh(draw(600, 600))", [("syevd", 600, 600, 0, 1, False, False)]),
        ("eigh(draw(4, 16, 16))", [("syevj", 16, 16, 0, 4, True, True)]),
        ("eig(draw(64, 64))", [("geev", 64, 64, 0, 1, True, False)]),
        ("svd(draw(64, 32), driver='gesvd')", [("gesvd", 64, 32, 0, 1, True, False)]),
        ("svd(draw(64, 32), driver='gesvda')", [("gesvda", 64, 32, 0, 1, True, True)]),
        ("svdvals(draw(64, 32))", [("gesvdj", 64, 32, 0, 1, False, False)]),
        ("svd(draw(4, 16, 16))", [("gesvdj", 16, 16, 0, 4, True, True)]),
        ("lu_factor(draw(64, 64))", [("getrf", 64, 64, 0, 1, False, False)]),
        ("lu_factor(draw(3, 128, 128))", [("getrf", 128, 128, 0, 3, False, True)]),
        ("solve_triangular(draw(64, 64), draw(64, 8), upper=True)", [("trsm", 64, 64, 8, 1, False, False)]),
        ("ldl_factor(draw(64, 64))", [("sytrf", 64, 64, 0, 1, False, False)]),
    ],
)  # fmt: skip
def test_a_call_is_recorded_with_its_sizes(
    emulate: Callable[..., Any], call: str, expected: list[Call]
) -> None:
    run = emulate(
        f"""
        import torch
        draw = lambda *shape: torch.randn(*shape, device="cuda")
        torch.linalg.{call}
        """
    )
    assert calls(run) == expected
    assert run.trace.unsupported == ()


def test_a_small_symmetric_matrix_is_decomposed_by_either_method(emulate: Callable[..., Any]) -> None:
    """Which one is PyTorch's choice, and cuSOLVER's."""
    run = emulate(
        """
        import torch
        torch.linalg.eigh(torch.randn(64, 64, device="cuda"))
        """
    )
    assert calls(run) in ([("syevj", 64, 64, 0, 1, True, False)], [("syevd", 64, 64, 0, 1, True, False)])


def test_types_are_told_apart(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
            torch.linalg.qr(torch.randn(8, 8, dtype=dtype, device="cuda"))
        """
    )
    dtypes = [op["dtype"] for op in run.launched("lapack") if op["routine"] == "orgqr"]
    assert dtypes == ["fp32", "fp64", "complex64", "complex128"]


def test_gradients_pass_through_every_factorisation(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        from torch import linalg
        draw = lambda *shape: torch.randn(*shape, device="cuda", requires_grad=True)
        failed = []
        for shape in ((48, 48), (600, 600), (3, 40, 40)):
            for function in (linalg.eigh, linalg.qr, linalg.cholesky, linalg.svd, linalg.lu, linalg.inv, linalg.det,
                             linalg.slogdet, linalg.eig, linalg.pinv, torch.cholesky_inverse):
                x = draw(*shape)
                found = function(x)
                outputs = found if isinstance(found, tuple) else (found,)
                sum(each.abs().sum() for each in outputs if each.requires_grad).backward()
                if x.grad is None or x.grad.shape != x.shape:
                    failed.append([function.__name__, list(shape)])
            for function in (linalg.solve, torch.cholesky_solve, lambda a, b: linalg.lstsq(a, b)[0]):
                a, b = draw(*shape), draw(*shape)
                function(a, b).sum().backward()
                if a.grad is None or b.grad is None:
                    failed.append([str(function), list(shape)])
        result = failed
        """
    )
    assert run.result == []
    assert run.trace.unsupported == ()


def test_checks_of_small_matrices_find_success_and_no_values(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], device="cuda")
        factor, info = torch.linalg.cholesky_ex(matrix)
        values, vectors = torch.linalg.eigh(matrix)
        result = [int(info), factor.tolist(), values.tolist(), vectors.tolist()]
        """
    )
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    assert run.result == [0, zeros, [0.0, 0.0], zeros]


def test_handles_and_sizes_are_checked(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import ctypes
        cuda = ctypes.CDLL(None)
        handle, foreign, elements = ctypes.c_void_p(), ctypes.c_void_p(64), ctypes.c_int(-1)
        result = [
            cuda.cusolverDnCreate(ctypes.byref(handle)),
            cuda.cusolverDnSgeqrf(foreign, 8, 8, None, 8, None, None, 0, None),
            cuda.cusolverDnSgeqrf(handle, -1, 8, None, 8, None, None, 0, None),
            cuda.cusolverDnSgesvd(handle, 65, 65, 4, 8, None, 4, None, None, 4, None, 8, None, 0, None, None),
            cuda.cusolverDnZungqr_bufferSize(handle, 100, 20, 20, None, 100, None, ctypes.byref(elements)),
            cuda.cusolverDnSgeqrf_bufferSize(handle, 8, 8, None, 8, None),
            cuda.cusolverDnDestroy(handle), cuda.cusolverDnDestroy(handle), elements.value,
        ]
        """
    )
    assert run.result == [0, 1, 3, 3, 0, 3, 0, 1, 6400]
