"""Turns the rank traces of a launch into a `JobTrace`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maya.launch.layout import FLAG_BLOCKING, FLAG_GRAPH, rank_path
from maya.launch.loading import loading_seconds
from maya.launch.rollouts import ROLLOUT, products, products_before
from maya.launch.topology import groups_path, read_topology
from maya.launch.types import Run
from maya.launch.unrecorded import unrecorded_note
from maya.trace.absent import announce_all, announced_by_all
from maya.trace.agreement import join_ranks
from maya.trace.classes import as_rank, lanes_of, refine
from maya.trace.communicators import Announced, Instance, fold, join_instances
from maya.trace.format import RawRank, TraceError, read_communicators, read_rank
from maya.trace.host import UndisturbedTimes
from maya.trace.host_speed import host_software, host_speed, on_reference
from maya.trace.inferred import inferred_ranks
from maya.trace.iteration import (
    Calls,
    Cut,
    device_calls,
    factorised_before,
    iterations_per_cycle,
    over_unlike,
    samples,
    steady_iteration,
)
from maya.trace.operations import OperationTable
from maya.trace.passes import passes
from maya.trace.rendezvous import PARTY, count_within
from maya.trace.silent import with_silence
from maya.trace.types import (
    ALLOCATION,
    RECORD,
    Communicator,
    JobTrace,
    RankTrace,
    RecordKind,
)


def collate(run: Run) -> JobTrace:
    """Cuts the steady iteration out of each representative's trace, decodes it and joins the ranks.

    Raises TraceError when a file is damaged or ranks disagree on what they did together.
    """
    if len(run.representative_of) != run.world:
        raise TraceError(f"{len(run.representative_of)} representatives for a world of {run.world} ranks")
    notes = [*run.notes, *unrecorded_note(run.directory)]
    started = sorted(set(run.representative_of) - set(run.inferred))
    traced = [read_rank(rank_path(run.directory, rank)) for rank in started]
    run, traced = with_silence(run, traced)
    traced += inferred_ranks(run, {raw.rank: raw for raw in traced})
    announced = _announced(run, traced, notes)
    traced = [replace(raw, communicators=announced[raw.rank]) for raw in traced]
    instances = join_instances(announced, run.world)
    calls = [device_calls(raw) for raw in traced]
    run = over_unlike(run, calls, notes)
    speed = host_speed(run.pace_ns)
    for each in calls:
        each.raw.records["host_ns"] = on_reference(each.raw.records, speed or 1.0)
    undisturbed = UndisturbedTimes.of([samples(each, run) for each in calls])
    raws, cuts, class_of_rank = _classes(run, calls, announced, instances, notes)
    del calls
    notes += _rare_note(set().union(*map(factorised_before, raws, cuts)))
    notes += _rollout_note(max(map(_products_before, raws, cuts)))
    representatives = [raw.rank for raw in raws]
    communicators, lookup = fold(instances, representatives, class_of_rank)
    table = OperationTable()
    tables, parties = [], []
    for number, (raw, cut) in enumerate(zip(raws, cuts, strict=True)):
        members = {index: tuple(instances[local.id].members) for index, local in raw.communicators.items()}
        operations = table.intern(raw, cut.records, members)
        records, party = _rows(number, raw, cut.records, operations, lookup, class_of_rank, members)
        records["host_ns"] = undisturbed.applied(cut.alike, records["host_ns"])
        records["wait"] = cut.waits
        tables.append(records)
        parties.append(party)
    used = _keep_used(tables, parties, communicators)
    per_cycle = math.gcd(*(iterations_per_cycle(cut.records) for cut in cuts))
    if per_cycle > 1 and run.alike:
        notes.append(f"only every {_ordinal(per_cycle)} iteration is alike")
    join_ranks(tables, parties, used, table.operations, class_of_rank, representatives, notes)
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
        iterations_per_cycle=per_cycle,
        unsupported=tuple(dict.fromkeys(name for raw in raws for name in raw.unsupported)),
        uncovered=tuple(dict.fromkeys(name for raw in raws for name in raw.uncovered)),
        host_speed=speed,
        loading_s=_loading_seconds(run, started) / per_cycle * (speed or 1.0),
        software=host_software(),
        notes=tuple(dict.fromkeys([*notes, *(remark for raw in raws for remark in raw.remarks)])),
    )


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _loading_seconds(run: Run, ranks: list[int]) -> float:
    """Of a cycle, on this machine and the rank where it is longest."""
    first, last = run.steady
    cycles = max((last - first) / run.period, 1)
    return max(loading_seconds(run.directory, rank, run.steady) for rank in ranks) / cycles


def _rare_note(routines: set[str]) -> list[str]:
    if not routines:
        return []
    return [
        f"{', '.join(sorted(routines))}: only before the steady iteration. What an optimizer repeats every so many "
        "steps, more than eight, is not in the figures; --iterations with twice as many has it"
    ]


def _products_before(raw: RawRank, cut: Cut) -> float:
    return products_before(raw.records, raw.operations, products(cut.records, raw.operations))


def _rollout_note(products: float) -> list[str]:
    if products < ROLLOUT:
        return []
    return [
        f"{products:.0f} iterations' matrix products come before the first step (a rollout, an evaluation): if such "
        "come again every N steps, up to 31, --iterations 2N takes them in"
    ]


def _classes(
    run: Run, calls: list[Calls], announced: Announced, instances: dict[str, Instance], notes: list[str]
) -> tuple[list[RawRank], list[Cut], NDArray[np.int32]]:
    """(trace, iteration) of each class of ranks that make the same calls and meet the same classes."""
    cut_of = {each.raw.rank: steady_iteration(each, run, notes) for each in calls}
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
    topology = read_topology(groups_path(run.directory, 0), run.world)
    announced, untold = announced_by_all(announced, run.representative_of, topology)
    notes += untold
    return announced


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
        passes=passes(cut, records["operation"]),
    )


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
