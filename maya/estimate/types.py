"""Durations and where each came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Provenance(IntEnum):
    PROFILED = 0  # an exact measurement on that device
    LEARNED = 1  # a model fitted on measurements of that device
    ROOFLINE = 2  # datasheet rates with efficiency curves
    UNKNOWN = 3  # nothing could be said: charged the launch floor, and the prediction is INCOMPLETE


@dataclass(frozen=True)
class Estimates:
    """One entry per operation of the job, in order."""

    seconds: NDArray[np.float64]
    provenance: NDArray[np.uint8]
    flops: NDArray[np.float64]  # floating-point operations of matrix products, convolutions and attention
    unknown: tuple[str, ...] = ()  # what nothing could be said about
