"""What long runs lose against bursts: under sustained load a device's power limit lowers its clock.

The tables were measured in bursts of a few milliseconds. Tensor cores at their peak draw the most, so a product slows
down in proportion to the share of the peak rate that it reaches in a burst. One coefficient a device, fitted on whole
iterations (scripts/fit/sustained).
"""

from __future__ import annotations

from maya.clusters import Device
from maya.estimate.fits import fit_for


def sustained_seconds(burst_s: float, flops: float, peak: float, device: Device) -> float:
    """Seconds under sustained load of work that takes `burst_s` in a burst; `peak` in FLOP/s."""
    if burst_s <= 0:
        return burst_s
    share = min(flops / burst_s / peak, 1.0)
    return burst_s * (1 + float(fit_for("sustained", device).coefficients["slowdown_at_peak"]) * share)
