"""Splits the classes of a `JobTrace`, down to one class a rank: what merging ranks left out is put back.

Classes are split no further than they must be: until all ranks of a class meet the same classes and make the
same calls (colour refinement: Cardon, Crochemore 1982).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from maya.trace.format import TraceError
from maya.trace.rendezvous import PARTY, count_within, join
from maya.trace.types import Collective, Communicator, JobTrace, Operation, RankTrace, RecordKind

Colours = NDArray[np.int64]  # [world] the class of each rank


class UnknownMembersError(TraceError):
    """Classes cannot be taken apart: who meets whom is not all known."""


def unfold(trace: JobTrace) -> JobTrace:
    """Every rank in a class of its own."""
    return split(trace, np.arange(trace.world))


def single_out(trace: JobTrace, ranks: Iterable[int]) -> JobTrace:
    """`ranks` in classes of their own, the others merged as far as they still do the same at the same time."""
    colour = trace.class_of_rank.astype(np.int64)
    for number, rank in enumerate(sorted(set(ranks))):
        if not 0 <= rank < trace.world:
            raise TraceError(f"rank {rank} of a job of {trace.world} ranks")
        colour[rank] = trace.world + number
    return split(trace, colour)


def split(trace: JobTrace, colour: Colours) -> JobTrace:
    """The job with classes that are at least as fine as `colour` and as its own.

    Raises UnknownMembersError when the members of a communicator, or of all that it stands for, are not known.
    """
    classes = trace.class_of_rank.astype(np.int64)
    tables = {c.id: _Table.of(c, trace.world) for c in trace.communicators}
    lanes = [_lanes(trace, rank, tables) for rank in trace.ranks]
    _require_own_instances(classes, lanes, tables)
    finest = _refine(_dense(np.stack([classes, colour], axis=1)), classes, lanes, tables)
    if int(finest.max()) + 1 == len(trace.ranks):
        return trace
    return _Rebuilt(trace, finest, tables).trace()


@dataclass(frozen=True)
class _Table:
    """All instances of a communicator: `members` [instances, size], and where each rank of the world is."""

    members: NDArray[np.int64]
    instance: NDArray[np.int64]  # [world], -1: in none
    place: NDArray[np.int64]

    @staticmethod
    def of(communicator: Communicator, world: int) -> _Table:
        members = np.array(communicator.all_members, np.int64)
        if len(members) != communicator.instances or (members < 0).any():
            raise UnknownMembersError(
                f"communicator {communicator.id} of {len(communicator.members)} ranks stands for "
                f"{communicator.instances}, not all of whose members are known; record the job with --ranks all"
            )
        if len(np.unique(members)) != members.size:
            raise TraceError(f"communicator {communicator.id}: a rank is in two of its instances")
        instance, place = np.full(world, -1), np.full(world, -1)
        instance[members], place[members] = np.indices(members.shape)
        return _Table(members, instance, place)


Lane = tuple[int, int]  # communicator, distance of the peer on it (0: a collective)


def _lanes(trace: JobTrace, rank: RankTrace, tables: dict[int, _Table]) -> list[Lane]:
    """The communicators that a class uses, and at which distances its peers on them are."""
    calls = rank.records[rank.records["kind"] == RecordKind.COLLECTIVE]
    pairs = np.unique(np.stack([calls["communicator"], calls["operation"]], axis=1), axis=0).tolist()
    return sorted({(c, _distance(trace.operations[op], rank.rank, tables[c])) for c, op in pairs})


def _require_own_instances(
    classes: Colours, lanes: Sequence[Sequence[Lane]], tables: dict[int, _Table]
) -> None:
    """A rank that ended as a copy before it made a communicator may be in no known instance of what its class calls."""
    for number, own in enumerate(lanes):
        for communicator in dict.fromkeys(communicator for communicator, _ in own):
            outside = int(np.count_nonzero(tables[communicator].instance[classes == number] < 0))
            if outside:
                raise UnknownMembersError(
                    f"communicator {communicator}: {outside} ranks call it and are not among its known members; record "
                    "the job with --ranks all"
                )


def _distance(operation: Operation, rank: int, table: _Table) -> int:
    assert isinstance(operation, Collective)
    if operation.peer is None:
        return 0
    return (int(table.place[operation.peer]) - int(table.place[rank])) % int(table.members.shape[1])


def _refine(
    colour: Colours,
    classes: Colours,
    lanes: Sequence[Sequence[Lane]],
    tables: dict[int, _Table],
) -> Colours:
    while True:
        columns = [colour]
        for lane in sorted({lane for own in lanes for lane in own}):
            uses = np.array([lane in own for own in lanes])[classes]
            columns.append(np.where(uses, _met(colour, tables[lane[0]], lane[1]), -1))
        finer = _dense(np.stack(columns, axis=1))
        if finer.max() == colour.max():
            return finer
        colour = finer


def _met(colour: Colours, table: _Table, distance: int) -> NDArray[np.int64]:
    """[world] What each rank meets: its peer's colour, or a number for the colours of all members."""
    if distance == 0:
        alike = _dense(np.sort(colour[table.members], axis=1))
        return np.where(table.instance >= 0, alike[table.instance], -1)
    peer = table.members[table.instance, (table.place + distance) % table.members.shape[1]]
    return np.where(table.instance >= 0, colour[peer], -1)


def _dense(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """[rows] Equal rows get equal numbers, in the order in which they first occur."""
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


class _Rebuilt:
    """The job in its finer classes; each is represented by its lowest rank."""

    def __init__(self, trace: JobTrace, colour: Colours, tables: dict[int, _Table]) -> None:
        self._old, self._colour, self._tables = trace, colour, tables
        _, self._representatives = np.unique(colour, return_index=True)
        self._operations: dict[Operation, int] = {op: n for n, op in enumerate(trace.operations)}
        self._communicators: list[Communicator] = []
        self._number: dict[tuple[int, int], int] = {}  # (old communicator, its instance) -> new one
        for communicator in trace.communicators:
            self._divide(communicator)

    def _divide(self, old: Communicator) -> None:
        """Instances whose members have the same colours stay one."""
        members = self._tables[old.id].members
        alike = _dense(np.sort(self._colour[members], axis=1))
        represented = np.any(np.isin(members, self._representatives), axis=1)
        for group in range(int(alike.max()) + 1):
            own = np.flatnonzero(alike == group)
            own = own[np.argsort(np.logical_not(represented[own]), kind="stable")]
            everyone = tuple(map(tuple, members[own].tolist()))
            classes = tuple(np.unique(self._colour[members[own[0]]]).tolist())
            number = len(self._communicators)
            self._communicators.append(Communicator(number, everyone[0], classes, len(own), everyone))
            self._number |= {(old.id, instance): number for instance in own.tolist()}

    def trace(self) -> JobTrace:
        built = [self._class(number, int(rank)) for number, rank in enumerate(self._representatives)]
        rendezvous, _ = join(np.concatenate([party for _, party in built]))
        bounds = np.cumsum([0, *(len(party) for _, party in built)])
        for (rank, party), first, last in zip(built, bounds[:-1], bounds[1:], strict=True):
            rank.records["rendezvous"][party["row"]] = rendezvous[first:last]
        return replace(
            self._old,
            ranks=tuple(rank for rank, _ in built),
            class_of_rank=self._colour.astype(np.int32),
            operations=tuple(self._operations),
            communicators=tuple(self._communicators),
        )

    def _class(self, number: int, rank: int) -> tuple[RankTrace, NDArray[np.void]]:
        """What `rank` does: its old class's records among its own peers, and its side of each rendezvous."""
        old = self._old.ranks[int(self._old.class_of_rank[rank])]
        records = old.records.copy()
        rows = np.flatnonzero(records["kind"] == RecordKind.COLLECTIVE)
        party = np.zeros(len(rows), PARTY)
        party["row"], party["class"] = rows, number
        pairs = np.stack([records["communicator"][rows], records["operation"][rows]], axis=1)
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        for index, (communicator, operation) in enumerate(distinct.tolist()):
            chosen = inverse.reshape(-1) == index
            self._move(records, party, chosen, rank, old.rank, communicator, operation)
        lane = (party["peer"].astype(np.int64) + 1) * 2 + party["sends"]
        party["sequence"] = count_within(party["communicator"].astype(np.int64) << 32 | lane)
        for name in ("communicator", "sequence", "peer_class"):
            records[name][rows] = party[name]
        return replace(old, rank=rank, records=records), party

    def _move(
        self,
        records: NDArray[np.void],
        party: NDArray[np.void],
        chosen: NDArray[np.bool_],
        rank: int,
        source: int,
        communicator: int,
        operation: int,
    ) -> None:
        """Makes the chosen calls of `source` those of `rank`, on its own instance of the communicator."""
        table = self._tables[communicator]
        call = self._old.operations[operation]
        assert isinstance(call, Collective)
        instance, place = int(table.instance[rank]), int(table.place[rank])
        members = table.members[instance]
        distance, size = _distance(call, source, table), len(members)
        peer = -1 if call.peer is None else (place + distance) % size
        own = replace(call, members=tuple(members.tolist()))
        if peer >= 0:
            own = replace(own, peer=int(members[peer]), rank=rank)
        records["operation"][party["row"][chosen]] = self._operations.setdefault(own, len(self._operations))
        party["communicator"][chosen] = self._number[communicator, instance]
        party["place"][chosen], party["size"][chosen], party["peer"][chosen] = place, size, peer
        party["sends"][chosen] = call.collective == "send"
        party["peer_class"][chosen] = -1 if peer < 0 else self._colour[members[peer]]
