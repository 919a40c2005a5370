"""Sequences of unlike lengths that lie one after the other (jagged nested tensors, flash's varlen interface).

How long each is lies on the device. The operator's tensors have all of their tokens, and how many sequences there are;
the grid has the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

from maya.trace.types import Kernel

Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Packed:
    """Query and key tokens of `sequences`, the longest of which has `longest` where it is known."""

    sequences: int
    queries: int
    keys: int
    heads: int
    head_dim: int
    longest: int = 0

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key of its own sequence: at least as of equal lengths, at the most as if each query
        saw as many keys as the longest sequence has. Halfway between: lengths that are spread evenly from none to the
        longest have an eighth fewer, equal ones none."""
        mean = self.keys / self.sequences
        return self.queries * (mean + max(self.longest, mean)) / 2


def recognise(kernel: Kernel, backward: bool, longest: int) -> Packed | None:
    """None for tensors with an axis of sequences. The ends of sequences are the operator's first vector."""
    sizes = kernel.operator.sizes
    ends = next((size[0] for size in sizes if len(size) == 1), 0)
    tensors = [size for size in sizes if len(size) in (3, 4)][: 3 if backward else 2]
    if len(tensors) < 2 or ends < 2:
        return None
    queries, keys = tensors[-2], tensors[-1]
    alone = len(queries) == 3 or (
        queries[0] == 1 and ends > 2
    )  # else there is an axis for one sequence, which is all
    if not alone or len(queries) != len(keys):
        return None
    return Packed(ends - 1, queries[-3], keys[-3], queries[-2], queries[-1], min(longest, keys[-3]))


def note(sequences: int) -> tuple[str, ...]:
    """Says what is assumed of attention over so many sequences at a time; nothing where there was none."""
    if not sequences:
        return ()
    return (
        f"attention over {sequences:,} sequences of unlike lengths, known only on the device: taken to be halfway "
        "between equal lengths and the longest",
    )
