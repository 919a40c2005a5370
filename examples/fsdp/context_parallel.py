"""Context parallelism: each rank has a share of every sequence, and attention rings."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import context_parallel


@contextmanager
def shared_sequences(
    mesh: DeviceMesh, tokens: torch.Tensor, labels: torch.Tensor, rotary: torch.Tensor | None
) -> Generator[None, None, None]:
    """Leaves this rank's share in tokens and labels [batch, seq] and, within, in rotary [seq, channels / 2].

    A share is two pieces, as far from the start as from the end: causal attention costs each rank as much.
    """
    buffers, dimensions = [tokens, labels], [1, 1]
    if rotary is not None:
        buffers.append(rotary)
        dimensions.append(0)
    with context_parallel(
        mesh, buffers=buffers, buffer_seq_dims=dimensions, no_restore_buffers={tokens, labels}
    ):
        yield
