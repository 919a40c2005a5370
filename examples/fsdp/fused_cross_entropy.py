"""Cross entropy of 16-bit logits in one pass, without a copy of them in fp32, as flash-attn has it."""

import torch
import triton
import triton.language as tl


@triton.jit
def cross_entropy_forward(losses, logarithms, logits, labels, classes, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(logits + row * classes + columns, mask=columns < classes, other=-float("inf")).to(tl.float32)
    most = tl.max(x, axis=0)
    logarithm = tl.log(tl.sum(tl.exp(x - most), axis=0)) + most
    label = tl.load(labels + row)
    tl.store(logarithms + row, logarithm)
    tl.store(losses + row, logarithm - tl.sum(tl.where(columns == label, x, 0.0), axis=0))


@triton.jit
def cross_entropy_backward(gradients, losses, logits, logarithms, labels, classes, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < classes
    x = tl.load(logits + row * classes + columns, mask=inside, other=-float("inf")).to(tl.float32)
    probabilities = tl.exp(x - tl.load(logarithms + row))
    own = tl.where(columns == tl.load(labels + row), 1.0, 0.0)
    gradient = tl.load(losses + row) * (probabilities - own)
    tl.store(gradients + row * classes + columns, gradient, mask=inside)


class FusedCrossEntropy(torch.autograd.Function):
    """Loss of each token, fp32; logits [tokens, classes], labels [tokens]."""

    @staticmethod
    def forward(ctx, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        tokens, classes = logits.shape
        losses, logarithms = torch.empty(2, tokens, device=logits.device)
        options = {"BLOCK": triton.next_power_of_2(classes), "num_warps": 32}
        cross_entropy_forward[(tokens,)](losses, logarithms, logits, labels, classes, **options)
        ctx.save_for_backward(logits, logarithms, labels)
        ctx.options = options
        return losses

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, logarithms, labels = ctx.saved_tensors
        tokens, classes = logits.shape
        result = torch.empty_like(logits)
        arguments = (result, gradient.contiguous(), logits, logarithms, labels, classes)
        cross_entropy_backward[(tokens,)](*arguments, **ctx.options)
        return result, None
