"""Convolutions as the matrix products they are lowered to (implicit GEMM: Chetlur et al., cuDNN, 2014)."""

from __future__ import annotations

import math

from maya.clusters import Device
from maya.estimate.fits import Fit, fit_for
from maya.estimate.gemm import ITEM_BYTES, Rates, model_seconds
from maya.estimate.types import Provenance
from maya.trace.types import Convolution

# Gathering the operand rows costs an implicit product against a plain one of the same size: channels-last ones of
# scripts/measure/operations.py on an H200, whose median it is. Those of one tap take as long as the plain product.
_GATHER = 1.08
# Of the memory's bandwidth, where contiguous tensors are turned to channels-last and back, likewise.
_CONVERSION_SHARE = 0.4
_ALIGNED_BYTES = 16  # that tensor cores' operands begin at multiples of
# FLOP a clock and multiprocessor of a filter for each channel: four 7 x 7 ones there.
_DEPTHWISE_RATES = {"forward": 38.0, "backward_data": 22.0, "backward_filter": 49.0}


def flops(convolution: Convolution) -> float:
    """2 N K P Q (C / groups) R S, the same for the three passes."""
    taps = math.prod(convolution.filter[1:])  # [k, c / groups, r, s]
    return 2.0 * math.prod(convolution.output) * taps


def computed_in(convolution: Convolution, device: Device) -> str:
    """fp32 is multiplied as TF32 where a device can: torch.backends.cudnn.allow_tf32 is on by default."""
    single = convolution.dtype == "fp32" and "tf32" in device.peak_flops
    return "tf32" if single else convolution.dtype


def estimate_convolution(convolution: Convolution, device: Device) -> tuple[float, Provenance]:
    dtype = computed_in(convolution, device)
    item = ITEM_BYTES.get(dtype.split("_")[0], 4)
    fit = fit_for("gemm", device, dtype)
    share = float(fit.coefficients["memory_efficiency"])
    tensors = (convolution.input, convolution.output, convolution.filter)
    touched = item * sum(map(math.prod, tensors))
    # Small filters re-read the input from cache, not from memory: the unfolded operand's bytes are no bound.
    floor = float(fit.coefficients["launch_s"]) + touched / (device.memory_bandwidth * share)
    if 1 < convolution.groups == convolution.input[1]:
        rate = _DEPTHWISE_RATES[convolution.direction] * device.multiprocessors * device.clock_hz
        return max(flops(convolution) / rate, floor), Provenance.ROOFLINE
    seconds = _implicit_product(convolution, device, fit, dtype, item)
    if _is_converted(convolution, dtype, item):
        seconds += 2 * touched / (device.memory_bandwidth * _CONVERSION_SHARE)
    return max(seconds, floor), Provenance.ROOFLINE


def _implicit_product(convolution: Convolution, device: Device, fit: Fit, dtype: str, item: int) -> float:
    positions = math.prod(convolution.output) / max(convolution.output[1], 1)
    features = convolution.output[1] / convolution.groups
    channels = convolution.filter[1]
    if convolution.direction != "backward_data":
        channels = max(channels, _ALIGNED_BYTES // item)  # an image's three are padded
    taps = math.prod(convolution.filter[2:])
    m, n, k = _product(convolution, positions, features, channels * taps)
    gather = 1.0 if taps == 1 else _GATHER
    return gather * float(model_seconds(fit, Rates.of(device, dtype), m, n, k, convolution.groups))


def _is_converted(convolution: Convolution, dtype: str, item: int) -> bool:
    """Whether contiguous tensors do not suit tensor cores as they are: a product over each image does, when its rows
    begin where those want them."""
    if convolution.layout != "nchw" or dtype == "fp32":
        return False
    pixels = math.prod(convolution.input[2:])
    pointwise = math.prod(convolution.filter[2:]) == 1 and set(convolution.stride) == {1}
    return not pointwise or pixels * item % _ALIGNED_BYTES != 0


def _product(c: Convolution, positions: float, features: float, taps: float) -> tuple[float, float, float]:
    if c.direction == "forward":
        return positions, features, taps
    if c.direction == "backward_data":
        inputs = math.prod(c.input) / max(c.input[1], 1)
        channels = c.input[1] / c.groups
        return inputs, channels, positions * features * taps / max(inputs * channels, 1)
    return features, taps, positions
