"""What a script's calls take of a host that nothing disturbs: its recording, checked by what like calls took in others.

The machine's speed is measured beside a job's ranks (launch/pace.py), but by other code and in other moments: of the
same script recorded again and again, host time so scaled still scatters (`CallTimes.recording`). Its own calls tell
better how disturbed a recording was. A call that comes after the same few others does the same Python and the same
PyTorch in whatever script, so what it took is compared with what it takes; the weighted median of all these tells of
the recording, and a script whose own code makes some of its calls slow or quick keeps them so. What scripts differ in
all the same (`CallTimes.script`) is theirs, not the recording's, and so only the likely share of the difference is
taken out: the best linear guess of the one, given the sum of both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maya.trace.types import (
    Collective,
    Convolution,
    Gemm,
    JobTrace,
    Kernel,
    Memcpy,
    Memset,
    Operation,
    RankTrace,
)

TABLE = Path(__file__).parent / "fits" / "host_calls.npz"

BEFORE = (
    8  # calls that come before a like one: with fewer, scripts differ more; with more, fewer calls are known
)
LEAST_KNOWN = 0.1  # share of a recording's host time in known calls, of which the table says something
_STRIDE = np.int64(0x9E3779B97F4A7C15 - (1 << 64))


@dataclass(frozen=True)
class CallTimes:
    """What calls take of the reference host, by what they are and come after; `scripts/fit/host_calls` writes them."""

    software: str  # as JobTrace's
    alike: NDArray[np.int64]  # [kinds] ascending
    host_ns: NDArray[np.float64]  # [kinds]
    recording: (
        float  # standard deviation of the logarithm of a script's host time, from recording to recording
    )
    script: float  # of its calls' over those of others, from script to script

    @property
    def weight(self) -> float:
        """Of what tells of a recording and of its script, the recording's likely share."""
        return self.recording**2 / (self.recording**2 + self.script**2)

    def write(self, path: Path) -> None:
        np.savez_compressed(
            path,
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
                float(stored["script"]),
            )


@cache
def shipped() -> CallTimes:
    return CallTimes.read(TABLE)


def undisturbed(trace: JobTrace, times: CallTimes | None = None) -> tuple[JobTrace, tuple[str, ...]]:
    """`trace` with host time as its script likely takes it, and notes; without a measured speed of the machine that
    recorded it, its calls alone tell. `times`: None for the shipped ones."""
    times = times or shipped()
    if trace.software != times.software:
        return trace, _unscaled(
            trace, f"what calls take is known of {times.software}, not of {trace.software or 'its software'}"
        )
    log, known = slowness(tally(trace), times)
    if known < LEAST_KNOWN:
        return trace, _unscaled(trace, f"what they take is known of {known:.0%} of its calls' time")
    factor = float(np.exp(-log * (1.0 if trace.host_speed is None else times.weight)))
    ranks = tuple(_scaled(rank, factor) for rank in trace.ranks)
    return replace(trace, ranks=ranks, host_speed=(trace.host_speed or 1.0) * factor), ()


def _unscaled(trace: JobTrace, why: str) -> tuple[str, ...]:
    if trace.host_speed is None:
        return (f"how fast the recording machine is was not measured, and {why}: host time is as recorded",)
    return (f"how disturbed the recording was, its calls do not tell: {why}",)


def _scaled(rank: RankTrace, factor: float) -> RankTrace:
    records = rank.records.copy()
    records["host_ns"] = np.rint(records["host_ns"] * factor)
    return replace(rank, records=records)


@dataclass(frozen=True)
class Tally:
    """A job's calls by what they are and come after, those that cost the host nothing left out."""

    alike: NDArray[np.int64]  # [kinds] ascending
    host_ns: NDArray[np.float64]  # [kinds] of one call, on average
    share: NDArray[np.float64]  # [kinds] of all calls' host time


def tally(trace: JobTrace) -> Tally:
    operations = np.array([_identity(_text(operation)) for operation in trace.operations], np.int64)
    called = [~rank.records["graph"] for rank in trace.ranks]
    alike = np.concatenate(
        [_alike(rank, operations)[own] for rank, own in zip(trace.ranks, called, strict=True)]
    )
    host_ns = np.concatenate(
        [rank.records["host_ns"][own] for rank, own in zip(trace.ranks, called, strict=True)]
    )
    kinds, kind, count = np.unique(alike, return_inverse=True, return_counts=True)
    total = np.bincount(kind.reshape(-1), host_ns, len(kinds))
    costly = total > 0
    kinds, total, count = kinds[costly], total[costly], count[costly]
    return Tally(kinds, total / count, total / total.sum())


def slowness(job: Tally, times: CallTimes) -> tuple[float, float]:
    """(logarithm of how much longer its calls took than they take, share of its host time in calls that are known);
    zeros where none is."""
    if not len(times.alike):
        return 0.0, 0.0
    place = np.searchsorted(times.alike, job.alike).clip(max=len(times.alike) - 1)
    known = times.alike[place] == job.alike
    share = job.share[known]
    if not len(share):
        return 0.0, 0.0
    return weighted_median(np.log(job.host_ns[known] / times.host_ns[place[known]]), share), float(
        share.sum()
    )


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _alike(rank: RankTrace, operations: NDArray[np.int64]) -> NDArray[np.int64]:
    """[records] What equals for calls of the same name after the same BEFORE; before an iteration's first come those
    that end it."""
    operation = rank.records["operation"]
    own = np.append(operations, 0)[operation] * 64 + rank.records["kind"]
    alike: NDArray[np.int64] = own
    with np.errstate(over="ignore"):
        for before in range(1, BEFORE + 1):
            alike = alike * _STRIDE + np.roll(own, before)
    return alike


def _text(operation: Operation) -> str:
    """What tells the code that calls it: no shapes, they cost the host nothing."""
    match operation:
        case Kernel():
            return f"kernel {operation.name} in {operation.operator.name}"
        case Gemm():
            return f"product {operation.epilogue} in {operation.operator.name}"
        case Convolution():
            return f"convolution {operation.direction} in {operation.operator.name}"
        case Collective():
            return operation.collective
        case Memcpy():
            return f"copy {operation.direction} {operation.pinned}"
        case Memset():
            return "memset"


def _identity(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
