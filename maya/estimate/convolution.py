"""Convolutions as the matrix products they are lowered to (implicit GEMM: Chetlur et al., cuDNN, 2014)."""

from __future__ import annotations

import math

from maya.clusters import Device
from maya.estimate.fits import fit_for
from maya.estimate.gemm import ITEM_BYTES, model_seconds
from maya.estimate.types import Provenance
from maya.trace.types import Convolution

# Gathering the operand rows costs an implicit product against a plain one of the same size; an assumption,
# for no table of convolutions is at hand.
_GATHER = 1.15


def flops(convolution: Convolution) -> float:
    """2 N K P Q (C / groups) R S, the same for the three passes."""
    taps = math.prod(convolution.filter[1:])  # [k, c / groups, r, s]
    return 2.0 * math.prod(convolution.output) * taps


def estimate_convolution(convolution: Convolution, device: Device) -> tuple[float, Provenance]:
    dtype = convolution.dtype
    if dtype == "fp32" and "tf32" in device.peak_flops:
        dtype = "tf32"  # torch.backends.cudnn.allow_tf32 is on by default
    positions = math.prod(convolution.output) / max(convolution.output[1], 1)
    features = convolution.output[1] / convolution.groups
    taps = math.prod(convolution.filter[1:])
    m, n, k = _product(convolution, positions, features, taps)
    fit = fit_for("gemm", device, dtype)
    seconds = _GATHER * float(model_seconds(fit, device, dtype, m, n, k, convolution.groups))
    item = ITEM_BYTES.get(dtype.split("_")[0], 4)
    touched = item * (
        math.prod(convolution.input) + math.prod(convolution.output) + math.prod(convolution.filter)
    )
    floor = float(fit.coefficients["launch_s"]) + touched / (
        device.memory_bandwidth * float(fit.coefficients["memory_efficiency"])
    )
    # Small filters re-read the input from cache, not from memory: the unfolded operand's bytes are no bound.
    return max(seconds if k > 4 else floor, floor), Provenance.ROOFLINE


def _product(c: Convolution, positions: float, features: float, taps: float) -> tuple[float, float, float]:
    if c.direction == "forward":
        return positions, features, taps
    if c.direction == "backward_data":
        inputs = math.prod(c.input) / max(c.input[1], 1)
        channels = c.input[1] / c.groups
        return inputs, channels, positions * features * taps / max(inputs * channels, 1)
    return features, taps, positions
