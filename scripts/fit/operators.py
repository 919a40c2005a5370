#!/usr/bin/env python3
"""The operators that Liger-Kernel times beside its own, called as its benchmarks call them.

  maya trace --cluster dgx-h200 --out DIR scripts/fit/operators.py all_benchmark_data.csv

The table is benchmark/data/all_benchmark_data.csv of linkedin/Liger-Kernel (BSD-2-Clause). Each timed call stands
between two fills whose lengths name it, so that `scripts/fit/memory` finds its kernels in the trace. Shapes, types and
what a call includes are those of Liger-Kernel's benchmark/scripts at the time of the measurements.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

MARK = 100_003  # elements of the fill after a timed call; that of the n-th call comes n longer before it

Timed = Callable[[], object]
Modes = dict[str, Callable[[], Timed]]  # forward, backward, full: sets up, returns what is timed


@dataclass(frozen=True, order=True)
class Case:
    """One timed call: which benchmark, what of it, and the size on its x axis."""

    benchmark: str
    mode: str
    size: int


@dataclass(frozen=True)
class Measurement:
    case: Case
    gpu: str
    seconds: float


def measurements(table: Path) -> Iterator[Measurement]:
    """The rows of the table that time PyTorch itself on a case that this script knows."""
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = (row["kernel_name"], row["x_name"]) in BENCHMARKS and row["metric_name"] == "speed"
            theirs = row["kernel_provider"] in ("huggingface", "torch", "megatron-unfused")
            if known and theirs and json.loads(row["extra_benchmark_config_str"]).get("TP", 1) == 1:
                case = Case(row["kernel_name"], row["kernel_operation_mode"], int(float(row["x_value"])))
                yield Measurement(case, row["gpu_name"], float(row["y_value_50"]) * 1e-3)


class RMSNorm(nn.Module):
    """As Hugging Face's models spell it: every operator a kernel."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(dtype)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def with_gradient(call: Callable[[], tuple[Tensor, ...]], *leaves: Tensor) -> Modes:
    """A call and its backward pass from gradients that are there; those of the leaves start as None."""

    def forward_then_backward() -> None:
        outputs = call()
        torch.autograd.backward(outputs, tuple(torch.empty_like(y) for y in outputs))

    def backward() -> Timed:
        outputs = call()
        gradients = tuple(torch.empty_like(y) for y in outputs)

        def timed() -> None:
            for leaf in leaves:
                leaf.grad = None
            torch.autograd.backward(outputs, gradients, retain_graph=True)

        return timed

    return {
        "forward": lambda: call,
        "backward": backward,
        "full": lambda: forward_then_backward,
    }


def of_sum(call: Callable[[], Tensor], leaf: Tensor, *, accumulates: bool = False) -> Modes:
    """A call; its "backward" mode times the call and the backward pass of its sum, "full" the same, which in some
    benchmarks adds to the gradient of the call before."""

    def whole() -> None:
        leaf.grad = None
        torch.autograd.backward(call().sum())

    def again() -> Timed:
        leaf.grad = torch.empty_like(leaf)
        return lambda: torch.autograd.backward(call().sum())

    return {
        "forward": lambda: call,
        "backward": lambda: whole,
        "full": again if accumulates else lambda: whole,
    }


def layer_norm(hidden: int) -> Modes:
    norm, x = nn.LayerNorm(hidden, eps=1e-6).to("cuda"), random(4096, hidden)
    return with_gradient(lambda: (norm(x),), x)


def rms_norm(hidden: int) -> Modes:
    norm, x = RMSNorm(hidden), random(2048, hidden, dtype=torch.bfloat16)
    return with_gradient(lambda: (norm(x),), x)


def fused_rms_norm(hidden: int) -> Modes:
    norm = nn.RMSNorm(hidden, eps=1e-6).to("cuda", torch.bfloat16)
    x = random(4096, 1, hidden, dtype=torch.bfloat16)
    return of_sum(lambda: norm(x), x, accumulates=True)


def fused_add_rms_norm(hidden: int) -> Modes:
    norm, x, residual = RMSNorm(hidden), random(2048, hidden), random(2048, hidden)

    def call() -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm(total), total

    return with_gradient(call, x, residual)


def relu_squared(hidden: int) -> Modes:
    x = random(4096, hidden, dtype=torch.bfloat16)
    return with_gradient(lambda: (torch.square(F.relu(x)),), x)


def swiglu(width: int) -> Modes:
    x = random(2048, 4, 2 * width, dtype=torch.bfloat16)

    def call() -> Tensor:
        gate, up = torch.chunk(x, 2, -1)
        return F.silu(gate) * up

    return of_sum(call, x)


def cross_entropy(vocabulary: int) -> Modes:
    target = torch.randint(vocabulary, (16384,), device="cuda")
    x, loss = random(16384, vocabulary), nn.CrossEntropyLoss()
    modes = of_sum(lambda: loss(x, target), x, accumulates=True)
    return {mode: modes[mode] for mode in ("forward", "full")}


def vocab_parallel_cross_entropy(vocabulary: int) -> Modes:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl")
        parallel_state.initialize_model_parallel()
    target = torch.randint(vocabulary, (2048, 4), device="cuda")
    x = random(2048, 4, vocabulary, dtype=torch.bfloat16)
    return of_sum(lambda: vocab_parallel_cross_entropy(x, target, 0.0), x)


QUERIES, KEYS, HEAD = 32, 8, 256  # heads and their dimension in both benchmarks of rotary embeddings


def rotary(length: int) -> Modes:
    """Hugging Face's, on heads that are transposed views."""
    queries = random(1, length, QUERIES, HEAD, dtype=torch.bfloat16).transpose(1, 2)
    keys = random(1, length, KEYS, HEAD, dtype=torch.bfloat16).transpose(1, 2)
    cosine, sine = (torch.randn(1, 1, length, HEAD, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def turned(x: Tensor) -> Tensor:
        half = torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), dim=-1)
        return x * cosine + half * sine

    return of_views(lambda: (turned(queries), turned(keys)), queries, keys)


def complex_rotary(length: int) -> Modes:
    """Llama 4's, of complex numbers."""
    queries = random(1, length, QUERIES, HEAD, dtype=torch.bfloat16)
    keys = random(1, length, KEYS, HEAD, dtype=torch.bfloat16)
    turn = torch.randn(1, length, 1, HEAD // 2, device="cuda", dtype=torch.complex64)

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(3).type_as(x)

    return of_views(lambda: (turned(queries), turned(keys)), queries, keys)


def of_views(call: Callable[[], tuple[Tensor, ...]], *inputs: Tensor) -> Modes:
    """A call on views, of which gradients are asked by name."""
    gradients = tuple(torch.randn_like(y) for y in inputs)

    def backward() -> Timed:
        outputs = call()
        return lambda: torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)

    return {
        "forward": lambda: call,
        "backward": backward,
        "full": lambda: lambda: torch.autograd.grad(call(), inputs, gradients),
    }


# By the benchmark's name and that of its x axis.
BENCHMARKS: dict[tuple[str, str], Callable[[int], Modes]] = {
    ("layer_norm", "N"): layer_norm,
    ("rms_norm", "H"): rms_norm,
    ("megatron_rms_norm", "H"): fused_rms_norm,
    ("fused_add_rms_norm", "H"): fused_add_rms_norm,
    ("relu_squared", "N"): relu_squared,
    ("megatron_swiglu", "ffn_local"): swiglu,
    ("cross_entropy", "V"): cross_entropy,
    ("megatron_cross_entropy", "V"): vocab_parallel_cross_entropy,
    ("rope", "T"): rotary,
    ("llama4_rope", "T"): complex_rotary,
}


def mark(number: int) -> None:
    torch.full((MARK + number,), 1.0, device="cuda", dtype=torch.float64)


def main() -> None:
    cases = sorted({measurement.case for measurement in measurements(Path(sys.argv[1]))})
    setups = {name: setup for (name, _), setup in BENCHMARKS.items()}
    weight = nn.Linear(8, 8).to("cuda")
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    for _ in range(3):  # its steps show where an iteration ends
        optimizer.zero_grad()
        weight(torch.ones(8, 8, device="cuda")).sum().backward()
        optimizer.step()
        for number, case in enumerate(cases, start=1):
            modes = setups[case.benchmark](case.size)
            if case.mode in modes:
                timed = modes[case.mode]()
                mark(number)
                timed()
                mark(0)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
