"""Cuts the steady iteration out of what a rank recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from maya.launch.content import contents
from maya.launch.types import Run
from maya.trace.format import RawRank, TraceError, signatures
from maya.trace.host import calls_alike
from maya.trace.period import find_repetition
from maya.trace.silent import IRREGULAR
from maya.trace.types import DEVICE_WORK, RecordKind
from maya.trace.waits import resolve_waits

UNLIKE = 16  # iterations whose mean stands for all, where no two are alike
_ONCE_TIMES, _ONCE_NS = 10, 20_000_000  # what is taken once is so many times what it takes else, and so much


@dataclass(frozen=True)
class Calls:
    """A rank's device calls from its start, and which of them are alike (trace/host.py), on all ranks."""

    whole: RawRank  # with all records
    raw: RawRank  # of its own
    alike: NDArray[np.int64]  # [records]


@dataclass(frozen=True)
class Cut:
    """One rank's steady iteration: raw records, host_ns the median over `iterations` recorded ones."""

    records: NDArray[np.void]
    alike: NDArray[np.int64]  # [records]
    waits: NDArray[np.int32]  # [records] as RECORD's
    iterations: int


def over_unlike(run: Run, calls: Sequence[Calls], notes: list[str]) -> Run:
    """The run with its last several iterations as one, where they do not repeat, as of batches of unlike lengths. With
    several optimizers, or of which nothing is known, it is not told how many iterations so many steps are: the last
    step then stays."""
    if run.alike:
        return run
    last = run.steady[1]
    several = min(UNLIKE, last // 2)  # the first ones set up
    unlike = f"iterations did not come to repeat in {last} optimizer steps"
    if several < 2 or not all(_has_one_optimizer(each.raw) for each in calls):
        notes.append(f"{unlike}: the last one is taken for all")
        return run
    notes.append(f"{unlike}: the mean of the last {several} is taken for all")
    return replace(run, steady=(last - several, last), period=several)


def _has_one_optimizer(raw: RawRank) -> bool:
    optimizers = _stepped_optimizers(raw.records)
    return bool(optimizers.all()) and len(np.unique(optimizers)) == 1


def _stepped_optimizers(records: NDArray[np.void]) -> NDArray[np.uint64]:
    """Of each step in turn; 0 where it is not known."""
    optimizers: NDArray[np.uint64] = records["size"][records["kind"] == RecordKind.STEP]
    return optimizers


def steady_iteration(calls: Calls, run: Run, notes: list[str]) -> Cut:
    first, last = run.steady
    if last <= first:
        return _cut_by_period(calls, notes)
    raw = calls.raw
    is_step = raw.records["kind"] == RecordKind.STEP
    row_of_step = {int(raw.records["arg"][row]): int(row) for row in np.flatnonzero(is_step)}
    marks = range(first, last + 1, run.period)
    missing = [step for step in marks if step > 0 and step not in row_of_step]
    if missing or (last - first) % run.period:
        raise TraceError(
            f"{raw.path}: steady steps ({first}, {last}] in periods of {run.period}, "
            f"recorded are steps {min(row_of_step, default=0)} to {max(row_of_step, default=0)}"
        )
    bounds = [row_of_step[step] + 1 if step > 0 else 0 for step in marks]
    return _median(calls, bounds, notes)


def iterations_per_cycle(records: NDArray[np.void]) -> int:
    """Iterations of the script in the records of what repeats. Each steps every optimizer equally often: a script that
    steps one twice before its calls repeat does something every second iteration, as logging. 1 where optimizers are
    not known."""
    optimizers = _stepped_optimizers(records)
    if not optimizers.all():
        return 1
    return math.gcd(*np.unique(optimizers, return_counts=True)[1].tolist()) or 1


def device_calls(raw: RawRank) -> Calls:
    """Without what differs between like iterations: the caching allocator's trips to the driver. Their host
    time goes to the next call."""
    rows = np.flatnonzero(~np.isin(raw.records["kind"], IRREGULAR))
    kept = raw.records[rows].copy()
    for name in ("host_ns", "ranges"):
        passed = np.diff(np.cumsum(raw.records[name].astype(np.uint64))[rows], prepend=np.uint64(0))
        kept[name] = passed.clip(max=np.iinfo(kept[name].dtype).max)
    calls = replace(raw, records=kept)
    return Calls(raw, calls, calls_alike(kept["kind"], contents(kept, raw.operations, raw.contexts)))


def samples(calls: Calls, run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(alike, host_ns) of the calls that tell what a steady one costs: where operators were not observed, if that was
    so, else none of the first step where there are more. What compilers time there, in loops of hundreds of calls, is
    like no other."""
    records = calls.raw.records
    start = calls.raw.rows_after([run.silent[0]])[0] if run.silent[0] else _second_step(calls.raw, run)
    return calls.alike[start:], records["host_ns"][start:].astype(np.int64)


def _second_step(raw: RawRank, run: Run) -> int:
    """Where the calls after the first step begin; 0 where there are none that count."""
    steps = np.flatnonzero(raw.records["kind"] == RecordKind.STEP)
    return int(steps[0]) + 1 if run.steady[0] > 0 and len(steps) else 0


def factorised_before(raw: RawRank, cut: Cut) -> set[str]:
    """Routines of LAPACK that a rank called and its steady iteration does not, as optimizers do that factorise at their
    first step, or every so many."""
    routines = {op: line["routine"] for op, line in raw.operations.items() if line["kind"] == "lapack"}
    own = cut.records["op"][cut.records["kind"] == RecordKind.KERNEL]
    return set(routines.values()) - {routines[op] for op in np.unique(own).tolist() if op in routines}


def _cut_by_period(calls: Calls, notes: list[str]) -> Cut:
    """A script without optimizer steps: what its calls repeat."""
    raw = calls.raw
    repetition = find_repetition(signatures(raw, raw.records["stream"]), *_answered_and_worked(raw))
    if repetition is None:
        notes.append(f"rank {raw.rank}: no optimizer step and no repetition; its whole run is one iteration")
        return Cut(raw.records, calls.alike, resolve_waits(raw.records["kind"], raw.records["arg"]), 1)
    start, length, end = repetition
    bounds = list(range(start, end + 1, length))
    repeats = "one call that repeats" if length == 1 else f"the {length} calls that repeat"
    notes.append(f"rank {raw.rank}: no optimizer step; an iteration is {repeats}")
    return _median(calls, bounds, notes)


def _answered_and_worked(raw: RawRank) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[records] Whether it is a copy to the host, and whether it is anything else that a device does."""
    kind = raw.records["kind"]
    to_host = [op for op, line in raw.operations.items() if line.get("direction") == "d2h"]
    answered = (kind == RecordKind.MEMCPY) & np.isin(raw.records["op"], to_host)
    return answered, np.isin(kind, DEVICE_WORK) & ~answered


def _median(calls: Calls, bounds: list[int], notes: list[str]) -> Cut:
    """The last of the iterations between `bounds`, with the median host time of those equal to it."""
    raw = calls.raw
    last = slice(bounds[-2], bounds[-1])
    signature = signatures(raw, _in_order_of_use(raw.records["stream"], bounds))
    alike = [slice(a, b) for a, b in pairwise(bounds) if np.array_equal(signature[a:b], signature[last])]
    if len(alike) < len(bounds) - 1:
        notes.append(
            f"rank {raw.rank}: {len(alike)} of {len(bounds) - 1} steady iterations equal the last one"
        )
    records = raw.records[last].copy()
    host = np.stack([raw.records["host_ns"][part] for part in alike])
    records["host_ns"] = _usual(host)
    return Cut(records, calls.alike[last], _waits(raw.records, signature, last), len(alike))


def _usual(host_ns: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """[records] Of [iterations, records] the median. Of two iterations that is no more than their mean: what one of
    them took once, as one that compiles code for a new shape does, is left out."""
    usual: NDArray[np.uint64] = np.median(host_ns, axis=0).astype(np.uint64)
    if len(host_ns) != 2:
        return usual
    least, most = host_ns.min(axis=0), host_ns.max(axis=0)
    return np.where((most > _ONCE_TIMES * least) & (most > _ONCE_NS), least, usual)


def _in_order_of_use(streams: NDArray[np.uint32], bounds: list[int]) -> NDArray[np.uint32]:
    """[records] Streams numbered in each of the iterations between `bounds`, and in the one before, by their first use:
    which of its pool's a script gets may go around. The legacy default stream, which waits for others, is always 0."""
    ordered = streams.copy()
    before = max(0, 2 * bounds[0] - bounds[1])
    for start, end in pairwise([before, *bounds]):
        used, first, which = np.unique(streams[start:end], return_index=True, return_inverse=True)
        place = np.empty(len(used), np.uint32)
        place[np.argsort(np.where(used == 0, -1, first))] = np.arange(len(used)) + (0 not in used)
        ordered[start:end] = place[which]
    return ordered


def _waits(records: NDArray[np.void], signature: NDArray[np.uint64], last: slice) -> NDArray[np.int32]:
    own = records[last]
    before = slice(last.start - len(own), last.start)
    known = before.start >= 0 and np.array_equal(signature[before], signature[last])
    return resolve_waits(own["kind"], own["arg"], records["arg"][before] if known else None)
