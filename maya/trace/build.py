"""Builds a `JobTrace` by hand, call by call: schedules with a known answer, benchmarks, experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from maya.trace.rendezvous import PARTY, count_within, join
from maya.trace.types import (
    RECORD,
    Collective,
    Communicator,
    Gemm,
    JobTrace,
    Kernel,
    Operation,
    RankTrace,
    RecordKind,
)
from maya.trace.waits import resolve_waits


class RankBuilder:
    """The calls of one class of ranks, in order. Times are integer nanoseconds.

    `host_ns` is the host's time before the call; an event is any number of the caller's choice.
    """

    def __init__(self, job: JobBuilder, rank: int) -> None:
        self.rank = rank
        self.blocking_streams: tuple[int, ...] = ()
        self.launch_blocking = False  # CUDA_LAUNCH_BLOCKING: of the calls made while it is set
        self._job = job
        self._rows: list[dict[str, int]] = []
        self._events: list[int] = []
        self._parties: list[tuple[int, ...]] = []

    def kernel(self, duration_ns: int, stream: int = 1, *, host_ns: int = 0, blocking: bool = False) -> None:
        operation = Kernel(f"kernel of {duration_ns} ns", (1, 1, 1), (1, 1, 1))
        number = self._job.number(operation, duration_ns)
        self._call(RecordKind.KERNEL, stream, host_ns, operation=number, blocking=int(blocking))

    def gemm(self, duration_ns: int, stream: int = 1, *, host_ns: int = 0) -> None:
        """A matrix product: needs the device's multiprocessors where a kernel needs its memory."""
        number = self._job.number(Gemm(duration_ns, 1, 1), duration_ns)
        self._call(RecordKind.KERNEL, stream, host_ns, operation=number)

    def event_record(self, event: int, stream: int = 1, *, host_ns: int = 0) -> None:
        self._call(RecordKind.EVENT_RECORD, stream, host_ns, event=event)

    def stream_wait_event(self, event: int, stream: int = 1, *, host_ns: int = 0) -> None:
        self._call(RecordKind.STREAM_WAIT_EVENT, stream, host_ns, event=event)

    def event_synchronize(self, event: int, *, host_ns: int = 0) -> None:
        self._call(RecordKind.EVENT_SYNCHRONIZE, 0, host_ns, event=event)

    def stream_synchronize(self, stream: int = 1, *, host_ns: int = 0) -> None:
        self._call(RecordKind.STREAM_SYNCHRONIZE, stream, host_ns)

    def device_synchronize(self, *, host_ns: int = 0) -> None:
        self._call(RecordKind.DEVICE_SYNCHRONIZE, 0, host_ns)

    def step(self, *, host_ns: int = 0) -> None:
        self._call(RecordKind.STEP, 0, host_ns)

    def collective(
        self,
        communicator: int,
        duration_ns: int,
        stream: int = 2,
        *,
        name: str = "all_reduce",
        peer: int | None = None,
        group: int = 0,
        host_ns: int = 0,
    ) -> None:
        """A collective on one of the job's communicators; `send` and `recv` name the peer's global rank."""
        shape = self._job.communicators[communicator]
        members = self._job.instance(communicator, self.rank)
        sender = None if peer is None else self.rank
        operation = Collective(name, "bf16", duration_ns, members, peer, rank=sender)
        number = self._job.number(operation, duration_ns)
        place = members.index(self.rank)
        peer_place = -1 if peer is None else members.index(peer)
        peer_class = -1 if peer is None else int(self._job.class_of_rank[peer])
        own = int(self._job.class_of_rank[self.rank])
        sends = name == "send"
        self._parties.append(
            (own, len(self._rows), communicator, 0, place, peer_place, peer_class, len(shape.members), sends)
        )
        self._call(RecordKind.COLLECTIVE, stream, host_ns, operation=number, group=group)

    def send(
        self, communicator: int, peer: int, duration_ns: int, stream: int = 2, *, group: int = 0
    ) -> None:
        self.collective(communicator, duration_ns, stream, name="send", peer=peer, group=group)

    def recv(
        self, communicator: int, peer: int, duration_ns: int, stream: int = 2, *, group: int = 0
    ) -> None:
        self.collective(communicator, duration_ns, stream, name="recv", peer=peer, group=group)

    def _call(self, kind: RecordKind, stream: int, host_ns: int, event: int = -1, **columns: int) -> None:
        self._events.append(event)
        row = {"kind": kind, "stream": stream, "host_ns": host_ns, **columns}
        if self.launch_blocking and kind in (RecordKind.KERNEL, RecordKind.COLLECTIVE):
            row["blocking"] = 1
        self._rows.append(row)

    def parties(self) -> NDArray[np.void]:
        """dtype PARTY: this class's side of each of its collectives."""
        party = np.array(self._parties, PARTY)
        lane = (party["peer"].astype(np.int64) + 1) * 2 + party["sends"]
        party["sequence"] = count_within(party["communicator"].astype(np.int64) << 32 | lane)
        return party

    def records(self, rendezvous: NDArray[np.int32]) -> NDArray[np.void]:
        """dtype RECORD; `rendezvous` has one entry a party."""
        records = np.zeros(len(self._rows), RECORD)
        for name in ("operation", "communicator", "sequence", "peer_class", "rendezvous"):
            records[name] = -1
        for name in ("kind", "stream", "host_ns", "operation", "group", "blocking"):
            default = -1 if name == "operation" else 0
            records[name] = [row.get(name, default) for row in self._rows]
        records["wait"] = resolve_waits(records["kind"], np.array(self._events, np.int64).view(np.uint64))
        party = self.parties()
        for name in ("communicator", "sequence", "peer_class"):
            records[name][party["row"]] = party[name]
        records["rendezvous"][party["row"]] = rendezvous
        return records


@dataclass
class JobBuilder:
    """A job of `world` ranks in classes; `ranks[c]` records what class c does.

    `class_of_rank` defaults to every rank being its own class. A class is represented by its lowest rank.
    """

    world: int
    class_of_rank: Sequence[int] | NDArray[np.int32] = ()
    communicators: list[Communicator] = field(default_factory=list)
    ranks: list[RankBuilder] = field(default_factory=list)
    _durations: dict[Operation, int] = field(default_factory=dict)
    _numbers: dict[Operation, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        classes = self.class_of_rank if len(self.class_of_rank) else range(self.world)
        self.class_of_rank = np.array(list(classes), np.int32)
        _, representatives = np.unique(self.class_of_rank, return_index=True)
        self.ranks = [RankBuilder(self, int(rank)) for rank in representatives]

    def communicator(self, *instances: Sequence[int]) -> int:
        """Adds a communicator; several instances (global ranks each) are one to the ranks' classes."""
        classes = tuple(sorted({int(self.class_of_rank[rank]) for rank in instances[0]}))
        number = len(self.communicators)
        everyone = tuple(tuple(instance) for instance in instances)
        self.communicators.append(Communicator(number, everyone[0], classes, len(everyone), everyone))
        return number

    def instance(self, communicator: int, rank: int) -> tuple[int, ...]:
        return next(members for members in self.communicators[communicator].all_members if rank in members)

    def number(self, operation: Operation, duration_ns: int) -> int:
        self._durations[operation] = duration_ns
        return self._numbers.setdefault(operation, len(self._numbers))

    @property
    def durations_s(self) -> NDArray[np.float64]:
        """[operations] What the calls said that they take."""
        return np.array([self._durations[operation] for operation in self._numbers]) * 1e-9

    def build(self) -> JobTrace:
        parties = [rank.parties() for rank in self.ranks]
        bounds = np.cumsum([0, *map(len, parties)])
        rendezvous, _ = join(np.concatenate(parties))
        traces = tuple(
            RankTrace(rank.rank, rank.records(rendezvous[first:last]), 0, 0, None, rank.blocking_streams)
            for rank, first, last in zip(self.ranks, bounds[:-1], bounds[1:], strict=True)
        )
        return JobTrace(
            world=self.world,
            ranks=traces,
            class_of_rank=np.asarray(self.class_of_rank, np.int32),
            launched=len(traces),
            operations=tuple(self._numbers),
            communicators=tuple(self.communicators),
            iterations_recorded=1,
        )
