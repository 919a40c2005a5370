"""How fast this machine's host is: the CPU time of a fixed piece of PyTorch, the same on every machine.

A small transformer trains on the CPU: the interpreter, PyTorch's dispatch, its autograd and an optimizer that loops
over parameters, with tensors so small that their arithmetic counts for little. That is what a training script's host
does, whatever the script; a script's own operators tell less, for each takes other ways through PyTorch in other
scripts. It trains in a process of its own beside the ranks, now and then, and each of its pieces counts as the least of
it took: what disturbs the machine is kept out of the ranks' host time in the same way (trace/host.py). Imported only by
the process that measures.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from maya.launch.paces import Pace

SPAN_SECONDS = 0.03
REST_SECONDS, MOST_REST_SECONDS = 0.1, 1.0
LONGER = 0.02  # a rest, with each second
WARM = 5  # the first ones allocate, and fill the interpreter's inline caches
_HIDDEN, _HEADS, _SEQUENCES, _TOKENS, _VOCABULARY = 32, 4, 2, 4, 64


def main(result: Path, cores: list[int]) -> int:
    """Measures on `cores` in turn until it is killed, and adds a line to `result` for each span; often at first, since
    the job may be short."""
    torch.set_num_threads(1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else optimizers count devices, up to four times a step
    began = time.monotonic()
    iterate = training()
    with result.open("a") as lines:
        for core in itertools.cycle(cores):
            os.sched_setaffinity(0, [core])
            pace = span(iterate)
            lines.write(pace.written() + "\n")
            lines.flush()
            time.sleep(min(REST_SECONDS + LONGER * (pace.at - began), MOST_REST_SECONDS))
    return 0


def span(iterate: Callable[[], list[int]], seconds: float = SPAN_SECONDS) -> Pace:
    """Of as many iterations as begin in that time."""
    found: list[NDArray[np.int64]] = []
    end = time.monotonic() + seconds
    while not found or time.monotonic() < end:
        found.append(np.diff(iterate()))
    return Pace(time.monotonic(), len(found), tuple(np.min(found, axis=0).tolist()))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(_HIDDEN), nn.LayerNorm(_HIDDEN)
        self.qkv, self.out = nn.Linear(_HIDDEN, 3 * _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.up, self.down = nn.Linear(_HIDDEN, 4 * _HIDDEN), nn.Linear(4 * _HIDDEN, _HIDDEN)
        self.dropout = nn.Dropout(0.1)

    def attention(self, x: Tensor) -> Tensor:
        """[sequences, tokens, hidden], as `x`."""
        shape = (*x.shape[:2], 3, _HEADS, _HIDDEN // _HEADS)
        q, k, v = self.qkv(self.attention_norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        weights = torch.softmax((q @ k.transpose(-1, -2)) / 8 + 0.1, -1)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(x.shape)
        attended: Tensor = x + self.dropout(self.out(mixed))
        return attended

    def mlp(self, x: Tensor) -> Tensor:
        """[sequences, tokens, hidden], as `x`."""
        up = self.up(self.mlp_norm(x))
        gated: Tensor = self.dropout(self.down(up * torch.sigmoid(up)))
        return x + gated


def training() -> Callable[[], list[int]]:
    """Takes one step of training at each call, the interpreter warm; returns the thread's CPU time, ns, at the edges of
    its pieces: each a half of a block's forward or backward pass, or a part's optimizer step."""
    embedding = nn.Embedding(_VOCABULARY, _HIDDEN)
    blocks = [_Block(), _Block()]
    optimizers = [torch.optim.AdamW(part.parameters(), foreach=False) for part in (embedding, *blocks)]
    tokens = torch.arange(_SEQUENCES * _TOKENS).view(_SEQUENCES, _TOKENS)

    def iterate() -> list[int]:
        edges = [time.thread_time_ns()]

        def edge(_: Tensor | None = None) -> None:
            edges.append(time.thread_time_ns())

        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        x = embedding(tokens)
        for block in blocks:
            for half in (block.attention, block.mlp):
                x.register_hook(edge)
                edge()
                x = half(x)
        edge()
        loss = functional.cross_entropy((x.flatten(0, 1) @ embedding.weight.t()), tokens.flatten())
        edge()
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            edge()
            optimizer.step()
        edge()
        return edges

    for _ in range(WARM):
        iterate()
    return iterate
