"""Convolutions and fused attention, which PyTorch asks of cuDNN's graph API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_fused_attention_is_one_kernel_each_way(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        q = torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k = torch.randn(2, 2, 512, 64, device="cuda", dtype=torch.bfloat16)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True).sum().backward()
        result = list(q.grad.shape)
        """
    )
    assert run.result == [2, 8, 256, 64]
    fused = [kernel for kernel in run.launched("kernel") if "sdpa" in kernel["kernel"]]
    assert [kernel["kernel"].rpartition("_")[2] for kernel in fused] == ["fprop", "bprop"]
    assert all(kernel["grid"] == [2, 8, 2] for kernel in fused)  # blocks of 128 queries, heads, batch
    assert all(kernel["attention"] == [2, 8, 256, 512, 64, 0] for kernel in fused)
    assert run.trace.unsupported == ()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_fused_attention_tells_whether_it_is_causal(
    emulate: Callable[..., Any], causal: bool, dropout: float
) -> None:
    run = emulate(
        f"""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        q, k, v = torch.randn(3, 2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            attention = torch.nn.functional.scaled_dot_product_attention
            attention(q, k, v, is_causal={causal}, dropout_p={dropout}).sum().backward()
        """
    )
    fused = [kernel for kernel in run.launched("kernel") if "sdpa" in kernel["kernel"]]
    assert [kernel["attention"] for kernel in fused] == [[2, 8, 256, 256, 64, int(causal)]] * 2


def test_convolution_carries_its_geometry_forward_and_backward(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        layer = torch.nn.Conv2d(64, 128, 3, stride=2, padding=1, groups=2, bias=False, device="cuda")
        layer = layer.to(torch.bfloat16, memory_format=torch.channels_last)
        x = torch.randn(8, 64, 56, 56, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        layer(x.to(memory_format=torch.channels_last)).sum().backward()
        """
    )
    convolutions = run.launched("convolution")
    assert sorted(convolution["direction"] for convolution in convolutions) == [
        "backward_data",
        "backward_filter",
        "forward",
    ]
    for convolution in convolutions:
        assert convolution == {
            **convolution,
            "input": [8, 64, 56, 56],
            "filter": [128, 32, 3, 3],
            "output": [8, 128, 28, 28],
            "padding": [1, 1],
            "stride": [2, 2],
            "dilation": [1, 1],
            "groups": 2,
            "dtype": "bf16",
            "layout": "nhwc",
        }
    assert run.trace.unsupported == ()


def test_batch_normalisation_passes_over_its_tensors_once(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        layer = torch.nn.BatchNorm2d(64, device="cuda")
        x = torch.randn(8, 64, 32, 32, device="cuda", requires_grad=True)
        layer(x).sum().backward()
        """
    )
    passes = {op["kernel"]: op["bytes"] for op in run.launched("kernel") if "cudnn::bn" in op["kernel"]}
    tensor = 8 * 64 * 32 * 32 * 4
    assert passes == {"cudnn::bn_fw_tr_1C11_kernel": 2 * tensor, "cudnn::bn_bw_1C11_kernel": 3 * tensor}
    assert run.trace.unsupported == ()


def test_library_tells_its_version(emulate: Callable[..., Any]) -> None:
    run = emulate("import torch; result = torch.backends.cudnn.version()")
    assert run.result > 90000  # cuDNN 9
    assert run.trace.unsupported == ()
