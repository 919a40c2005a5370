"""How fast the recording machine was while it recorded, over a reference host, and host time as that would have it."""

from __future__ import annotations

import platform

import numpy as np
from numpy.typing import NDArray

from maya.launch.environment import installed_torch

# What maya/launch/pace.py measures on the reference host, which is thereby defined, with Python 3.11 and PyTorch 2.11.
# Cores of an AMD EPYC 9005 shared with others came to 0.75 to 0.92 of its speed. (Measured there as 1.33 ms, with what
# optimizers took to count devices; without, it is 0.868 of that.)
REFERENCE_PACE_NS = 1_155_000
# Of observing an operator, beyond what the emulator sees of it: as scripts/bench/host measures it, on the reference.
OBSERVING_NS = 350


def host_speed(pace_ns: int | None) -> float | None:
    """Of the machine that was measured to need `pace_ns`, over the reference's; None where it was not measured."""
    return None if pace_ns is None else REFERENCE_PACE_NS / pace_ns


def host_software() -> str:
    """What this machine's host runs: that of its ranks."""
    torch = installed_torch()
    python, pytorch = (
        ".".join(version.split(".")[:2])
        for version in (platform.python_version(), torch.version if torch else "none")
    )
    return f"{platform.python_implementation()} {python}, PyTorch {pytorch}"


def on_reference(records: NDArray[np.void], speed: float) -> NDArray[np.uint64]:
    """[records] ns of host time on the reference host, without observing; `records` (dtype RAW_RECORD) were made by one
    `speed` times as fast."""
    net = records["host_ns"] * speed - records["ranges"] * np.float64(OBSERVING_NS)
    result: NDArray[np.uint64] = net.clip(min=0).astype(np.uint64)
    return result
