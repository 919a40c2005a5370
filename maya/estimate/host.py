"""What a script's calls take of a host that nothing disturbs: its recording, checked by what like calls took in others.

The machine's speed is measured beside a job's ranks (launch/pace.py), but by other code and in other moments: of the
same script recorded again and again, host time so scaled still scatters (`CallTimes.recording`). Its own calls tell
better how disturbed a recording was. A call that comes after the same few others does the same Python and the same
PyTorch in whatever script, so what it took is compared with what it takes: after the same eight where that is known,
else after fewer, which say less and count less. The weighted median of all these tells of the recording, and a script
whose own code makes some of its calls slow or quick keeps them so. What scripts differ in all the same
(`CallTimes.script`) is theirs, not the recording's: what is taken out is the recording's share as it is to be expected,
given the sum of both, and that a machine's measured speed is less sure than how recordings on it differ (`MACHINE`).
Scripts like those of the table differ by less than recordings do; others, known after fewer calls, by more, and an odd
one by a lot more, as where the same kernels lie behind distributed tensors, which take seven times the host time: that
stays.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maya.trace.host import STRIDE, places
from maya.trace.types import (
    Collective,
    Convolution,
    Gemm,
    JobTrace,
    Kernel,
    Lapack,
    Memcpy,
    Memset,
    Operation,
    RankTrace,
)

TABLES = Path(__file__).parent / "fits"  # host_calls_SOFTWARE.npz

BEFORE = (8, 3, 1)  # calls that come before a like one; the first of these that is known counts
LEAST_KNOWN = 0.1  # share of a recording's host time in known calls, of which the table says something
# Standard deviations of logarithms: of a machine's measured speed, from one kind of machine to another (on one that the
# table is not of, calls of 131 scripts took 0.22 less than it said: docs/accuracy.md); of the speed of one that was not
# measured, a factor of two; and of scripts that are like no other, with their share.
MACHINE = 0.2
UNKNOWN_SPEED = 0.7
# Likewise of a script under one version of PyTorch and under another: by the other's table 31 scripts scattered by 0.28
# (2.15) and 0.13 (2.11), by their own version's by 0.15 and 0.07.
VERSIONS = 0.2
ODD_SCRIPT, ODD = 1.0, 0.05


@dataclass(frozen=True)
class CallTimes:
    """What calls take of the reference host, by what they are and come after; `scripts/fit/host_calls` writes them."""

    software: str  # as JobTrace's
    alike: NDArray[np.int64]  # [kinds] ascending; those of all BEFORE
    host_ns: NDArray[np.float64]  # [kinds]
    # Standard deviations of the logarithm: of a script's host time from recording to recording, and of what its calls
    # took over those of others from script to script [BEFORE].
    recording: float
    script: tuple[float, ...]
    borrowed: str = ""  # the software they are really of, where those of `software` are not known

    def of_recording(self, log: float, known: NDArray[np.float64], noise: float) -> float:
        """What of `log` is to be expected of the recording; `log` and `known` [BEFORE] as of `slowness`. `noise`:
        standard deviation of recordings' logarithms."""
        script = known.sum() / (known * self.weights).sum()
        return float(of_noise(np.array(log), noise, script))

    @property
    def weights(self) -> NDArray[np.float64]:
        """[BEFORE] Of what calls say: the inverse of the variance from script to script."""
        weights: NDArray[np.float64] = np.array(self.script) ** -2.0
        return weights

    def noise(self, measured: bool, recordings: float = 1.0) -> float:
        """Standard deviation of the logarithm of how slow so many recordings on one machine are on average; `measured`:
        whether its speed was, which errs alike in them all."""
        return math.hypot(self.recording / math.sqrt(recordings), MACHINE) if measured else UNKNOWN_SPEED

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.borrowed:
            return ()
        return (
            f"what calls take of the host is known of {self.borrowed}, not of {self.software}: it counts less",
        )

    def write(self, directory: Path) -> None:
        np.savez_compressed(
            directory / f"host_calls_{self.software.lower().replace(', ', '_').replace(' ', '_')}.npz",
            software=np.array(self.software),
            alike=self.alike,
            host_ns=self.host_ns.astype(np.float32),
            recording=np.array(self.recording),
            script=np.array(self.script),
        )

    @staticmethod
    def read(path: Path) -> CallTimes:
        with np.load(path, allow_pickle=False) as stored:
            return CallTimes(
                str(stored["software"]),
                stored["alike"],
                stored["host_ns"].astype(np.float64),
                float(stored["recording"]),
                tuple(stored["script"].tolist()),
            )


@cache
def shipped() -> tuple[CallTimes, ...]:
    return tuple(CallTimes.read(path) for path in sorted(TABLES.glob("host_calls_*.npz")))


def shipped_for(software: str) -> CallTimes:
    """The shipped ones, or of another software those of the nearest, of which a script takes more or less."""
    nearest = min(shipped(), key=lambda times: _apart(times.software, software))
    if nearest.software == software or not _versions(software):
        return nearest
    script = tuple(math.hypot(each, VERSIONS) for each in nearest.script)
    return replace(nearest, software=software, script=script, borrowed=nearest.software)


def _apart(one: str, other: str) -> list[int]:
    """By how many versions of PyTorch, then of CPython; empty where either is something else."""
    return [abs(a - b) for a, b in zip(_versions(one), _versions(other), strict=False)][::-1]


def _versions(software: str) -> list[int]:
    """Of CPython and PyTorch."""
    found = re.fullmatch(r"CPython (\d+)\.(\d+), PyTorch (\d+)\.(\d+)", software)
    if not found:
        return []
    python, python_minor, torch, torch_minor = map(int, found.groups())
    return [100 * python + python_minor, 100 * torch + torch_minor]


def of_noise(log: NDArray[np.float64], noise: float, variance: NDArray[np.float64]) -> NDArray[np.float64]:
    """What of a `log` is to be expected of noise with that standard deviation, the rest being something's own.

    Both are taken for normal; its own has `variance`, or for a few, ODD of them, that of ODD_SCRIPT.
    """
    variances = noise**2 + np.stack([variance, np.full_like(variance, ODD_SCRIPT**2)])
    odds = np.log([1 - ODD, ODD]).reshape(2, *(1,) * np.ndim(log))
    logs = odds - np.log(variances) / 2 - log**2 / variances / 2
    likely = np.exp(logs - logs.max(axis=0))
    share: NDArray[np.float64] = log * noise**2 * (likely / variances).sum(axis=0) / likely.sum(axis=0)
    return share


@dataclass(frozen=True)
class Undisturbed:
    trace: JobTrace  # with host time as its script likely takes it
    notes: tuple[str, ...] = ()


def undisturbed(trace: JobTrace, times: CallTimes | None = None) -> Undisturbed:
    """Takes a recording's disturbance out of it. Without a measured speed of the machine that recorded it, its calls
    tell that, too. `times`: None for the shipped ones."""
    times = times or shipped_for(trace.software)
    log, known, unknown = told(trace, tally(trace), times)
    if unknown:
        return Undisturbed(trace, (as_recorded(trace, unknown),))
    factor = math.exp(-times.of_recording(log, known, times.noise(trace.host_speed is not None)))
    return at(trace, tuple(_scaled(rank, factor) for rank in trace.ranks), factor, times.notes)


def at(
    trace: JobTrace, ranks: tuple[RankTrace, ...], factor: float, notes: tuple[str, ...] = ()
) -> Undisturbed:
    """With `ranks`, whose host time is `factor` of what it was."""
    return Undisturbed(replace(trace, ranks=ranks, host_speed=(trace.host_speed or 1.0) * factor), notes)


def told(trace: JobTrace, own: Tally, times: CallTimes) -> tuple[float, NDArray[np.float64], str]:
    """As of `slowness`, and why that tells nothing; empty: it does. `own`: the trace's."""
    if trace.software != times.software:
        known_of = f"what calls take is known of {times.software}, not of {trace.software or 'its software'}"
        return 0.0, np.zeros(len(BEFORE)), known_of
    log, known = slowness(own, times)
    if known.sum() < LEAST_KNOWN:
        return log, known, f"what they take is known of {known.sum():.0%} of its calls' time"
    return log, known, ""


def as_recorded(trace: JobTrace, why: str) -> str:
    """A note."""
    if trace.host_speed is None:
        return f"how fast the recording machine is was not measured, and {why}: host time is as recorded"
    return f"how disturbed the recording was, its calls do not tell: {why}"


def _scaled(rank: RankTrace, factor: float) -> RankTrace:
    records = rank.records.copy()
    records["host_ns"] = np.rint(records["host_ns"] * factor)
    return replace(rank, records=records)


@dataclass(frozen=True)
class Tally:
    """A job's calls by what they are and come after, those that cost the host nothing left out."""

    alike: NDArray[np.int64]  # [kinds, BEFORE]
    host_ns: NDArray[np.float64]  # [kinds] of one call, on average
    share: NDArray[np.float64]  # [kinds] of all calls' host time


def identities(trace: JobTrace) -> list[NDArray[np.int64]]:
    """Of each rank [records, BEFORE] what equals for calls that are alike."""
    operations = np.array([_identity(_text(operation)) for operation in trace.operations], np.int64)
    return [_alike(rank, operations) for rank in trace.ranks]


def tally(trace: JobTrace, alike_of: list[NDArray[np.int64]] | None = None) -> Tally:
    """`alike_of`: the trace's `identities`, where they are at hand."""
    called = np.concatenate([~rank.records["graph"] for rank in trace.ranks])
    alike = np.concatenate(alike_of or identities(trace))[called]
    host_ns = np.concatenate([rank.records["host_ns"] for rank in trace.ranks])[called]
    _, first, kind, count = np.unique(alike[:, 0], return_index=True, return_inverse=True, return_counts=True)
    total = np.bincount(kind.reshape(-1), host_ns, len(first))
    costly = total > 0
    first, total, count = first[costly], total[costly], count[costly]
    return Tally(alike[first], total / count, total / total.sum())


def slowness(job: Tally, times: CallTimes) -> tuple[float, NDArray[np.float64]]:
    """(logarithm of how much longer its calls took than they take, shares of its host time in calls that are known by
    so many before them [BEFORE]); zeros where none is."""
    known = np.zeros(len(BEFORE))
    took: NDArray[np.float64] = np.full(len(job.share), np.nan)
    weight = job.share.copy()
    for number, alike in enumerate(job.alike.T if len(times.alike) else ()):
        place, found = places(times.alike, alike)
        found &= np.isnan(took)
        took[found] = np.log(job.host_ns[found] / times.host_ns[place[found]])
        known[number] = job.share[found].sum()
        weight[found] *= times.weights[number]
    told = ~np.isnan(took)
    return weighted_median(took[told], weight[told]) if told.any() else 0.0, known


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _alike(rank: RankTrace, operations: NDArray[np.int64]) -> NDArray[np.int64]:
    """[records, BEFORE] What equals for calls of the same name after so many of the same; before an iteration's first
    come those that end it."""
    operation = rank.records["operation"]
    own = np.append(operations, 0)[operation] * 64 + rank.records["kind"]
    alike: NDArray[np.int64] = own
    columns = {}
    with np.errstate(over="ignore"):
        for before in range(1, max(BEFORE) + 1):
            alike = alike * STRIDE + np.roll(own, before)
            columns[before] = alike * STRIDE + before  # no others' by chance
    return np.stack([columns[before] for before in BEFORE], axis=1)


def _text(operation: Operation) -> str:
    """What tells the code that calls it: no shapes, they cost the host nothing."""
    match operation:
        case Kernel():
            return f"kernel {operation.name} in {operation.operator.name}"
        case Gemm():
            return f"product {operation.epilogue} in {operation.operator.name}"
        case Convolution():
            return f"convolution {operation.direction} in {operation.operator.name}"
        case Lapack():
            return f"{operation.routine} in {operation.operator.name}"
        case Collective():
            return operation.collective
        case Memcpy():
            return f"copy {operation.direction} {operation.pinned}"
        case Memset():
            return "memset"


def _identity(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
