"""What a simulation yields: a `Timeline` (every operation's place in time) and a `Prediction`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maya.errors import MayaError
from maya.estimate.likely import LikelyError

Verdict = Literal["FITS", "OOM", "FAILED", "INCOMPLETE"]


class SimulationError(MayaError):
    """A job that cannot be simulated: it deadlocks, or its durations are no durations."""


@dataclass(frozen=True)
class HostCosts:
    """What a call costs the host beyond its recorded time.

    The recorder leaves the emulator's own time out of the account, so the driver's share of a launch has to
    be put back. 2 microseconds is an assumption of the usual order for cudaLaunchKernel on a current server
    processor, not a measurement; it is divided by the cluster's `host_speed` like recorded host time. From the
    end of work until a call that waits for it returns passes `completion_s`, whatever the host: the median of
    19,000 launches that blocked on an H100 (`scripts/measure/waits`; nine in ten of them 3 to 8 microseconds).
    """

    launch_s: float = 2.0e-6
    completion_s: float = 4.0e-6
    queue_depth: int = 1024  # calls a stream holds before the host blocks


INSTANT = HostCosts(launch_s=0.0, completion_s=0.0)


class Activity(IntEnum):
    """What a rank does at a moment; mirrors `Activity` in core/program.h."""

    COMPUTE = 0  # work on the device, no communication kernel
    MOVING = 1  # communication kernels only, at least one of which has all its parties
    WAITING = 2  # communication kernels only, all of which wait for peers
    OVERLAPPED = 3  # work and communication kernels at once
    IDLE = 4  # nothing on the device


class Stretch(IntEnum):
    """What a step of the critical path is spent on; mirrors `Stretch` in core/program.h."""

    DEVICE = 0
    LAUNCH = 1  # from the call to the device's start
    HOST = 2
    COMPLETION = 3  # from the end of work until the host that waits for it hears of it


# One step of the critical path: nothing after it could be earlier unless it were shorter.
PATH = np.dtype(
    [
        ("begin_ns", np.int64),
        ("end_ns", np.int64),
        ("rank", np.int32),  # class of ranks
        ("row", np.int64),  # its record; of a stretch of host calls the last
        ("stretch", np.uint8),  # Stretch
    ]
)


@dataclass(frozen=True)
class RankTimeline:
    """Integer nanoseconds, one entry per record of the rank's iteration, for each simulated iteration.

    Shape [iterations, records]: `issued` when the host made the call, `start`/`end` of the device work
    (of the host's wait for synchronisations, of the whole NCCL kernel for members of a group). `host_ns` [records] is
    what the cluster's host works before each call.
    """

    rank: int
    host_ns: NDArray[np.int64]
    issued: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True)
class Timeline:
    """Everything that happened; of `ranks` nothing when it was not to be kept.

    `activity_ns` has shape [iterations, ranks, len(Activity)] and for each iteration and rank sums to the
    iteration's time exactly. Iteration 0 starts cold at 0; it is no measure of the job.
    """

    ranks: tuple[RankTimeline, ...]
    iteration_end_ns: NDArray[np.int64]  # [iterations]: when all work of all ranks up to its step had ended
    activity_ns: NDArray[np.int64]
    events: int = 0  # calls issued, work ended and transfers ended
    critical_path: NDArray[np.void] | None = None  # dtype PATH, of the last iteration, in order of time

    @property
    def iterations_ns(self) -> NDArray[np.int64]:
        """[iterations] Time of each iteration."""
        return np.diff(self.iteration_end_ns, prepend=0)


@dataclass(frozen=True)
class Breakdown:
    """Shares of one iteration in seconds; they sum to it. Mean over ranks, weighted by class size."""

    exposed_compute: float
    exposed_communication: float
    overlapped: float  # compute and communication at once
    idle: float


@dataclass(frozen=True)
class CommunicationTotal:
    """One collective on one communicator in an iteration, of a rank that takes part, mean over these."""

    communicator: int  # index into JobTrace.communicators
    collective: str
    members: tuple[int, ...]  # of one instance
    instances: int
    ranks: int  # that take part, in all instances
    calls: float
    bytes: float  # of the larger buffer, summed over calls
    seconds: float  # from each call's start on the device to its end
    waiting_s: float  # of that, for parties that came later


@dataclass(frozen=True)
class Prediction:
    """What `maya predict --json` writes; field for field the documented JSON."""

    verdict: Verdict
    iteration_time_s: float | None = None
    iterations_s: tuple[float, ...] = ()
    breakdown_s: Breakdown | None = None
    # {"max": int, "by_class": {...}, "capacity": int}
    peak_memory_bytes: dict[str, Any] = field(default_factory=dict)
    hardware_flops_utilization: float | None = None
    ranks: dict[str, int] = field(default_factory=dict)  # world, launched, checked, unique
    provenance: dict[str, float] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    stages_s: dict[str, float] = field(default_factory=dict)
    message: str = ""  # why, when the verdict is not FITS
    shortfall_bytes: int | None = None  # OOM: what the refused allocation lacked
    by_chance: bool = False  # FAILED: as another launch may not, after a time limit or a killed process
    pipeline_bubble: float | None = None  # share of the iteration, of jobs with point-to-point transfers
    waiting_s: float | None = None  # of exposed communication: for ranks that came later
    host_bound_s: float | None = None  # what the iteration would be shorter by if hosts took no time
    critical_path_s: dict[str, float] = field(default_factory=dict)  # as results.critical_path_s says
    communication: tuple[CommunicationTotal, ...] = ()
    sm_busy: tuple[float, ...] = ()  # share of multiprocessors in use in each millisecond, mean over ranks
    memory_timeline: dict[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)  # by rank
    breakdown_by_rank_s: dict[str, Breakdown] = field(default_factory=dict)  # by representative's rank
    model_flops_utilization: float | None = None
    dollars_per_iteration: float | None = None  # where the cluster has a price
    likely_error: LikelyError | None = None  # what measured iterations that are made of the like were off by
    recording_host_speed: float | None = None  # of the machine that recorded the trace, over the reference
    notes: tuple[str, ...] = ()
    version: str = ""
    command: tuple[str, ...] = ()
    cluster: str = ""  # its name
