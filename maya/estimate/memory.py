"""Memory-bound work: bytes over the share of bandwidth that such kernels reach, or elements over the rate at which
multiprocessors find them, plus a launch floor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from maya.clusters import Device, Link
from maya.estimate import instructions
from maya.estimate.fits import fit_for
from maya.estimate.kernels import Traffic
from maya.estimate.types import Provenance
from maya.trace.types import Memcpy, Memset

# Shares of the link that cudaMemcpyAsync reaches from pinned memory (25 of 32 GB/s on PCIe 4.0, 52 to 55 of
# 64 on 5.0, with bandwidthTest) and the staged rate of pageable memory: one core's memcpy into a pinned buffer.
_PINNED_SHARE = 0.82
_PAGEABLE_BANDWIDTH = 8e9
# Of a link between devices, with p2pBandwidthLatencyTest on NVSwitch: 270 to 280 of 300 GB/s one way on an A100, 380 to
# 400 of 450 on an H100.
_PEER_SHARE = 0.88
_COPY_SETUP_S = 1.5e-6


# A kernel finds in L2 what the one before it wrote, but not its other operands: about half, an assumption.
_WARM_SHARE = 0.5

_STEEPNESS = 2  # of the change from rows that stay in L1 to rows that do not (scripts/fit/memory)
_BLOCKS_AT_A_TIME = 2  # of 1,024 threads, that a multiprocessor has
WAIT_S = 1.1e-6  # of a read that has to wait for another one's answer, both from device memory (scripts/fit/memory)


def floor_seconds(device: Device) -> float:
    """What the shortest kernel costs in a busy stream."""
    return float(fit_for("memory", device, "elementwise").coefficients["floor_s"])


def kernel_seconds(moved: Traffic, device: Device) -> tuple[float, Provenance]:
    """Seconds of a kernel in a busy stream."""
    fit = fit_for("memory", device, moved.variant)
    elementwise = fit_for("memory", device, "elementwise")
    answer = work_seconds(moved, device, elementwise.coefficients | fit.coefficients), fit.provenance
    if moved.work is not None:
        answer = max(answer, instructions.work_seconds(moved.work, device))
    return floor_seconds(device) + answer[0], answer[1]


def bytes_seconds(moved: float, device: Device) -> tuple[float, Provenance]:
    """Seconds of an element-wise kernel that reads and writes `moved` bytes."""
    return kernel_seconds(Traffic(moved), device)


def work_seconds(moved: Traffic, device: Device, coefficients: Mapping[str, float]) -> float:
    """What its bytes take of the memory's rate, or its elements and rows of its multiprocessors', without a launch.

    `coefficients`: `efficiency`, a share of the memory's bandwidth; `cached_rate`, that of what L2 holds (default: the
    same); `elements_per_clock` of one multiprocessor (default: no limit); `row_clocks` of one, that each row costs
    besides; `start_clocks` until generators of random numbers have started; `pass_s`, seconds of a block's pass over
    the rows that it adds up.
    """
    efficiency = coefficients["efficiency"]
    cached_rate = max(coefficients.get("cached_rate", efficiency), efficiency)
    streamed = moved.bytes + spilled_bytes(moved, device)
    # In L2; the shape is fitted, scripts/fit/memory.
    held = _WARM_SHARE / (1 + (streamed / device.l2_bytes) ** 2)
    streamed_s = streamed / device.memory_bandwidth * (held / cached_rate + (1 - held) / efficiency)
    idle_clocks = moved.clocks + coefficients.get("start_clocks", 0.0)
    waiting_s = moved.waits * WAIT_S + idle_clocks / device.clock_hz
    clocks = moved.elements / coefficients.get("elements_per_clock", math.inf)
    clocks += moved.rows * coefficients.get("row_clocks", 0.0)
    working = min(moved.blocks or math.inf, device.multiprocessors)
    turns = max(moved.blocks / (_BLOCKS_AT_A_TIME * device.multiprocessors), 1.0)
    added_s = moved.passes * coefficients.get("pass_s", 0.0) * turns
    return max(streamed_s, clocks / working / device.clock_hz, added_s) + waiting_s


def spilled_bytes(moved: Traffic, device: Device) -> float:
    """What later passes over a row fetch again, because the rows that a multiprocessor works on fill its L1 cache,
    which is about the shared memory that a block may have (both are cut from one memory)."""
    crowding = (moved.in_flight / device.shared_memory_per_block) ** _STEEPNESS
    return moved.again * crowding / (1 + crowding)


def copy_seconds(copy: Memcpy, device: Device, link: Link) -> tuple[float, Provenance]:
    """Seconds of a copy by a copy engine; `link`: between two devices, whichever (no record says which)."""
    if copy.direction == "p2p":
        setup_s = _COPY_SETUP_S + link.latency_s
        return setup_s + copy.bytes / (_PEER_SHARE * link.bandwidth), Provenance.ROOFLINE
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
