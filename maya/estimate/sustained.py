"""What long runs lose against bursts: under sustained load a device's power limit lowers its clock.

The tables were measured in bursts of a few milliseconds. A product that keeps more of the tensor cores busy than the
power limit sustains runs at a lower clock f; dynamic power goes as f V^2, about f^3, so the work that draws
share / sustainable times the limit slows down by the cube root of that. The sustainable share of the peak rate is a
coefficient of the device and of how wide operands are, fitted on whole iterations of the fit share
(scripts/fit/sustained), unless the cluster file states it: short runs were measured to lose nothing. A lower cap on its
power lowers it by more than that: a clock near the voltage's least saves power in proportion, not by its cube. Its
exponent is fitted likewise (scripts/fit/power_cap); 3 is a clock in proportion to the cap.
"""

from __future__ import annotations

from dataclasses import dataclass

from maya.clusters import Device
from maya.estimate.fits import fit_for


@dataclass(frozen=True)
class Shares:
    """Of its peak rates, what a device sustains without lowering its clock."""

    wide: float  # of products whose operands have 16 bits or more
    narrow: float  # 8 bits or less

    @classmethod
    def of(cls, device: Device) -> Shares:
        wide, narrow = (
            device.sustainable_share
            or float(fit_for("sustained", device, v).coefficients["sustainable_share"])
            for v in ("", "fp8")
        )
        shares = cls(wide, narrow)
        if device.power_w is None or device.power_cap_w is None:
            return shares
        exponent = float(fit_for("power_cap", device).coefficients["exponent"])
        return shares.times(min(device.power_cap_w / device.power_w, 1.0) ** exponent)

    def times(self, factor: float) -> Shares:
        return Shares(self.wide * factor, self.narrow * factor)

    def share(self, dtype: str) -> float:
        return self.narrow if dtype.startswith(_NARROW) else self.wide


_NARROW = ("fp8", "fp4", "int8")


def sustained_seconds(burst_s: float, flops: float, peak: float, sustainable: float) -> float:
    """Seconds under sustained load of work that takes `burst_s` in a burst; `peak` in FLOP/s."""
    if burst_s <= 0:
        return burst_s
    share = min(flops / burst_s / peak, 1.0)
    return burst_s * float(max(share / sustainable, 1.0) ** (1 / 3))


def burst_seconds(sustained_s: float, flops: float, peak: float, sustainable: float) -> float:
    """The inverse: what work that takes `sustained_s` under sustained load takes in a burst."""
    share = flops / sustained_s / peak
    return sustained_s * float((sustainable / share) ** 0.5) if share > sustainable else sustained_s
