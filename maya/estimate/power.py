"""What a power limit costs: a device that would draw more than its limit lowers its clock, and products slow down.

Tables and profiles are of bursts or of single jobs. A power limiter averages over many kernels, so what counts is what
a job draws on average while its devices are busy: a product in proportion to the share of the peak rate that it
reaches, any other kernel as much as a product at _OTHERS of it. Where that is more than the device sustains, its clock
goes down by as much (near its least voltage a device does the same work for the same energy, however fast), and with
it products, convolutions and attention; what memory bounds does not. A cap lowers what is sustained in proportion.
What a device sustains, and how much more products of 8 bits draw, are fitted on whole iterations (scripts/fit/power).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from maya.clusters import Device
from maya.estimate.fits import fit_for
from maya.estimate.tables import FloatArray
from maya.estimate.types import Estimates, Power
from maya.trace.types import DEVICE_WORK, JobTrace

# Fitted with what devices sustain (scripts/fit/power).
_OTHERS = 0.4
_NARROW = ("fp8", "fp4", "int8")
_WORTH_A_NOTE = 1.02


@dataclass(frozen=True)
class Draw:
    """Of a device, in parts of what products of 16 bits and more draw at their peak rate."""

    sustained: float  # at full clock, within its limit
    narrow: float  # by products of 8 bits and less at their peak rate
    others: float = _OTHERS  # by kernels without products

    @classmethod
    def of(cls, device: Device) -> Draw:
        sustained = float(fit_for("power", device).coefficients["draw"]) * left_by_cap(device)
        return cls(sustained, float(fit_for("power", device, "fp8").coefficients["draw"]))

    def product(self, dtype: str, share: float) -> float:
        """Of a product that reaches `share` of the peak rate of `dtype`."""
        return share * (self.narrow if dtype.startswith(_NARROW) else 1.0)


def left_by_cap(device: Device) -> float:
    """Of the power that the device was made for, what it may draw."""
    if device.power_w is None or device.power_cap_w is None:
        return 1.0
    return min(device.power_cap_w / device.power_w, 1.0)


def average(trace: JobTrace, seconds: FloatArray, power: Power) -> float:
    """What the job's devices draw on average while they are busy, at full clock; 0: they never are. `seconds` and
    `power` as of Estimates."""
    drawn = busy = 0.0
    sizes = np.bincount(trace.class_of_rank, minlength=len(trace.ranks))
    for rank, size in zip(trace.ranks, sizes, strict=True):
        operation = rank.records["operation"]
        work = operation[np.isin(rank.records["kind"], DEVICE_WORK) & (operation >= 0)]
        times = np.bincount(work, minlength=len(seconds)) * seconds * size
        drawn += float(times @ power.draw)
        busy += float(times[power.draw > 0].sum())
    return drawn / busy if busy > 0 else 0.0


def within_limit(trace: JobTrace, estimates: Estimates, device: Device) -> Estimates:
    """`estimates` of the trace's operations at the clock that the device's power limit leaves the job."""
    if estimates.power is None:
        return estimates
    drawn = average(trace, estimates.seconds, estimates.power)
    slowdown = max(drawn / Draw.of(device).sustained, 1.0)
    return replace(slowed(estimates, slowdown), notes=(*estimates.notes, *_note(slowdown, device)))


def slowed(estimates: Estimates, slowdown: float) -> Estimates:
    """At a clock that many times lower than full."""
    if estimates.power is None:
        return estimates
    return replace(estimates, seconds=np.where(estimates.power.clocked, slowdown, 1.0) * estimates.seconds)


def _note(slowdown: float, device: Device) -> tuple[str, ...]:
    if slowdown < _WORTH_A_NOTE:
        return ()
    more = 100 * (slowdown - 1)
    return (
        f"products take {more:.0f} % longer than at full clock: the job draws more power than {device.name} sustains",
    )
