#!/usr/bin/env python3
"""The operations that training is made of, each over the sizes that models have: an unmodified PyTorch script to be
measured.

  maya profile --database h100.parquet scripts/measure/operations.py [FAMILY]...

An iteration calls every case of the families once, forward and backward, on fresh random numbers: what a case reads,
the kernels before it have written, as in training.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.nn.attention import SDPBackend, sdpa_kernel

Case = Callable[[], object]

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
HIDDEN = (768, 1024, 2048, 4096, 5120, 8192, 12288)
TOKENS = (1024, 2048, 4096, 8192, 16384)
MOST_FLOPS = 6e12  # of one product
SEED = 1


def normal(*shape: int, dtype: torch.dtype = BF16, gradient: bool = True) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=gradient)


def both_ways(output: Tensor, *inputs: Tensor) -> None:
    """The backward pass of what the forward pass has just put out."""
    torch.autograd.grad(output, inputs, torch.randn_like(output))


def linear(tokens: int, inputs: int, outputs: int, dtype: torch.dtype = BF16, bias: bool = False) -> None:
    x, weight = normal(tokens, inputs, dtype=dtype), normal(outputs, inputs, dtype=dtype)
    if bias:
        shift = normal(outputs, dtype=dtype)
        both_ways(F.linear(x, weight, shift), x, weight, shift)
    else:
        both_ways(F.linear(x, weight), x, weight)


def tf32(case: Case) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    case()
    torch.backends.cuda.matmul.allow_tf32 = False


def layers() -> Iterator[tuple[int, int]]:
    """Inputs and outputs of a transformer's linear layers, of one rank of up to eight tensor ranks."""
    seen = set()
    for hidden, ranks in itertools.product(HIDDEN, (1, 2, 4, 8)):
        for pair in (
            (hidden, 3 * hidden // ranks),
            (hidden // ranks, hidden),
            (hidden, 4 * hidden // ranks),
            (4 * hidden // ranks, hidden),
        ):
            if pair not in seen:
                seen.add(pair)
                yield pair
    yield from ((4096, 14336), (14336, 4096), (4096, 6144), (8192, 28672), (28672, 8192), (5120, 13824))
    yield from itertools.product((1024, 2048, 4096), (32000, 50304, 128256))


def products() -> Iterator[Case]:
    chosen = random.Random(SEED)
    shapes = [(m, k, n) for k, n in layers() for m in TOKENS if 2.0 * m * n * k < MOST_FLOPS]
    anywhere = [anywhere_in(chosen) for _ in range(120)]
    yield from (partial(linear, *s) for s in shapes + anywhere)
    yield from (partial(linear, *s, bias=True) for s in chosen.sample(shapes, 60))
    yield from (partial(linear, *s, dtype=FP16) for s in chosen.sample(shapes, 60))
    small = [s for s in shapes + anywhere if s[0] * s[1] * s[2] < MOST_FLOPS / 30]
    yield from (partial(linear, *s, dtype=FP32) for s in chosen.sample(small, 60))
    yield from (partial(tf32, partial(linear, *s, dtype=FP32)) for s in chosen.sample(small, 60))


def anywhere_in(chosen: random.Random) -> tuple[int, int, int]:
    """Three sizes from 64 to 16,384."""
    m, k, n = (64 * round(2 ** chosen.uniform(0, 8)) for _ in range(3))
    return m, k, n


def unaligned() -> Iterator[Case]:
    """16-bit products whose rows are of no multiple of 16 bytes."""
    for tokens, hidden in itertools.product((1024, 4096, 8192), (512, 1020, 2044, 4092)):
        yield partial(linear, tokens, hidden, 4 * hidden)
    for tokens, hidden in itertools.product((1024, 4096, 8192), (768, 2048, 4096)):
        yield partial(linear, tokens, hidden, 50257)
        yield partial(linear, tokens, hidden, hidden + 4)
        yield partial(linear, tokens, hidden, hidden + 2)
        yield partial(linear, tokens, hidden + 1, hidden)


def batched() -> Iterator[Case]:
    """Scores and values of attention that is not fused."""

    def case(batch: int, tokens: int, head: int, dtype: torch.dtype) -> None:
        q, k = normal(batch, tokens, head, dtype=dtype), normal(batch, tokens, head, dtype=dtype)
        both_ways(torch.bmm(q, k.transpose(1, 2)), q, k)
        scores, v = normal(batch, tokens, tokens, dtype=dtype), normal(batch, tokens, head, dtype=dtype)
        both_ways(torch.bmm(scores, v), scores, v)

    for batch, tokens, head in itertools.product((16, 64, 128), (256, 512, 1024, 2048, 4096), (64, 80, 128)):
        if batch * tokens * tokens <= 2**30:
            yield partial(case, batch, tokens, head, BF16)
    for tokens in (256, 1024):
        yield partial(case, 32, tokens, 64, FP16)
        yield partial(case, 32, tokens, 64, FP32)


def scaled() -> Iterator[Case]:
    """FP8, scaled by tensor and by row."""

    def case(tokens: int, inputs: int, outputs: int, rowwise: bool) -> None:
        a = normal(tokens, inputs, gradient=False).to(torch.float8_e4m3fn)
        b = normal(outputs, inputs, gradient=False).to(torch.float8_e4m3fn).t()
        one = ((tokens, 1), (1, outputs)) if rowwise else ((), ())
        of_a, of_b = (torch.ones(shape, device="cuda") for shape in one)
        torch._scaled_mm(a, b, of_a, of_b, out_dtype=BF16)

    chosen = random.Random(SEED)
    shapes = [(m, k, n) for k, n in layers() for m in TOKENS if 2.0 * m * n * k < MOST_FLOPS]
    for shape in chosen.sample(shapes, 90):
        yield partial(case, *shape, rowwise=False)
    for shape in chosen.sample(shapes, 30):
        yield partial(case, *shape, rowwise=True)


def attention() -> Iterator[Case]:
    def case(backend: SDPBackend, batch: int, heads: int, tokens: int, head: int, causal: bool) -> None:
        q, k, v = (normal(batch, tokens, heads, head).transpose(1, 2) for _ in range(3))
        with sdpa_kernel(backend):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        both_ways(y, q, k, v)

    backends = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    sizes = [
        (max(1, total // tokens), heads, tokens, head)
        for total in (2048, 16384)
        for tokens in (256, 512, 1024, 2048, 4096, 8192, 16384)
        for heads, head in ((12, 64), (16, 64), (32, 64), (8, 128), (32, 128), (40, 128), (16, 96))
        if tokens <= total
    ]
    for backend, size in itertools.product(backends, sizes):
        yield partial(case, backend, *size, causal=True)
    for backend, size in itertools.product(backends, sizes[::4]):
        yield partial(case, backend, *size, causal=False)
    for tokens in (1024, 4096):
        yield partial(case, backends[0], 2, 16, tokens, 256, causal=True)
        yield partial(case, backends[0], 4, 16, tokens, 80, causal=True)


def norms() -> Iterator[Case]:
    def layer(rows: int, hidden: int, dtype: torch.dtype) -> None:
        x, weight, bias = (
            normal(rows, hidden, dtype=dtype),
            normal(hidden, dtype=dtype),
            normal(hidden, dtype=dtype),
        )
        both_ways(F.layer_norm(x, (hidden,), weight, bias), x, weight, bias)

    def rms(rows: int, hidden: int, dtype: torch.dtype) -> None:
        x, weight = normal(rows, hidden, dtype=dtype), normal(hidden, dtype=dtype)
        both_ways(F.rms_norm(x, (hidden,), weight), x, weight)

    for size in itertools.product((1024, 4096, 16384, 65536), (512, *HIDDEN), (BF16, FP32)):
        if size[0] * size[1] <= 2**28:
            yield partial(layer, *size)
            yield partial(rms, *size)


def group(shape: tuple[int, int, int, int], groups: int) -> None:
    x = normal(*shape)
    weight, bias = normal(x.size(1), dtype=x.dtype), normal(x.size(1), dtype=x.dtype)
    both_ways(F.group_norm(x, groups, weight, bias), x, weight, bias)


def softmaxes() -> Iterator[Case]:
    def softmax(rows: int, columns: int, dtype: torch.dtype) -> None:
        x = normal(rows, columns, dtype=dtype)
        both_ways(torch.softmax(x, -1), x)

    def cross_entropy(tokens: int, vocabulary: int, dtype: torch.dtype) -> None:
        x = normal(tokens, vocabulary, dtype=dtype)
        target = torch.randint(vocabulary, (tokens,), device="cuda")
        torch.autograd.grad(F.cross_entropy(x, target), x)

    for columns in (128, 512, 1024, 2048, 4096, 8192, 16384, 50304):
        for total, dtype in itertools.product((2**22, 2**26), (BF16, FP32)):
            yield partial(softmax, total // columns, columns, dtype)
    for size in itertools.product((1024, 4096, 8192), (32000, 50257, 50304, 128256), (BF16, FP32)):
        yield partial(cross_entropy, *size)


COUNTS = tuple(2**n for n in range(14, 29, 2))


def elementwise() -> Iterator[Case]:
    """Chains over vectors of each length, and kernels that find their elements by strides."""

    def chain(count: int, dtype: torch.dtype) -> None:
        x, y = normal(count, dtype=dtype), normal(count, dtype=dtype)
        for call in (F.gelu, F.silu, F.relu, torch.tanh, torch.exp, lambda x: F.dropout(x, 0.1)):
            both_ways(call(x), x)
        both_ways(F.gelu(x, approximate="tanh"), x)
        a, b = x.detach(), y.detach()
        a + b, a * b, a * 0.5, a - b, a / 3, torch.where(a > 0, a, b), a.pow(2), a.rsqrt(), -a
        a.add_(b), a.add_(b, alpha=0.5), a.mul_(0.9), a.copy_(b), a.clone(), a.zero_(), a.fill_(1.0)
        a.to(FP32 if dtype == BF16 else BF16), a.isfinite(), torch.empty_like(a).uniform_()

    def broadcast(rows: int, columns: int) -> None:
        x, bias = normal(rows, columns, gradient=False), normal(columns, gradient=False)
        x + bias, x * x.mean(-1, keepdim=True), x.t().contiguous(), torch.cat((x, x), -1), torch.cat((x, x))
        x.masked_fill(x > 1, 0.0), x[:, : columns // 2] * 2, x.view(rows, -1, 64).transpose(0, 1).contiguous()
        torch.stack(x.chunk(2, -1)), x.float(), x.tril() if rows == columns else None
        pairs = x.float().view(rows, -1, 2)
        torch.view_as_complex(pairs) * torch.view_as_complex(pairs)

    for size in itertools.product(COUNTS, (BF16, FP32)):
        yield partial(chain, *size)
    for rows, columns in itertools.product((1024, 4096, 16384), (1024, 4096, 8192)):
        yield partial(broadcast, rows, columns)


def reductions() -> Iterator[Case]:
    def case(rows: int, columns: int, dtype: torch.dtype) -> None:
        x = normal(rows, columns, dtype=dtype, gradient=False)
        (
            x.sum(),
            x.sum(0),
            x.sum(-1),
            x.mean(-1),
            x.amax(-1),
            x.amax(),
            x.norm(),
            x.argmax(-1),
            x.float().sum(0),
        )
        x.var(-1), torch.cumsum(x, 0)

    for size in itertools.product((256, 4096, 16384), (512, 4096, 16384), (BF16, FP32)):
        yield partial(case, *size)


def lookups() -> Iterator[Case]:
    def embedding(tokens: int, vocabulary: int, hidden: int, dtype: torch.dtype) -> None:
        table = normal(vocabulary, hidden, dtype=dtype)
        index = torch.randint(vocabulary, (tokens,), device="cuda")
        both_ways(F.embedding(index, table), table)

    def indexing(tokens: int, hidden: int) -> None:
        x = normal(tokens, hidden, gradient=False)
        order = torch.randperm(tokens, device="cuda")
        x.index_select(0, order), x[order], torch.zeros_like(x).index_add_(0, order, x)
        wide = order[:, None].expand(-1, hidden)
        (
            x.gather(0, wide),
            torch.zeros_like(x).scatter_add_(0, wide, x),
            torch.zeros_like(x).scatter_(0, wide, x),
        )

    def routing(tokens: int, experts: int) -> None:
        scores = normal(tokens, experts, dtype=FP32, gradient=False).softmax(-1)
        _, chosen = scores.topk(2)
        torch.zeros_like(scores).scatter_(1, chosen, 1.0), torch.sort(chosen.flatten())
        torch.argsort(chosen.flatten(), stable=True), torch.bincount(chosen.flatten(), minlength=experts)

    sizes = (
        (2048, 32000, 2048),
        (8192, 50304, 768),
        (8192, 50304, 4096),
        (16384, 128256, 4096),
        (4096, 1024, 768),
    )
    for size, dtype in itertools.product(sizes, (BF16, FP32)):
        yield partial(embedding, *size, dtype)
    for tokens, hidden in itertools.product((2048, 8192, 32768), (768, 4096)):
        yield partial(indexing, tokens, hidden)
    for tokens, experts in itertools.product((2048, 16384), (8, 64)):
        yield partial(routing, tokens, experts)


def copies() -> Iterator[Case]:
    def case(count: int) -> None:
        pinned, device = (
            torch.zeros(count, dtype=torch.uint8, pin_memory=True),
            torch.zeros(count, dtype=torch.uint8, device="cuda"),
        )
        pageable = torch.zeros(count, dtype=torch.uint8)
        device.copy_(pinned, non_blocking=True), pinned.copy_(device), device.copy_(pageable), device.cpu()
        device.clone(), torch.zeros_like(device)

    for count in (2**10, 2**14, 2**18, 2**22, 2**26):
        yield partial(case, count)


def convolutions() -> Iterator[Case]:
    def case(
        shape: tuple[int, int, int, int],
        outputs: int,
        taps: int,
        stride: int,
        groups: int,
        dtype: torch.dtype,
        last: bool,
    ) -> None:
        layout = torch.channels_last if last else torch.contiguous_format
        x = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=layout)
        weight = torch.randn(outputs, shape[1] // groups, taps, taps, device="cuda", dtype=dtype).to(
            memory_format=layout
        )
        arguments = ([stride] * 2, [taps // 2] * 2, [1, 1], False, [0, 0], groups)
        y = torch.ops.aten.convolution(x, weight, None, *arguments)
        gradient = torch.randn_like(y)
        for mask in ([True, False, False], [False, True, False]):  # of inputs, of weights: told apart
            torch.ops.aten.convolution_backward(gradient, x, weight, [0], *arguments, mask)

    resnet = [
        (3, 224, 64, 7, 2),
        (64, 56, 64, 1, 1),
        (64, 56, 64, 3, 1),
        (64, 56, 256, 1, 1),
        (256, 56, 64, 1, 1),
        (256, 56, 128, 1, 1),
        (128, 56, 128, 3, 2),
        (128, 28, 512, 1, 1),
        (512, 28, 128, 1, 1),
        (128, 28, 128, 3, 1),
        (512, 28, 256, 1, 1),
        (256, 28, 256, 3, 2),
        (256, 14, 1024, 1, 1),
        (1024, 14, 256, 1, 1),
        (256, 14, 256, 3, 1),
        (1024, 14, 512, 1, 1),
        (512, 14, 512, 3, 2),
        (512, 7, 2048, 1, 1),
        (2048, 7, 512, 1, 1),
        (512, 7, 512, 3, 1),
    ]
    unet = [
        (320, 64, 320, 3, 1),
        (640, 32, 640, 3, 1),
        (1280, 16, 1280, 3, 1),
        (4, 64, 320, 3, 1),
        (320, 64, 640, 1, 1),
    ]
    for inputs, side, outputs, taps, stride in resnet:
        for batch, dtype, last in (
            (32, BF16, True),
            (128, BF16, True),
            (128, BF16, False),
            (64, FP32, False),
        ):
            yield partial(case, (batch, inputs, side, side), outputs, taps, stride, 1, dtype, last)
    for (inputs, side, outputs, taps, stride), last in itertools.product(unet, (True, False)):
        yield partial(case, (8, inputs, side, side), outputs, taps, stride, 1, BF16, last)
    for width, side in ((96, 56), (192, 28), (384, 14), (768, 7)):  # ConvNeXt's
        yield partial(case, (64, width, side, side), width, 7, 1, width, BF16, True)


def images() -> Iterator[Case]:
    """Around convolutions: normalisation, pooling."""

    def batch_norm(shape: tuple[int, int, int, int], dtype: torch.dtype, last: bool) -> None:
        layout = torch.channels_last if last else torch.contiguous_format
        x = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
        norm = nn.BatchNorm2d(shape[1], device="cuda")
        both_ways(norm(x), x, norm.weight, norm.bias)
        both_ways(F.relu(x), x)

    for channels, side in ((64, 112), (256, 56), (512, 28), (1024, 14), (2048, 7)):
        for dtype, last in itertools.product((BF16, FP32), (True, False)):
            yield partial(batch_norm, (64, channels, side, side), dtype, last)
    yield lambda: both_ways(F.max_pool2d(x := normal(64, 64, 112, 112), 3, 2, 1), x)
    yield lambda: both_ways(F.adaptive_avg_pool2d(x := normal(64, 2048, 7, 7), 1), x)
    for channels, side in ((320, 64), (640, 32), (1280, 16)):
        yield partial(group, (8, channels, side, side), 32)


def optimizers() -> Iterator[Case]:
    """A step of each over a transformer's parameters, which differ in how many and how large they are."""

    def parameters(layer_count: int, hidden: int) -> list[nn.Parameter]:
        shapes: Sequence[tuple[int, ...]] = [
            (3 * hidden, hidden),
            (hidden, hidden),
            (4 * hidden, hidden),
            (hidden, 4 * hidden),
        ]
        shapes = [*shapes, (3 * hidden,), (hidden,), (4 * hidden,), *[(hidden,)] * 5]
        made = [nn.Parameter(normal(*shape, dtype=FP32, gradient=False)) for shape in shapes * layer_count]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        return made

    def case(size: tuple[int, int]) -> None:
        held = parameters(*size)
        torch.optim.AdamW(held, lr=1e-4, foreach=True).step()
        torch.optim.AdamW(held, lr=1e-4, fused=True).step()
        torch.optim.SGD(held, lr=1e-4, momentum=0.9, foreach=True).step()
        nn.utils.clip_grad_norm_(held, 1.0)
        nn.utils.get_total_norm([p.grad for p in held if p.grad is not None], foreach=True)
        torch._foreach_zero_([p.grad for p in held if p.grad is not None])

    for size in ((2, 512), (12, 768), (24, 1024), (8, 4096), (32, 256)):
        yield partial(case, size)


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    family.__name__: family
    for family in (
        products, unaligned, batched, scaled, attention, norms, softmaxes, elementwise, reductions, lookups, copies,
        convolutions, images, optimizers,
    )
}  # fmt: skip


def runs(case: Case) -> bool:
    """Whether this device does it: not all have every size of every library."""
    try:
        case()
    except (RuntimeError, ValueError) as error:
        print(f"left out: {str(error).strip().splitlines()[0]}", flush=True)
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)}; default: all but the last")
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    families = args.families or [name for name in FAMILIES if name != "optimizers"]
    if "optimizers" in families and len(families) > 1:
        parser.error("the steps of optimizers are iterations themselves: they run alone")
    torch.manual_seed(SEED)
    cases = [case for name in families for case in FAMILIES[name]()]
    weight = nn.Parameter(torch.ones(8, device="cuda"))
    step = torch.optim.SGD([weight], lr=0.1)  # its steps show where an iteration ends
    for _ in range(args.iterations):
        cases = [case for case in cases if runs(case)]
        weight.grad = torch.ones_like(weight)
        step.step()
    torch.cuda.synchronize()
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
