"""Products with sparse matrices, and sparse tensors whose shape the device decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SPARSE = """
import torch
sparse = torch.eye(64).to_sparse_{layout}().cuda().requires_grad_()
dense = torch.randn(64, 32, device="cuda", requires_grad=True)
"""
NONZEROS = 64
CSR_BYTES = NONZEROS * (4 + 8) + 65 * 8  # fp32 values, 64 bit indices and offsets of rows


def moved(run: Any, name: str) -> list[int]:
    return [op["bytes"] for op in run.launched("kernel") if op["kernel"].startswith(f"cusparse_{name}")]


def test_a_product_reads_a_row_for_each_nonzero(emulate: Callable[..., Any]) -> None:
    run = emulate(
        SPARSE.format(layout="csr")
        + "out = sparse @ dense\nout.sum().backward()\nresult = [list(out.shape), list(dense.grad.shape)]"
    )
    assert run.result == [[64, 32], [64, 32]]
    assert moved(run, "spmm_fp32")[0] == CSR_BYTES + NONZEROS * 32 * 4 + 64 * 32 * 4
    assert len(moved(run, "spmm_fp32")) == 2  # forward, and to the dense matrix
    assert run.trace.unsupported == ()


def test_a_sampled_product_reads_a_row_and_a_column_for_each_nonzero(emulate: Callable[..., Any]) -> None:
    run = emulate(
        SPARSE.format(layout="csr")
        + "torch.sparse.sampled_addmm(sparse.detach(), dense.detach(), dense.detach().T)"
    )
    assert moved(run, "sddmm_fp32") == [CSR_BYTES + NONZEROS * (2 * 32 + 1) * 4]
    assert run.trace.unsupported == ()


def test_a_product_with_a_vector(emulate: Callable[..., Any]) -> None:
    run = emulate(SPARSE.format(layout="csr") + "sparse.detach() @ dense.detach()[:, 0].contiguous()")
    assert moved(run, "spm") == [CSR_BYTES + NONZEROS * 4 + 64 * 4]
    assert run.trace.unsupported == ()


def test_coordinates_become_offsets_first(emulate: Callable[..., Any]) -> None:
    run = emulate(SPARSE.format(layout="coo") + "torch.sparse.mm(sparse, dense).sum().backward()")
    assert moved(run, "coo2csr")[0] == 4 * NONZEROS + 4 * 65
    assert moved(run, "spmm_fp32")
    assert run.trace.unsupported == ()


@pytest.mark.parametrize("drawn", ["on the device", "on the host"])
def test_a_sparse_gradient_keeps_its_rows(emulate: Callable[..., Any], drawn: str) -> None:
    device = "cuda" if drawn == "on the device" else "cpu"
    run = emulate(
        f"""
        import torch
        table = torch.nn.Embedding(100000, 32, sparse=True).cuda()
        optimizer = torch.optim.SparseAdam(table.parameters())
        table(torch.randint(0, 100000, (4096,), device="{device}").cuda()).sum().backward()
        optimizer.step()
        result = table.weight.grad.coalesce()._nnz()
        """
    )
    assert run.result == 4096  # none, before
    assert run.trace.unsupported == ()
    assert any("sparse tensor" in remark for remark in run.trace.remarks)


def test_a_dense_gradient_assumes_nothing_of_its_rows(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        table = torch.nn.Embedding(1000, 32).cuda()
        table(torch.randint(0, 1000, (8192,), device="cuda")).sum().backward()
        """
    )
    assert not any("sparse" in remark for remark in run.trace.remarks)
