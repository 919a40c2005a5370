"""Embedding lookups: what reaches memory depends on how often a batch looks the same row up.

Lin et al. (Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms, 2024) describe each table by
its pooling factor, lookups a bag, and a histogram of reuse factors: how many of the lookups go to rows that the batch
looks up once, two or three times, four to seven times, and so on. Rows come from memory once; later lookups of a row
find it in L2 as far as the rows that are looked up fit there. Without a histogram lookups are taken as uniform.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from maya.clusters import Device
from maya.estimate.fits import fit_for
from maya.estimate.memory import floor_seconds
from maya.estimate.types import Provenance
from maya.trace.types import Kernel

# Share of a batch's lookups by reuse factor: entry i is that of rows looked up 2^i to 2^(i + 1) - 1 times.
Histogram = tuple[float, ...]
# By (rows, width) of a table.
Reuse = Mapping[tuple[int, int], Histogram]
UNIFORM: Reuse = MappingProxyType({})  # nothing is told of any table

_FORWARD = re.compile(r"EmbeddingBag_updateOutput|indexSelect|vectorized_gather_kernel")
_OPERATORS = ("aten::_embedding_bag", "aten::embedding", "aten::index_select", "aten::embedding_bag")
_SECTOR = 32  # bytes: the least that a load takes from memory
_INDEX_BYTES = 8


@dataclass(frozen=True)
class Lookup:
    """`lookups` rows of a table [rows, width], summed into `bags`; the pooling factor is lookups / bags."""

    rows: int
    width: int
    lookups: int
    bags: int
    item_bytes: int
    reuse: Histogram = ()

    @property
    def distinct(self) -> float:
        """Rows that the batch touches at least once."""
        if self.reuse:
            total = sum(self.reuse)
            # A bin holds factors 2^i .. 2^(i + 1) - 1: their mean.
            means = ((3 * 2.0**i - 1) / 2 for i in range(len(self.reuse)))
            return self.lookups * sum(s / total / m for s, m in zip(self.reuse, means, strict=True))
        # Balls into bins: rows (1 - (1 - 1 / rows)^lookups).
        return self.rows * -math.expm1(self.lookups * math.log1p(-1 / self.rows)) if self.rows > 1 else 1.0

    @property
    def row_bytes(self) -> int:
        return -(-self.width * self.item_bytes // _SECTOR) * _SECTOR


def recognise(kernel: Kernel, item_bytes: int, reuse: Reuse) -> Lookup | None:
    """The lookup that kernel makes, or None when it is another kernel or its operator's sizes do not tell."""
    if kernel.operator.name not in _OPERATORS or not _FORWARD.search(kernel.name):
        return None
    sizes = [size for size in kernel.operator.sizes if size]
    if len(sizes) < 2 or len(sizes[0]) != 2 or math.prod(sizes[0]) == 0:
        return None
    (rows, width), index = sizes[0], sizes[1]
    lookups = math.prod(index)
    bags = sizes[2][0] if "bag" in kernel.operator.name and len(sizes) > 2 else lookups
    return Lookup(rows, width, lookups, max(bags, 1), item_bytes, tuple(reuse.get((rows, width), ())))


def untouched_note(reuse: Reuse, lookups: Set[Lookup]) -> tuple[str, ...]:
    """Names the tables that were told of and that none of the job's `lookups` reads; nothing where there is none."""
    touched = {(lookup.rows, lookup.width) for lookup in lookups}
    untouched = [f"{rows} x {width}" for rows, width in sorted(reuse.keys() - touched)]
    if not untouched:
        return ()
    seen = ", ".join(f"{rows} x {width}" for rows, width in sorted(touched)) or "none"
    return (
        f"the lookups file tells of tables that the script looks nothing up in: {', '.join(untouched)}; "
        f"it does in: {seen}",
    )


def estimate_lookup(lookup: Lookup, device: Device) -> tuple[float, Provenance]:
    """Seconds of the forward pass."""
    if lookup.lookups == 0:
        return floor_seconds(device), Provenance.ROOFLINE
    fit = fit_for("memory", device, "elementwise")
    efficiency = float(fit.coefficients["efficiency"])
    cached_rate = max(float(fit.coefficients.get("cached_rate", efficiency)), efficiency)
    touched = min(lookup.distinct, lookup.lookups) * lookup.row_bytes
    again = max(lookup.lookups * lookup.row_bytes - touched, 0.0)
    held = again / (1 + (touched / device.l2_bytes) ** 2)
    streamed = lookup.bags * lookup.width * lookup.item_bytes + (lookup.lookups + lookup.bags) * _INDEX_BYTES
    memory = (touched + again - held + streamed) / efficiency
    seconds = (memory + held / cached_rate) / device.memory_bandwidth
    return floor_seconds(device) + seconds, Provenance.ROOFLINE
