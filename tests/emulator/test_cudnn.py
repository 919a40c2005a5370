"""Convolutions and fused attention, which PyTorch asks of cuDNN's graph API."""

from __future__ import annotations

from collections import Counter
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
@pytest.mark.parametrize("dropout", [0.0, 0.125])  # PyTorch 2.15 gives cuDNN sixteenths only
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


RECURRENT = """
import torch
layers = torch.nn.{kind}(32, 64, num_layers=2, device="cuda", {options})
x = torch.randn(10, 8, 32, device="cuda", requires_grad=True)
{run}
result = [list(p.grad.shape) for p in layers.parameters()] + [list(x.grad.shape)]
"""


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize(("options", "directions"), [("", 1), ("bidirectional=True, bias=False", 2)])
def test_recurrent_layers_are_a_product_a_step(
    emulate: Callable[..., Any], kind: str, gates: int, options: str, directions: int
) -> None:
    run = emulate(RECURRENT.format(kind=kind, options=options, run="layers(x)[0].sum().backward()"))
    assert run.result[-1] == [10, 8, 32]
    assert run.result[0] == [gates * 64, 32]
    rows, inner = gates * 64, 64 * directions  # of a layer's gates; of the second layer's input
    expected: Counter[tuple[int, int, int]] = Counter()
    for width in (32, inner):
        # The inputs of all ten steps of eight sequences at once: forward, to the inputs, to the weights.
        expected.update([(rows, 80, width), (width, 80, rows), (width, rows, 80)] * directions)
        # Each step's hidden state: forward, backward; and once to its weights.
        expected.update([(rows, 8, 64), (64, 8, rows)] * 10 * directions + [(64, rows, 80)] * directions)
    assert Counter((op["m"], op["n"], op["k"]) for op in run.launched("gemm")) == expected
    assert run.trace.unsupported == ()
    assert any("recurrent layers" in remark for remark in run.trace.remarks)


def test_packed_sequences_do_less_work_as_they_end(emulate: Callable[..., Any]) -> None:
    run = emulate(
        RECURRENT.format(
            kind="LSTM",
            options="",
            run="""
lengths = torch.tensor([10, 10, 4, 4, 4, 1, 1, 1])
packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
layers(packed)[0].data.sum().backward()
""",
        )
    )
    steps = Counter(op["n"] for op in run.launched("gemm") if (op["m"], op["k"]) == (256, 64))
    assert steps == {8: 2, 5: 6, 2: 12, 35: 1}  # two layers; the second's input has the 35 tokens at once
    assert run.trace.unsupported == ()


def test_projected_states_are_narrower(emulate: Callable[..., Any]) -> None:
    run = emulate(RECURRENT.format(kind="LSTM", options="proj_size=16", run="layers(x)[0].sum().backward()"))
    products = Counter((op["m"], op["n"], op["k"]) for op in run.launched("gemm"))
    assert products[256, 8, 16] == products[16, 8, 64] == 20  # into the gates and out of the cell
    assert [16, 64] in run.result
    assert run.trace.unsupported == ()


@pytest.mark.parametrize("device", ["cpu", "cuda"])  # where the labels lie
def test_ctc_walks_its_lattice_forth_and_back(emulate: Callable[..., Any], device: str) -> None:
    run = emulate(
        f"""
        import torch
        steps, batch, alphabet = 50, 16, 20
        draw = torch.randn(steps, batch, alphabet, device="cuda", requires_grad=True)
        labels = torch.randint(1, alphabet, (batch * 30,), dtype=torch.int32).to("{device}")
        lengths, label_lengths = (steps,) * batch, (30,) * batch
        if "{device}" == "cuda":
            lengths, label_lengths = (torch.tensor(x, dtype=torch.int32).cuda() for x in (lengths, label_lengths))
        loss = torch.nn.functional.ctc_loss(draw.log_softmax(2), labels, lengths, label_lengths)
        loss.backward()
        result = [loss.item(), list(draw.grad.shape)]
        """
    )
    assert run.result == [0.0, [50, 16, 20]]
    own = [op for op in run.launched("kernel") if op["kernel"].startswith("cudnn::ctc")]
    assert [op["kernel"] for op in own] == ["cudnn::ctc_loss_steps_50"] * 2 + ["cudnn::ctc_loss_gradient"]
    assert own[0]["bytes"] == 2 * 50 * 16 * 61 * 4
    assert run.trace.unsupported == ()


def test_a_spatial_transformer_samples_at_its_grid(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        image = torch.randn(2, 3, 32, 32, device="cuda", requires_grad=True)
        matrix = torch.randn(2, 2, 3, device="cuda", requires_grad=True)
        grid = torch.cudnn_affine_grid_generator(matrix, 2, 3, 16, 16)
        out = torch.nn.functional.grid_sample(image, grid, align_corners=True)
        out.sum().backward()
        result = [list(out.shape), list(image.grad.shape), list(matrix.grad.shape)]
        """
    )
    assert run.result == [[2, 3, 16, 16], [2, 3, 32, 32], [2, 2, 3]]
    own = [op for op in run.launched("kernel") if op["kernel"].startswith("cudnn::spatial")]
    grid, image, sample = 2 * 16 * 16 * 2 * 4, 2 * 3 * 32 * 32 * 4, 2 * 3 * 16 * 16 * 4
    assert [op["kernel"].removeprefix("cudnn::spatial_transformer_") for op in own] == [
        "grid", "sample", "sample_backward", "grid_backward",
    ]  # fmt: skip
    assert own[1]["bytes"] == image + grid + sample
    assert own[2]["bytes"] == 3 * image + 2 * grid + sample
    assert run.trace.unsupported == ()
