"""What a kernel's instructions take, where they could be read from its PTX: the rate at which multiprocessors issue
them, and at which their warps reach lines of memory."""

from __future__ import annotations

from collections.abc import Mapping

from maya.clusters import Device
from maya.estimate.fits import fit_for
from maya.estimate.types import Provenance
from maya.trace.types import Work

# Of one multiprocessor, in threads' instructions a clock. Four schedulers issue one for a warp each: of single
# precision alone a 7.0 or 8.0 does half as many, and as many of integers beside them, as a 9.0 does of integers (CUDA
# C++ Programming Guide, "Throughput of Native Arithmetic Instructions"). Compiled kernels mix them, or are of integers
# mostly (random numbers, addresses). Of double precision devices that are not listed have two units.
_ISSUED = 128
_DOUBLES = {(7, 0): 32, (8, 0): 32, (9, 0): 64, (10, 0): 64}
_DOUBLES_OF_OTHERS = 2
_SPECIALS = 16


def work_seconds(work: Work, device: Device) -> tuple[float, Provenance]:
    """Seconds of `work` alone, as if memory answered at once."""
    fit = fit_for("instructions", device)
    return issued_seconds(work, device, fit.coefficients), fit.provenance


def issued_seconds(work: Work, device: Device, coefficients: Mapping[str, float]) -> float:
    """`coefficients`: `issue_share`, of those rates, that is reached; `line_clocks`, that a line takes its
    multiprocessor. 32 threads of a warp that read or write bytes far apart ask for 32 lines."""
    doubles = _DOUBLES.get(device.compute_capability, _DOUBLES_OF_OTHERS)
    issued = max(work.instructions / _ISSUED, work.doubles / doubles, work.specials / _SPECIALS)
    clocks = issued / coefficients["issue_share"] + work.lines * coefficients["line_clocks"]
    return clocks / device.multiprocessors / device.clock_hz
