"""Turns the rank traces of a launch into a `JobTrace`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from maya.launch.content import contents
from maya.launch.layout import FLAG_BLOCKING, FLAG_GRAPH, rank_path
from maya.launch.types import Run
from maya.trace.absent import announce_all
from maya.trace.classes import as_rank, lanes_of, refine
from maya.trace.communicators import Announced, Instance, announced_by_all, fold, join_instances
from maya.trace.format import RawRank, TraceError, read_communicators, read_rank, signatures
from maya.trace.host import UndisturbedTimes, calls_alike
from maya.trace.host_speed import host_speed, on_reference, spans_of
from maya.trace.inferred import inferred_ranks
from maya.trace.operations import OperationTable
from maya.trace.period import find_period
from maya.trace.rendezvous import PARTY, count_within, join
from maya.trace.types import (
    ALLOCATION,
    RECORD,
    Collective,
    Communicator,
    JobTrace,
    Operation,
    RankTrace,
    RecordKind,
)

_UNKNOWN_SPEED = (
    "how fast this machine is cannot be told by this script: its host time is as recorded here, not scaled to the "
    "cluster's hosts"
)


@dataclass(frozen=True)
class _Calls:
    """A rank's device calls from its start, and which of them are alike (trace/host.py), on all ranks."""

    whole: RawRank  # with all records
    raw: RawRank
    alike: NDArray[np.int64]  # [records]

    def on_reference(self, speed: float) -> _Calls:
        """With the reference host's time, recorded on one `speed` times as fast."""
        records = self.raw.records.copy()
        records["host_ns"] = on_reference(records, speed)
        return replace(self, raw=replace(self.raw, records=records))


@dataclass(frozen=True)
class _Cut:
    """One rank's steady iteration: raw records, host_ns the median over `iterations` recorded ones."""

    records: NDArray[np.void]
    alike: NDArray[np.int64]  # [records]
    iterations: int


def collate(run: Run) -> JobTrace:
    """Cuts the steady iteration out of each representative's trace, decodes it and joins the ranks.

    Raises TraceError when a file is damaged or ranks disagree on what they did together.
    """
    if len(run.representative_of) != run.world:
        raise TraceError(f"{len(run.representative_of)} representatives for a world of {run.world} ranks")
    notes: list[str] = list(run.notes)
    started = sorted(set(run.representative_of) - set(run.inferred))
    traced = [read_rank(rank_path(run.directory, rank)) for rank in started]
    traced += inferred_ranks(run, {raw.rank: raw for raw in traced})
    announced = _announced(run, traced, notes)
    traced = [replace(raw, communicators=announced[raw.rank]) for raw in traced]
    instances = join_instances(announced, run.world)
    calls = [_device_calls(raw) for raw in traced]
    spans = spans_of([(each.raw, _second_step(each.raw, run)) for each in calls])
    speed = host_speed(spans)
    if speed is None:
        notes.append(_UNKNOWN_SPEED)
    calls = [each.on_reference(speed or 1.0) for each in calls]
    undisturbed = UndisturbedTimes.of([_samples(each, run) for each in calls])
    raws, cuts, class_of_rank = _classes(run, calls, announced, instances, notes)
    del calls
    representatives = [raw.rank for raw in raws]
    communicators, lookup = fold(instances, representatives, class_of_rank)
    table = OperationTable()
    tables, parties = [], []
    for number, (raw, cut) in enumerate(zip(raws, cuts, strict=True)):
        members = {index: tuple(instances[local.id].members) for index, local in raw.communicators.items()}
        operations = table.intern(raw, cut.records, members)
        records, party = _rows(number, raw, cut.records, operations, lookup, class_of_rank, members)
        records["host_ns"] = undisturbed.applied(cut.alike, records["host_ns"])
        tables.append(records)
        parties.append(party)
    used = _keep_used(tables, parties, communicators)
    _join_ranks(tables, parties, used, table.operations, class_of_rank, representatives, notes)
    return JobTrace(
        world=run.world,
        ranks=tuple(
            _rank_trace(raw, cut.records, records)
            for raw, cut, records in zip(raws, cuts, tables, strict=True)
        ),
        class_of_rank=class_of_rank,
        launched=run.launched,
        checked=run.checked,
        operations=table.operations,
        communicators=used,
        iterations_recorded=min(cut.iterations for cut in cuts),
        unsupported=tuple(dict.fromkeys(name for raw in raws for name in raw.unsupported)),
        uncovered=tuple(dict.fromkeys(name for raw in raws for name in raw.uncovered)),
        host_speed=speed,
        spans=spans,
        notes=tuple(dict.fromkeys([*notes, *(remark for raw in raws for remark in raw.remarks)])),
    )


def _classes(
    run: Run, calls: list[_Calls], announced: Announced, instances: dict[str, Instance], notes: list[str]
) -> tuple[list[RawRank], list[_Cut], NDArray[np.int32]]:
    """(trace, iteration) of each class of ranks that make the same calls and meet the same classes."""
    cut_of = {each.raw.rank: _cut(each, run, notes) for each in calls}
    raw_of = {each.raw.rank: each.whole for each in calls}
    lanes = {rank: lanes_of(cut_of[rank].records, raw.communicators) for rank, raw in raw_of.items()}
    class_of_rank = refine(run.representative_of, lanes, announced, instances).astype(np.int32)
    _, lowest = np.unique(class_of_rank, return_index=True)
    raws, cuts = [], []
    for number, rank in enumerate(lowest.tolist()):
        source = run.representative_of[rank]
        rank = source if class_of_rank[source] == number else rank
        raw, cut = raw_of[source], cut_of[source]
        if rank != source:
            raw, records = as_rank(raw, cut.records, rank, announced)
            cut = replace(cut, records=records)
        raws.append(raw)
        cuts.append(cut)
    return raws, cuts, class_of_rank


def _announced(run: Run, raws: list[RawRank], notes: list[str]) -> Announced:
    if run.topology is not None:
        return announce_all(run.topology, run.representative_of, raws)
    announced: Announced = {raw.rank: raw.communicators for raw in raws}
    for rank in range(run.world):
        ops = rank_path(run.directory, rank).with_suffix(".ops")
        if rank not in announced and ops.is_file():
            announced[rank] = read_communicators(ops)
    announced, untold = announced_by_all(announced, run.representative_of, run.world)
    notes += untold
    return announced


# --- the steady iteration ---------------------------------------------------------------------------------


def _cut(calls: _Calls, run: Run, notes: list[str]) -> _Cut:
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


def _device_calls(raw: RawRank) -> _Calls:
    """Without what differs between like iterations: the caching allocator's trips to the driver. Their host
    time goes to the next call."""
    irregular = (RecordKind.ALLOCATE, RecordKind.FREE, RecordKind.HOST)
    rows = np.flatnonzero(~np.isin(raw.records["kind"], irregular))
    kept = raw.records[rows].copy()
    for name in ("host_ns", "ranges"):
        passed = np.diff(np.cumsum(raw.records[name].astype(np.uint64))[rows], prepend=np.uint64(0))
        kept[name] = passed.clip(max=np.iinfo(kept[name].dtype).max)
    calls = replace(raw, records=kept)
    return _Calls(raw, calls, calls_alike(kept["kind"], contents(kept, raw.operations, raw.contexts)))


def _samples(calls: _Calls, run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(alike, host_ns) of the calls that tell what a steady one costs: none of the first step where there are more.
    What compilers time there, in loops of hundreds of calls, is like no other."""
    records = calls.raw.records
    start = _second_step(calls.raw, run)
    return calls.alike[start:], records["host_ns"][start:].astype(np.int64)


def _second_step(raw: RawRank, run: Run) -> int:
    """Where the calls after the first step begin; 0 where there are none that count."""
    steps = np.flatnonzero(raw.records["kind"] == RecordKind.STEP)
    return int(steps[0]) + 1 if run.steady[0] > 0 and len(steps) else 0


def _cut_by_period(calls: _Calls, notes: list[str]) -> _Cut:
    """A script without optimizer steps: what its calls repeat at the end."""
    raw = calls.raw
    period = find_period(signatures(raw))
    if period is None:
        notes.append(f"rank {raw.rank}: no optimizer step and no repetition; its whole run is one iteration")
        return _Cut(raw.records, calls.alike, 1)
    start, length = period
    bounds = list(range(start, len(raw.records) + 1, length))
    notes.append(f"rank {raw.rank}: no optimizer step; an iteration is the {length} calls that repeat")
    return _median(calls, bounds, notes)


def _median(calls: _Calls, bounds: list[int], notes: list[str]) -> _Cut:
    """The last of the iterations between `bounds`, with the median host time of those equal to it."""
    raw = calls.raw
    signature = signatures(raw)
    last = slice(bounds[-2], bounds[-1])
    alike = [slice(a, b) for a, b in pairwise(bounds) if np.array_equal(signature[a:b], signature[last])]
    if len(alike) < len(bounds) - 1:
        notes.append(
            f"rank {raw.rank}: {len(alike)} of {len(bounds) - 1} steady iterations equal the last one"
        )
    records = raw.records[last].copy()
    host = np.stack([raw.records["host_ns"][part] for part in alike])
    records["host_ns"] = np.median(host, axis=0).astype(np.uint64)
    return _Cut(records, calls.alike[last], len(alike))


# --- one rank ---------------------------------------------------------------------------------------------


def _rows(
    rank_class: int,
    raw: RawRank,
    cut: NDArray[np.void],
    operations: NDArray[np.int32],
    lookup: dict[tuple[int, int], int],
    class_of_rank: NDArray[np.int32],
    members: dict[int, tuple[int, ...]],
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """A rank's rows (dtype RECORD) and, for those that meet others, its side of it (dtype PARTY)."""
    records = np.zeros(len(cut), RECORD)
    for name in ("kind", "stream", "host_ns", "size"):
        records[name] = cut[name]
    records["blocking"] = cut["flags"] & FLAG_BLOCKING
    records["graph"] = cut["flags"] & FLAG_GRAPH
    records["operation"] = operations
    records["wait"] = resolve_waits(cut["kind"], cut["arg"])
    records["group"] = _renumber_groups(cut["group"])
    for name in ("communicator", "sequence", "peer_class", "rendezvous"):
        records[name] = -1

    rows = np.flatnonzero(cut["kind"] == RecordKind.COLLECTIVE)
    party = np.zeros(len(rows), PARTY)
    party["class"], party["row"], party["peer"] = rank_class, rows, cut["peer"][rows]
    party["peer_class"] = -1
    for index in np.unique(cut["arg"][rows]):
        _fill_party(party, cut["arg"][rows] == index, raw, int(index), lookup, class_of_rank, members)
    sends = [op for op, line in raw.operations.items() if line.get("collective") == "send"]
    party["sends"] = np.isin(cut["op"][rows], sends)
    party["sequence"] = _sequences(party)
    for name in ("communicator", "sequence", "peer_class"):
        records[name][rows] = party[name]
    return records, party


def _fill_party(
    party: NDArray[np.void],
    chosen: NDArray[np.bool_],
    raw: RawRank,
    index: int,
    lookup: dict[tuple[int, int], int],
    class_of_rank: NDArray[np.int32],
    members: dict[int, tuple[int, ...]],
) -> None:
    local = raw.communicators[index]
    classes = np.array([class_of_rank[m] if m >= 0 else -1 for m in members[index]], np.int32)
    number = lookup.get((int(class_of_rank[raw.rank]), index))
    if number is None:
        raise TraceError(f"rank {raw.rank} uses its communicator {index} but never announced it")
    party["communicator"][chosen] = number
    party["place"][chosen] = local.rank
    party["size"][chosen] = local.size
    p2p = chosen & (party["peer"] >= 0)
    party["peer_class"][p2p] = classes[party["peer"][p2p]]


def _sequences(party: NDArray[np.void]) -> NDArray[np.int32]:
    """Ordinals of collectives on their communicator, of transfers per peer and direction."""
    lane = (party["peer"].astype(np.int64) + 1) * 2 + party["sends"]
    return count_within(party["communicator"].astype(np.int64) << 32 | lane)


def resolve_waits(kind: NDArray[np.uint8], event: NDArray[np.uint64]) -> NDArray[np.int32]:
    """[records] For waits on an event the row of its latest record before them, else of its last one in
    the iteration (that is: the previous iteration's, cudaStreamWaitEvent waits for the latest), else -1."""
    result = np.full(len(kind), -1, np.int32)
    records = kind == RecordKind.EVENT_RECORD
    waits = (kind == RecordKind.STREAM_WAIT_EVENT) | (kind == RecordKind.EVENT_SYNCHRONIZE)
    rows = np.flatnonzero(records | waits)
    if not len(rows):
        return result
    _, dense = np.unique(event[rows], return_inverse=True)
    order = np.argsort(dense, kind="stable")
    dense, ordered = dense[order], rows[order]
    # Running maximum of (event, row of a record): what an event has seen so far, in row order.
    stride = len(kind) + 1
    seen = np.where(records[ordered], dense * stride + ordered + 1, dense * stride)
    latest = np.maximum.accumulate(seen) - dense * stride - 1
    final = np.maximum.reduceat(seen, np.flatnonzero(np.diff(dense, prepend=-1))) % stride - 1
    latest = np.where(latest >= 0, latest, final[dense])
    is_wait = waits[ordered]
    result[ordered[is_wait]] = latest[is_wait]
    return result


def _renumber_groups(group: NDArray[np.uint32]) -> NDArray[np.int32]:
    distinct, inverse = np.unique(group, return_inverse=True)
    numbers = np.arange(len(distinct)) + (0 if len(distinct) and distinct[0] == 0 else 1)
    return numbers[inverse.reshape(-1)].astype(np.int32) if len(group) else np.empty(0, np.int32)


def _rank_trace(raw: RawRank, cut: NDArray[np.void], records: NDArray[np.void]) -> RankTrace:
    return RankTrace(
        rank=raw.rank,
        records=records,
        peak_reserved_bytes=raw.peak_reserved_bytes + raw.context_bytes,
        capacity_bytes=raw.capacity_bytes,
        allocations=_allocations(raw.records),
        blocking_streams=raw.blocking_streams,
        stepping_thread=_on_stepping_thread(cut),
    )


def _on_stepping_thread(cut: NDArray[np.void]) -> NDArray[np.bool_] | None:
    """None without a step. Of a graph only its replay's thread is known, so it counts as nobody's."""
    steps = cut["thread"][cut["kind"] == RecordKind.STEP]
    return cut["thread"] == steps[-1] if len(steps) and not (cut["flags"] & FLAG_GRAPH).any() else None


def _allocations(records: NDArray[np.void]) -> NDArray[np.void]:
    rows = np.flatnonzero((records["kind"] == RecordKind.ALLOCATE) | (records["kind"] == RecordKind.FREE))
    allocations = np.empty(len(rows), ALLOCATION)
    allocations["record"] = rows
    allocations["step"] = np.searchsorted(np.flatnonzero(records["kind"] == RecordKind.STEP), rows)
    sign = np.where(records["kind"][rows] == RecordKind.ALLOCATE, 1, -1)
    allocations["bytes"] = sign * records["size"][rows].astype(np.int64)
    return allocations


# --- all ranks together -----------------------------------------------------------------------------------


def _keep_used(
    tables: list[NDArray[np.void]], parties: list[NDArray[np.void]], communicators: list[Communicator]
) -> tuple[Communicator, ...]:
    """Drops communicators that the iteration does not use; renumbers the others in place."""
    used = np.unique(np.concatenate([party["communicator"] for party in parties]))
    for records, party in zip(tables, parties, strict=True):
        party["communicator"] = np.searchsorted(used, party["communicator"])
        records["communicator"][party["row"]] = party["communicator"]
    kept = [communicators[number] for number in used]
    return tuple(replace(communicator, id=n) for n, communicator in enumerate(kept))


def _join_ranks(
    tables: list[NDArray[np.void]],
    parties: list[NDArray[np.void]],
    communicators: tuple[Communicator, ...],
    operations: tuple[Operation, ...],
    class_of_rank: NDArray[np.int32],
    representatives: list[int],
    notes: list[str],
) -> None:
    """Numbers the rendezvous in `tables`, having checked that the parties agree on them."""
    party = np.concatenate(parties)
    _check_counts(party, communicators, representatives)
    number, found = join(party)
    for rank_class, records in enumerate(tables):
        own = party["class"] == rank_class
        records["rendezvous"][party["row"][own]] = number[own]
    _check_kinds(tables, party, number, operations, representatives)
    _check_transfers(party[~found], class_of_rank, representatives, notes)


def _check_counts(
    party: NDArray[np.void], communicators: tuple[Communicator, ...], representatives: list[int]
) -> None:
    for communicator in communicators:
        own = party[(party["communicator"] == communicator.id) & (party["peer"] < 0)]
        if not len(own):
            continue
        calls = {c: int((own["class"] == c).sum()) for c in communicator.classes}
        if len(set(calls.values())) > 1:
            listed = ", ".join(f"rank {representatives[c]}: {n}" for c, n in calls.items())
            raise TraceError(
                f"communicator {communicator.id} (ranks {_listed(communicator.members)}): its members "
                f"disagree on how many collectives an iteration has ({listed})"
            )


def _check_kinds(
    tables: list[NDArray[np.void]],
    party: NDArray[np.void],
    number: NDArray[np.int32],
    operations: tuple[Operation, ...],
    representatives: list[int],
) -> None:
    names = np.array([op.collective if isinstance(op, Collective) else "" for op in operations] or [""])
    _, code_of_operation = np.unique(names, return_inverse=True)
    operation = np.empty(len(party), np.int64)
    for rank_class, records in enumerate(tables):
        own = party["class"] == rank_class
        operation[own] = records["operation"][party["row"][own]]
    code = code_of_operation.reshape(-1)[operation] if len(party) else np.empty(0, np.int64)
    first = np.full(int(number.max(initial=-1)) + 1, -1)
    first[number[::-1]] = np.arange(len(number))[::-1]
    for row in np.flatnonzero((code != code[first[number]]) & (party["peer"] < 0)):
        other = first[number[row]]
        raise TraceError(
            f"communicator {party['communicator'][row]}, collective {party['sequence'][row]} of the "
            f"iteration: rank {representatives[party['class'][other]]} calls {names[operation[other]]}, "
            f"rank {representatives[party['class'][row]]} calls {names[operation[row]]}"
        )


def _check_transfers(
    alone: NDArray[np.void], class_of_rank: NDArray[np.int32], representatives: list[int], notes: list[str]
) -> None:
    """A transfer without other side is an error between single ranks; else its peer is not simulated."""
    sizes = np.bincount(class_of_rank, minlength=len(representatives))
    for side in alone:
        own, peer = int(side["class"]), int(side["peer_class"])
        if peer >= 0 and sizes[own] == 1 and sizes[peer] == 1:
            here, there = representatives[own], representatives[peer]
            verb, back = ("sends to", "receives") if side["sends"] else ("receives from", "sends")
            raise TraceError(
                f"communicator {side['communicator']}: rank {here} {verb} rank {there} "
                f"{side['sequence'] + 1} times an iteration, rank {there} {back} {side['sequence']}"
            )
    if len(alone):
        notes.append(f"{len(alone)} transfers go to ranks that are not simulated; they wait for nobody")


def _listed(members: tuple[int, ...]) -> str:
    shown = ", ".join("?" if m < 0 else str(m) for m in members[:8])
    return shown + (", ..." if len(members) > 8 else "")
