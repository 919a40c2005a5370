"""What a simulation yields: a `Timeline` (every operation's place in time) and a `Prediction`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["FITS", "OOM", "FAILED", "INCOMPLETE"]


@dataclass(frozen=True)
class RankTimeline:
    """Integer nanoseconds, one entry per record of the rank's iteration, for each simulated iteration.

    Shape [iterations, records]: `issued` when the host made the call, `start`/`end` of the device work
    (of the host's wait for synchronisations).
    """

    rank: int
    issued: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True)
class Timeline:
    ranks: tuple[RankTimeline, ...]
    iteration_end_ns: NDArray[np.int64]  # [iterations]: when all work of all ranks up to its step had ended


@dataclass(frozen=True)
class Breakdown:
    """Shares of one iteration in seconds; they sum to it. Mean over ranks, weighted by class size."""

    exposed_compute: float
    exposed_communication: float
    overlapped: float  # compute and communication at once
    idle: float


@dataclass(frozen=True)
class Prediction:
    """What `maya predict --json` writes; field for field the documented JSON."""

    verdict: Verdict
    iteration_time_s: float | None = None
    iterations_s: tuple[float, ...] = ()
    breakdown_s: Breakdown | None = None
    peak_memory_bytes: dict[str, Any] = field(default_factory=dict)  # {"max": int, "by_class": {...}}
    hardware_flops_utilization: float | None = None
    ranks: dict[str, int] = field(default_factory=dict)  # world, launched, unique
    provenance: dict[str, float] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    stages_s: dict[str, float] = field(default_factory=dict)
    message: str = ""  # why, when the verdict is not FITS
    shortfall_bytes: int | None = None  # OOM: what the refused allocation lacked
    notes: tuple[str, ...] = ()
    version: str = ""
    command: tuple[str, ...] = ()
