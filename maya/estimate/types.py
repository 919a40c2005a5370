"""Durations and where each came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Provenance(IntEnum):
    PROFILED = 0  # an exact measurement on that device
    LEARNED = 1  # a model fitted on measurements of that device
    BORROWED = (
        2  # this device's datasheet, with the efficiency fitted on the nearest generation that has tables
    )
    ROOFLINE = 3  # datasheet rates with an assumed efficiency, or bytes that had to be guessed
    UNKNOWN = 4  # nothing could be said: charged the launch floor, and the prediction is INCOMPLETE


@dataclass(frozen=True)
class Power:
    """What each operation draws of its device's power (power.py). All are [operations]."""

    draw: NDArray[np.float64]  # while it runs at full clock, 0: nothing
    clocked: NDArray[np.bool_]  # whether it takes longer at a lower clock


@dataclass(frozen=True)
class Estimates:
    """One entry per operation of the job, in order."""

    seconds: NDArray[np.float64]
    provenance: NDArray[np.uint8]
    flops: NDArray[np.float64]  # floating-point operations of matrix products, convolutions and attention
    unknown: tuple[str, ...] = ()  # what nothing could be said about
    notes: tuple[str, ...] = ()
    # [operations] Share of the device's multiprocessors, or of its memory bandwidth, that work takes while it runs
    # alone (demand.py); None: all of it.
    demand: NDArray[np.float64] | None = None
    power: Power | None = None  # None: not known
    # [operations, 2] Shares of (its device's link within the node, its NIC) that a collective keeps busy while
    # it runs alone; None: no collective shares anything.
    use: NDArray[np.float64] | None = None
