"""How much of a device an operation takes while it runs alone: what is left, another stream's work can have."""

from __future__ import annotations

from maya.clusters import Device
from maya.estimate import attention, gemm, grouped, lapack, tensor_cores
from maya.estimate.memory import floor_seconds
from maya.trace.types import Collective, Convolution, Gemm, Kernel, Lapack, Memcpy, Operation

# Shares of the peak rate and of the memory bandwidth from which on a product leaves nothing over: what large ones reach
# of either. Assumptions; no measurement of products on two streams was at hand.
_FULL_RATE = 0.6
_FULL_BANDWIDTH = 0.8


def occupies_device(operation: Operation) -> bool:
    """Not so collectives, and copies to the host or to other devices, which have engines of their own."""
    return not isinstance(operation, Collective | Memcpy) or (
        isinstance(operation, Memcpy) and operation.direction == "d2d"
    )


def demand(operation: Operation, seconds: float, flops: float, device: Device) -> float:
    """Share of the multiprocessors (products, convolutions, attention) or else of the memory bandwidth; 0: neither,
    as of copies to the host or to other devices, which have engines of their own.

    `seconds` are those that the operation takes alone, `flops` its floating-point operations.
    """
    if not occupies_device(operation) or seconds <= 0:
        return 0.0
    match operation:
        case Gemm():
            rates = gemm.Rates.of(device, gemm.math_dtype(operation, device))
            moved = (
                rates.moved_bytes(operation.m, operation.n, operation.k, operation.batch) / rates.bandwidth
            )
            busy = max(flops / rates.peak / _FULL_RATE, moved / _FULL_BANDWIDTH) / seconds
            return min(busy, gemm.share_left(operation, device))
        case Convolution():
            return 1.0
        case Lapack():
            return lapack.demand(operation, device)
        case Kernel() if (products := grouped.recognise(operation)) is not None:
            return demand(products, seconds, flops, device)
        case Kernel() if attention.recognise(operation) is not None or tensor_cores.counted_flops(operation):
            return tensor_cores.occupied(operation, device)
    return max(1.0 - floor_seconds(device) / seconds, 0.0)
