"""How fast this machine's host is: the CPU time of a fixed piece of PyTorch, the same on every machine.

A small transformer trains on the CPU: the interpreter, PyTorch's dispatch, its autograd and an optimizer that loops
over parameters, with tensors so small that their arithmetic counts for little. That is what a training script's host
does, whatever the script; a script's own operators tell less, for each takes other ways through PyTorch in other
scripts. Imported only by the process that measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

# A neighbour disturbs a shared machine for a second, now and then, and then everything takes up to twice as long. So
# short spans are measured, with rests between, until the two fastest agree.
SPAN_SECONDS, REST_SECONDS = 0.08, 0.1
SPANS, MOST_SPANS = 4, 16
AGREE = 1.03
FEWEST = 8  # iterations of a span, however long they take
WARM = 5  # the first ones allocate, and fill the interpreter's inline caches
_HIDDEN, _HEADS, _SEQUENCES, _TOKENS, _VOCABULARY = 32, 4, 2, 4, 64


def main(result: Path) -> int:
    """Measures, and writes nanoseconds to `result`."""
    torch.set_num_threads(1)
    result.with_suffix(".partial").write_text(str(measure()))
    result.with_suffix(".partial").rename(result)
    return 0


def measure() -> int:
    """CPU time of an iteration, ns, in the span that neighbours disturbed least but one."""
    iterate = training()
    spans = [span(iterate)]
    while len(spans) < SPANS or (len(spans) < MOST_SPANS and spans[1] > spans[0] * AGREE):
        time.sleep(REST_SECONDS)
        spans = sorted([*spans, span(iterate)])
    return spans[1]


def span(iterate: Callable[[], None], seconds: float = SPAN_SECONDS) -> int:
    """CPU time of an iteration, ns: that which a tenth of the span's took at the most."""
    times: list[int] = []
    end = time.monotonic() + seconds
    while len(times) < FEWEST or time.monotonic() < end:
        began = time.thread_time_ns()
        iterate()
        times.append(time.thread_time_ns() - began)
    return sorted(times)[len(times) // 10]


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(_HIDDEN), nn.LayerNorm(_HIDDEN)
        self.qkv, self.out = nn.Linear(_HIDDEN, 3 * _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.up, self.down = nn.Linear(_HIDDEN, 4 * _HIDDEN), nn.Linear(4 * _HIDDEN, _HIDDEN)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """[sequences, tokens, hidden], as `x`."""
        shape = (*x.shape[:2], 3, _HEADS, _HIDDEN // _HEADS)
        q, k, v = self.qkv(self.attention_norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        weights = torch.softmax((q @ k.transpose(-1, -2)) / 8 + 0.1, -1)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.dropout(self.out(mixed))
        up = self.up(self.mlp_norm(x))
        gated: Tensor = self.dropout(self.down(up * torch.sigmoid(up)))
        return x + gated


def training() -> Callable[[], None]:
    """Takes one step of training at each call, the interpreter warm."""
    embedding = nn.Embedding(_VOCABULARY, _HIDDEN)
    blocks = nn.Sequential(_Block(), _Block())
    optimizer = torch.optim.AdamW([*embedding.parameters(), *blocks.parameters()], foreach=False)
    tokens = torch.arange(_SEQUENCES * _TOKENS).view(_SEQUENCES, _TOKENS)

    def iterate() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = blocks(embedding(tokens)).flatten(0, 1) @ embedding.weight.t()
        torch.autograd.backward(functional.cross_entropy(logits, tokens.flatten()))
        optimizer.step()

    for _ in range(WARM):
        iterate()
    return iterate


if __name__ == "__main__":
    print(measure())
