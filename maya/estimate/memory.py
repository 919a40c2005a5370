"""Memory-bound work: bytes over the share of bandwidth that such kernels reach, plus a launch floor."""

from __future__ import annotations

from maya.clusters import Device
from maya.estimate.fits import fit_for
from maya.estimate.types import Provenance
from maya.trace.types import Memcpy, Memset

# Shares of the link that cudaMemcpyAsync reaches from pinned memory (25 of 32 GB/s on PCIe 4.0, 52 to 55 of
# 64 on 5.0, with bandwidthTest) and the staged rate of pageable memory: one core's memcpy into a pinned buffer.
_PINNED_SHARE = 0.82
_PAGEABLE_BANDWIDTH = 8e9
_COPY_SETUP_S = 1.5e-6


# A kernel finds in L2 what the one before it wrote, but not its other operands: about half, an assumption.
_WARM_SHARE = 0.5


def floor_seconds(device: Device) -> float:
    """What the shortest kernel costs in a busy stream."""
    return float(fit_for("memory", device, "elementwise").coefficients["floor_s"])


def bytes_seconds(moved: float, device: Device, variant: str = "elementwise") -> tuple[float, Provenance]:
    """Seconds of a kernel that reads and writes `moved` bytes; `variant` names the efficiency's fit."""
    fit = fit_for("memory", device, variant)
    efficiency = float(fit.coefficients["efficiency"])
    cached_rate = max(float(fit.coefficients.get("cached_rate", efficiency)), efficiency)
    held = _WARM_SHARE / (
        1 + (moved / device.l2_bytes) ** 2
    )  # in L2; the shape is fitted, scripts/fit/memory
    seconds = moved / device.memory_bandwidth * (held / cached_rate + (1 - held) / efficiency)
    return floor_seconds(device) + seconds, fit.provenance


def copy_seconds(copy: Memcpy, device: Device) -> tuple[float, Provenance]:
    if copy.direction == "d2d":
        return bytes_seconds(2.0 * copy.bytes, device)
    if copy.direction == "h2h":
        return _COPY_SETUP_S + copy.bytes / _PAGEABLE_BANDWIDTH, Provenance.ROOFLINE
    rate = _PINNED_SHARE * device.pcie_bandwidth
    if not copy.pinned:
        rate = min(rate, _PAGEABLE_BANDWIDTH)
    return _COPY_SETUP_S + copy.bytes / rate, Provenance.ROOFLINE


def memset_seconds(memset: Memset, device: Device) -> tuple[float, Provenance]:
    return bytes_seconds(float(memset.bytes), device)
