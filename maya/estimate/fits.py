"""Fitted coefficients, shipped as JSON beside this file, and the choice of the fit that suits a device.

Each file holds entries: the device they were fitted on, the dtype (or other variant), the coefficients,
the public source with its licence, and the cross-validated error. `scripts/fit/` wrote them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from maya.clusters import Device
from maya.estimate.types import Provenance

HOME = Path(__file__).parent / "fits"

# Which dtype's or kind's fit stands in where a device has none of its own; tried in order.
_STAND_INS = {
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "tf32": ("bf16", "fp16"),
    "fp8": ("bf16",),
    "fp4": ("fp8", "bf16"),
    "int8": ("fp8", "bf16", "fp16"),
    "fp64": ("fp32",),
    "rms_norm": ("layer_norm",),
    "welford_norm": ("layer_norm",),
    "multi_tensor": ("elementwise",),
    "cudnn": ("native",),
    "efficient_fp32": ("efficient",),
    "odd output, transposed": ("odd output",),  # an A100's own before an H200's: so vTrain's fit share says
}


@dataclass(frozen=True, eq=False)  # told apart by identity, so that what follows from one can be kept by it
class Fit:
    """Coefficients for one device and variant; `own` when they were fitted on that very device."""

    device: str
    compute_capability: tuple[int, int]
    variant: str
    coefficients: dict[str, Any]
    source: str
    licence: str
    error: dict[str, Any]  # cross-validated: what was left out, how many points, relative errors
    both_passes: bool = False  # of attention: backward passes were fitted, too
    own: bool = True

    @property
    def provenance(self) -> Provenance:
        return Provenance.LEARNED if self.own else Provenance.BORROWED


@lru_cache
def entries(family: str) -> tuple[Fit, ...]:
    """All fits of a family: gemm, attention, memory, collective."""
    content = json.loads((HOME / f"{family}.json").read_text(encoding="utf-8"))
    return tuple(
        Fit(
            device=entry["device"],
            compute_capability=tuple(entry["compute_capability"]),
            variant=entry["variant"],
            coefficients=entry["coefficients"],
            source=entry["source"],
            licence=entry["licence"],
            error=entry["error"],
            both_passes=entry.get("both_passes", False),
        )
        for entry in content["entries"]
    )


def fit_for(family: str, device: Device, variant: str = "") -> Fit:
    """The device's own fit, else that of the nearest compute capability; the variant's before a stand-in's."""
    return _fit_for(family, device.key, device.compute_capability, variant)


@lru_cache
def _fit_for(family: str, key: str, capability: tuple[int, int], variant: str) -> Fit:
    ranked = (variant, *_STAND_INS.get(variant, ()))  # a family without variants has one fit a device

    def distance(fit: Fit) -> tuple[bool, int, bool, int, int]:
        kin = key.split("_")[0] == fit.device.split("_")[0]  # an A100 PCIe stands in for an A100 SXM
        major, minor = (abs(a - b) for a, b in zip(capability, fit.compute_capability, strict=True))
        rank = ranked.index(fit.variant) if fit.variant in ranked else len(ranked)
        return (rank == len(ranked), major, not kin, minor, rank)

    best = min(entries(family), key=distance)
    mine = best.device == key and (best.variant == variant or {best.variant, variant} == {"fp16", "bf16"})
    return Fit(**{**best.__dict__, "own": mine})
