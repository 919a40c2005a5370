"""What one script's calls take, told by several recordings of it: the trials of a search, the rows of a validation.

Recordings of one script share most of their calls, whatever the configuration: after the same eight others comes the
same. Medians over recordings tell what a call takes and how slow each recording was, in turn; what is left of a call's
own is taken for noise as far as such calls of other recordings scatter no more than noise does, and for the
configuration's where they do. How slow all the recordings were on the whole, calls of other scripts tell as for a
single one (host.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from maya.estimate.host import (
    UNKNOWN_SPEED,
    CallTimes,
    Undisturbed,
    as_recorded,
    at,
    identities,
    of_noise,
    shipped_for,
    tally,
    told,
    undisturbed,
    weighted_median,
)
from maya.trace.host import places
from maya.trace.types import JobTrace, RankTrace

ROUNDS = 20
NORMAL = 1.4826  # standard deviation over the median deviation, of a normal distribution
MEDIAN = math.pi / 2  # variance of the median of many over that of their mean, of a normal distribution
# Standard deviation of the logarithm of how slow a script's configurations seem to be that nothing disturbed: of the
# same jobs recorded twice, host time differed by so much when how slow either was had been taken out.
CONFIGURATION = 0.02
# Likewise of how slow recordings are: wider than most (0.1), as one of a hundred is disturbed by 40 %, and no
# configuration was seen that is so much slower in all of its calls.
DISTURBANCE = 0.2


@dataclass(frozen=True)
class Recording:
    """What a recording tells of its script's others: its calls by what they are and come after eight others."""

    alike: NDArray[np.int64]  # [kinds] ascending
    host_ns: NDArray[np.float64]  # [kinds] of one call, on average
    share: NDArray[np.float64]  # [kinds] of all calls' host time
    software: str  # as JobTrace's
    measured: bool  # whether the machine's speed was
    slowness: tuple[float, NDArray[np.float64], str]  # as of `told`

    @staticmethod
    def of(trace: JobTrace, times: CallTimes | None = None) -> Recording:
        """`times`: None for the shipped ones."""
        own = tally(trace)
        slowness = told(trace, own, times or shipped_for(trace.software))
        measured = trace.host_speed is not None
        return Recording(own.alike[:, 0], own.host_ns, own.share, trace.software, measured, slowness)


@dataclass(frozen=True)
class Calls:
    """Calls of all recordings, those of a kind beside each other."""

    recordings: int
    recording: NDArray[np.int64]  # [calls]
    starts: NDArray[np.int64]  # [kinds + 1]
    alike: NDArray[np.int64]  # [kinds] ascending
    log_ns: NDArray[np.float64]  # [calls]
    share: NDArray[np.float64]  # [calls] of the recording's host time

    @staticmethod
    def of(
        kinds: Sequence[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]],
        scripts: NDArray[np.int64],
        least: int,
    ) -> Calls:
        """Of kinds that `least` scripts at the least make. `kinds`: of each recording (alike, log ns, share), which is
        of `scripts` [recordings]."""
        recording = np.repeat(np.arange(len(kinds)), [len(alike) for alike, _, _ in kinds])
        alike, log_ns, share = map(np.concatenate, zip(*kinds, strict=True))
        _, kind = np.unique(alike, return_inverse=True)
        pairs = np.unique(np.stack([kind, scripts[recording]]), axis=1)
        chosen = np.flatnonzero(np.bincount(pairs[0])[kind] >= least)
        chosen = chosen[np.argsort(alike[chosen], kind="stable")]
        known, starts = np.unique(alike[chosen], return_index=True)
        starts = np.append(starts, len(chosen))
        return Calls(len(kinds), recording[chosen], starts, known, log_ns[chosen], share[chosen])

    @property
    def kind(self) -> NDArray[np.int64]:
        """[calls]"""
        return np.repeat(np.arange(len(self.alike)), np.diff(self.starts))

    def net(self, slow: NDArray[np.float64]) -> NDArray[np.float64]:
        """[calls] log ns, of recordings as slow as that [recordings]."""
        return self.log_ns - slow[self.recording]

    def medians(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """[kinds] Of values [calls]."""
        ordered = values[np.lexsort((values, self.kind))]
        first, after = self.starts[:-1], self.starts[1:]
        middle: NDArray[np.float64] = (ordered[(first + after - 1) // 2] + ordered[(first + after) // 2]) / 2
        return middle

    def slow(self) -> NDArray[np.float64]:
        """[recordings] How much longer each one's calls took, its logarithm; NaN where it has none."""
        slow = np.zeros(self.recordings)
        of = [np.flatnonzero(self.recording == each) for each in range(self.recordings)]
        for _ in range(ROUNDS):
            over = self.log_ns - self.medians(self.net(slow))[self.kind]
            each = [weighted_median(over[rows], self.share[rows]) if len(rows) else np.nan for rows in of]
            slow = np.array(each) - np.nanmedian(each)
        return slow


@dataclass(frozen=True)
class ScriptTimes:
    """What a script's calls take of the reference host."""

    times: CallTimes
    noise: float  # standard deviation of the logarithm of what a call takes, from recording to recording
    configuration: NDArray[np.float64]  # [kinds of the times] variance of that, between configurations
    recordings: int
    unknown: str  # why how slow all were on the whole is not known; empty: it is

    @staticmethod
    def of(recordings: Sequence[Recording], times: CallTimes | None = None) -> ScriptTimes | None:
        """Of the recordings of the software that most have; None where no two have calls in common. `times` of other
        scripts: None for the shipped ones."""
        software = Counter(each.software for each in recordings).most_common(1)[0][0] if recordings else ""
        recordings = [each for each in recordings if each.software == software]
        times = times or shipped_for(software)
        kinds = [(each.alike, np.log(each.host_ns), each.share) for each in recordings]
        calls = Calls.of(kinds, np.arange(len(kinds)), least=2) if len(kinds) > 1 else None
        if calls is None or not len(calls.alike):
            return None
        net = calls.net(calls.slow())
        medians = calls.medians(net)
        scatter = NORMAL * calls.medians(np.abs(net - medians[calls.kind]))
        level, unknown = _level(recordings, times)
        own = CallTimes(
            software,
            calls.alike,
            np.exp(medians - level),
            DISTURBANCE,
            (CONFIGURATION,) * len(times.script),
            times.borrowed,
        )
        configuration = np.maximum(scatter**2 - times.recording**2, 0.0)
        return ScriptTimes(own, times.recording, configuration, len(recordings), unknown)

    def undisturbed(self, trace: JobTrace) -> Undisturbed:
        """Takes a recording's disturbance out of it, as a whole and call by call. One that has hardly a call in common
        with the others is judged alone."""
        alike_of = identities(trace)
        log, known, unlike = told(trace, tally(trace, alike_of), self.times)
        if unlike:
            return undisturbed(trace)
        noise = UNKNOWN_SPEED if trace.host_speed is None else self.times.recording
        factor = math.exp(-self.times.of_recording(log, known, noise))
        ranks = tuple(
            self._call_by_call(rank, alike[:, 0], factor)
            for rank, alike in zip(trace.ranks, alike_of, strict=True)
        )
        notes = (as_recorded(trace, self.unknown),) if self.unknown else self.times.notes
        return at(trace, ranks, factor, notes)

    def _call_by_call(self, rank: RankTrace, alike: NDArray[np.int64], factor: float) -> RankTrace:
        """With the noise of each kind of its calls taken out, and `factor` of all. `alike`: [records]."""
        records = rank.records.copy()
        host_ns = records["host_ns"] * factor
        place, known = places(self.times.alike, alike)
        known &= ~records["graph"]
        kinds, kind, count = np.unique(place[known], return_inverse=True, return_counts=True)
        mean = np.bincount(kind, host_ns[known], len(kinds)) / count
        log = np.log(np.maximum(mean, 1.0) / self.times.host_ns[kinds])
        host_ns[known] *= np.exp(-of_noise(log, self.noise, self.configuration[kinds]))[kind]
        records["host_ns"] = np.rint(host_ns)
        return replace(rank, records=records)


def undisturbed_beside(trace: JobTrace, script: ScriptTimes | None) -> Undisturbed:
    """By all that recordings tell of the script; None: judged alone."""
    return script.undisturbed(trace) if script else undisturbed(trace)


def _level(recordings: Sequence[Recording], times: CallTimes) -> tuple[float, str]:
    """(How much longer calls took in the median recording than undisturbed, a logarithm, as it is to be expected; why
    that is not known, empty: it is)."""
    slowness = [each.slowness for each in recordings]
    known = [(log, shares) for log, shares, unknown in slowness if not unknown]
    if not known:
        return 0.0, slowness[0][2]
    measured = all(each.measured for each in recordings)  # else one machine's speed is in them all
    noise = times.noise(measured, len(known) / MEDIAN)
    shares = np.mean([shares for _, shares in known], axis=0)
    return times.of_recording(float(np.median([log for log, _ in known])), shares, noise), ""
