"""The semantics of docs/simulation.md once more, as a straightforward heapq simulation in Python.

Every change of state is an entry (time, sequence, action) of one heap and no thread runs ahead of the
clock. It is the oracle that the native core must equal to the bit, and the baseline it is timed against.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.simulate.kinds import memory_bound
from maya.simulate.network import ONE, Network
from maya.simulate.simulation import DEMAND_UNIT, in_units
from maya.simulate.types import Activity, SimulationError
from maya.trace.types import DEVICE_WORK, Collective, JobTrace, RecordKind


@dataclass
class _Item:
    row: int
    iteration: int
    ready: int
    members: tuple[int, ...] = ()  # rows of the NCCL group that it launches
    running: bool = False
    done: bool = False
    open_transfers: int = 0
    left: int = 0  # of work: ns on an undisturbed device, times ONE
    since: int = 0
    due: int = -1


@dataclass
class _Transfer:
    draws: int  # of each party's memory bandwidth
    parties: list[tuple[_Rank, _Item]]
    pattern: int
    left: int
    since: int
    due: int
    rate: int = ONE
    message: _Message | None = None


@dataclass
class _Lane:
    taken: int = 0  # bytes of messages that were not awaited when they were sent and are not received yet
    waiting: list[_Message] = field(default_factory=list)


@dataclass
class _Message:
    """A send that has a receive. It is delivered, and not received yet, when it is buffered and not under way."""

    rendezvous: int
    bytes: int
    lane: _Lane
    sender: tuple[_Rank, _Item] | None = None  # while it waits
    receiver: tuple[_Rank, _Item] | None = None
    under_way: _Transfer | None = None
    buffered: bool = False


@dataclass
class _Rank:
    index: int
    calls: list[dict[str, int]]
    blocking_streams: tuple[int, ...]
    host_rank: int
    groups: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (group, stream) -> rows
    streams: dict[int, deque[_Item]] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)  # stream -> when what was last on it ended
    recorded: set[tuple[int, int]] = field(default_factory=set)  # (iteration, row) of events
    busy: dict[str, int] = field(default_factory=lambda: {"work": 0, "communication": 0, "moving": 0})
    touched: int = 0
    # What communication takes of its multiprocessors (False) and its memory bandwidth (True), in 1 / ONE.
    taken: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    demanded: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})  # by work under way
    host: Iterator[tuple[int, Callable[[], bool]]] | None = None
    blocked_on: Callable[[], bool] | None = None
    finished: bool = False


@dataclass(frozen=True)
class ReferenceResult:
    """As in `Timeline`; `start` and `end` are per rank [iterations, records]."""

    iteration_end_ns: NDArray[np.int64]
    activity_ns: NDArray[np.int64]
    issued: list[NDArray[np.int64]]
    start: list[NDArray[np.int64]]
    end: list[NDArray[np.int64]]
    events: int


def _awaited(rank: _Rank, iteration: int, call: dict[str, int], row: int) -> tuple[int, int] | None:
    """(iteration, row) of the event record that a call waits for; None: for none since the start."""
    wait = call["wait"]
    if wait == -1 or (iteration == 0 and (wait < 0 or wait > row)):
        return None
    return (iteration - 1, wait + len(rank.calls)) if wait < 0 else (iteration - (wait > row), wait)


class Reference:
    """Simulates `iterations` of `trace`; durations in ns, one an operation; host times as recorded."""

    def __init__(
        self,
        trace: JobTrace,
        durations_ns: NDArray[np.int64],
        iterations: int = 3,
        *,
        launch_call: int = 0,
        launch_latency: int = 0,
        completion_latency: int = 0,
        queue_depth: int = 1024,
        network: Network | None = None,
        collective_occupies: int = 0,
        transfer_occupies: int = 0,
        buffered_bytes: int = 0,
        demand: NDArray[np.float64] | None = None,
    ) -> None:
        self.network = network
        self.occupies = {True: transfer_occupies, False: collective_occupies}  # by: is it point to point
        self.memory_bound = memory_bound(trace.operations).tolist()
        self.demands = (in_units(trace, demand).astype(np.int64) * DEMAND_UNIT).tolist()
        self.durations = [*durations_ns.tolist(), 0]
        self.iterations = iterations
        self.completion_latency = completion_latency
        self.launch_call, self.launch_latency, self.queue_depth = launch_call, launch_latency, queue_depth
        self.ranks = [self._rank(trace, index) for index in range(len(trace.ranks))]
        self.parties: dict[int, list[tuple[_Rank, int]]] = {}
        for rank in self.ranks:
            for row, call in enumerate(rank.calls):
                if call["kind"] == RecordKind.COLLECTIVE:
                    self.parties.setdefault(call["rendezvous"], []).append((rank, row))
        self.buffered_bytes = buffered_bytes
        self.operations = trace.operations
        self.messages = self._messages()
        self.arrived: dict[int, list[tuple[_Rank, _Item]]] = {}
        self.under_way: list[_Transfer] = []
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sequence = 0
        self.now = 0
        self.events = 0
        shape = [(iterations, len(rank.calls)) for rank in self.ranks]
        self.issued, self.start, self.end = ([np.zeros(s, np.int64) for s in shape] for _ in range(3))
        pieces = sum(self._occupies(rank, row) for rank in self.ranks for row in range(len(rank.calls)))
        self.pieces = [pieces + len(self.ranks)] * iterations
        self.iteration_end = np.zeros(iterations, np.int64)
        self.activity = np.zeros((iterations, len(self.ranks), len(Activity)), np.int64)
        self.current = np.zeros((len(self.ranks), len(Activity)), np.int64)

    def run(self) -> ReferenceResult:
        for rank in self.ranks:
            rank.host = self._host(rank)
            self._next_call(rank)
        while self.heap:
            self.now, _, action, arguments = heapq.heappop(self.heap)
            self.events += 1
            action(*arguments)
        if any(self.pieces):
            raise SimulationError("deadlock")
        return ReferenceResult(
            self.iteration_end, self.activity, self.issued, self.start, self.end, self.events
        )

    def _rank(self, trace: JobTrace, index: int) -> _Rank:
        records = trace.ranks[index].records
        names = records.dtype.names or ()
        columns = {name: records[name].tolist() for name in names}
        calls = [{name: columns[name][row] for name in names} for row in range(len(records))]
        rank = _Rank(index, calls, trace.ranks[index].blocking_streams, trace.ranks[index].rank)
        for row, call in enumerate(calls):
            if call["kind"] == RecordKind.COLLECTIVE and call["group"] > 0:
                rank.groups.setdefault((call["group"], call["stream"]), []).append(row)
        return rank

    def _messages(self) -> dict[int, _Message]:
        """Of each rendezvous that is a send and its receive.

        A lane is a sender's stream to its communicator's member at one distance.
        """
        lanes: dict[tuple[int, ...], _Lane] = {}
        messages = {}
        for rendezvous, parties in self.parties.items():
            for rank, row in parties if len(parties) == 2 else ():
                call = rank.calls[row]
                operation = self.operations[call["operation"]]
                assert isinstance(operation, Collective)
                if operation.collective != "send":
                    continue
                distance = 0
                if operation.rank is not None and operation.peer is not None:
                    here, there = map(operation.members.index, (operation.rank, operation.peer))
                    distance = (there - here) % len(operation.members)
                key = (call["communicator"], rank.index, call["stream"], distance)
                lane = lanes.setdefault(key, _Lane())
                messages[rendezvous] = _Message(rendezvous, operation.bytes, lane)
        return messages

    def _schedule(self, time: int, action: Callable[..., None], *arguments: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (time, self.sequence, action, arguments))

    def _members(self, rank: _Rank, row: int) -> tuple[int, ...]:
        """Rows of the kernel that the call at `row` launches; empty when a later member of its group does."""
        call = rank.calls[row]
        if call["kind"] != RecordKind.COLLECTIVE or call["group"] == 0:
            return (row,)
        members = rank.groups[call["group"], call["stream"]]
        return tuple(members) if members[-1] == row else ()

    def _occupies(self, rank: _Rank, row: int) -> bool:
        call = rank.calls[row]
        if call["kind"] == RecordKind.STREAM_WAIT_EVENT:
            return call["wait"] != -1
        if call["kind"] == RecordKind.EVENT_RECORD:
            return True
        return call["kind"] in DEVICE_WORK and bool(self._members(rank, row))

    # --- host: a generator of (host time, then what must hold before the next call) ---

    def _host(self, rank: _Rank) -> Iterator[tuple[int, Callable[[], bool]]]:
        for iteration in range(self.iterations):
            for row, call in enumerate(rank.calls):
                yield call["host_ns"], lambda: True
                self.issued[rank.index][iteration, row] = self.now
                self.start[rank.index][iteration, row] = self.now
                if self._occupies(rank, row):
                    yield from self._launch(rank, iteration, row)
                elif call["kind"] not in DEVICE_WORK:
                    yield 0, self._condition(rank, iteration, call, row)
                if not self._occupies(rank, row):
                    self.end[rank.index][iteration, row] = self.now
            yield 0, lambda: True
            self._piece_ended(iteration)
        rank.finished = True

    def _launch(self, rank: _Rank, iteration: int, row: int) -> Iterator[tuple[int, Callable[[], bool]]]:
        call = rank.calls[row]
        queue = rank.streams.setdefault(call["stream"], deque())
        yield 0, lambda: len(queue) < self.queue_depth
        item = _Item(row, iteration, self.now + self.launch_latency, self._members(rank, row))
        queue.append(item)
        if item.ready > self.now:
            self._schedule(item.ready, self._advance, rank)
        else:
            self._advance(rank)
        yield 0 if call["graph"] else self.launch_call, lambda: True
        if call["blocking"]:
            yield 0, lambda: item.done and self._hears(self.end[rank.index][iteration, row])

    def _condition(self, rank: _Rank, iteration: int, call: dict[str, int], row: int) -> Callable[[], bool]:
        match RecordKind(call["kind"]):
            case RecordKind.EVENT_SYNCHRONIZE:
                return lambda: self._hears_of_event(rank, iteration, call, row)
            case RecordKind.STREAM_SYNCHRONIZE:
                return lambda: self._hears_of_stream(rank, call["stream"])
            case RecordKind.DEVICE_SYNCHRONIZE:
                return lambda: all(self._hears_of_stream(rank, stream) for stream in rank.streams)
        return lambda: True

    def _hears(self, ended: int) -> bool:
        return bool(ended + self.completion_latency <= self.now)

    def _hears_of_stream(self, rank: _Rank, stream: int) -> bool:
        return not rank.streams.get(stream) and (stream not in rank.ended or self._hears(rank.ended[stream]))

    def _hears_of_event(self, rank: _Rank, iteration: int, call: dict[str, int], row: int) -> bool:
        record = _awaited(rank, iteration, call, row)
        return self._is_recorded(rank, iteration, call, row) and (
            record is None or self._hears(self.end[rank.index][record])
        )

    def _next_call(self, rank: _Rank) -> None:
        assert rank.host is not None
        for delay, condition in rank.host:
            if delay > 0:
                self._schedule(self.now + delay, self._next_call, rank)
                return
            if not condition():
                rank.blocked_on = condition
                return

    def _resume_host(self, rank: _Rank) -> None:
        if rank.blocked_on is not None and rank.blocked_on():
            rank.blocked_on = None
            self._next_call(rank)

    # --- streams ---

    def _is_recorded(self, rank: _Rank, iteration: int, call: dict[str, int], row: int) -> bool:
        record = _awaited(rank, iteration, call, row)
        return record is None or record in rank.recorded

    def _advance(self, rank: _Rank) -> None:
        """Starts whatever can start now on any stream of the rank."""
        progress = True
        while progress:
            progress = sum(self._try_start(rank, stream) for stream in list(rank.streams)) > 0

    def _try_start(self, rank: _Rank, stream: int) -> bool:
        queue = rank.streams[stream]
        if not queue or queue[0].running or queue[0].ready > self.now:
            return False
        item = queue[0]
        call = rank.calls[item.row]
        if self._behind_default(rank, stream, item):
            return False
        if call["kind"] == RecordKind.STREAM_WAIT_EVENT and not self._is_recorded(
            rank, item.iteration, call, item.row
        ):
            return False
        self._begin(rank, item, call)
        return True

    def _behind_default(self, rank: _Rank, stream: int, item: _Item) -> bool:
        if stream == 0:
            others: tuple[int, ...] = rank.blocking_streams
        else:
            others = (0,) if stream in rank.blocking_streams else ()
        heads = [rank.streams[other][0] for other in others if rank.streams.get(other)]
        return any((head.iteration, head.row) < (item.iteration, item.row) for head in heads)

    def _begin(self, rank: _Rank, item: _Item, call: dict[str, int]) -> None:
        item.running = True
        for row in item.members:
            self.start[rank.index][item.iteration, row] = self.now
        if call["kind"] == RecordKind.COLLECTIVE:
            self._account(rank, "communication", 1)
            self._take(rank, False, self.occupies[call["peer_class"] >= 0])
            item.open_transfers = len(item.members)
            for row in item.members:
                self._arrive(rank, item, rank.calls[row])
            if item.open_transfers == 0:
                self._finish(rank, item)
        elif call["kind"] in DEVICE_WORK:
            self._account(rank, "work", 1)
            self._demand(rank, item, 1)
            item.left, item.since = self.durations[call["operation"]] * ONE, self.now
            self._compute(rank, item)
        else:
            self._finish(rank, item)

    def _finish(self, rank: _Rank, item: _Item) -> None:
        call = rank.calls[item.row]
        if call["kind"] == RecordKind.COLLECTIVE:
            self._account(rank, "communication", -1)
            self._take(rank, False, -self.occupies[call["peer_class"] >= 0])
        elif call["kind"] in DEVICE_WORK:
            self._account(rank, "work", -1)
            item.due = -1
            self._demand(rank, item, -1)
        for row in item.members:
            self.end[rank.index][item.iteration, row] = self.now
        item.done = True
        rank.streams[call["stream"]].popleft()
        if call["kind"] == RecordKind.EVENT_RECORD:
            rank.recorded.add((item.iteration, item.row))
        self._piece_ended(item.iteration)
        rank.ended[call["stream"]] = self.now
        self._resume_host(rank)
        if self.completion_latency:
            self._schedule(self.now + self.completion_latency, self._resume_host, rank)
        if call["kind"] in DEVICE_WORK:
            self._advance(rank)

    def _compute(self, rank: _Rank, item: _Item) -> None:
        """Work ends after what is `left` of it at the rank's present rate; what was said before is void."""
        rate = self._rate(rank, self._needs_memory(rank, item))
        item.due = self.now + -(-max(0, item.left) // rate)
        self._schedule(item.due, self._work_ends, rank, item)

    def _needs_memory(self, rank: _Rank, item: _Item) -> bool:
        return bool(self.memory_bound[rank.calls[item.row]["operation"]])

    def _rate(self, rank: _Rank, memory: bool) -> int:
        left = max(ONE - rank.taken[memory], ONE // 2)
        demanded = rank.demanded[memory]
        return ONE if demanded <= left else left * ONE // demanded

    def _work_ends(self, rank: _Rank, item: _Item) -> None:
        if not item.done and item.due == self.now:
            self._finish(rank, item)

    def _take(self, rank: _Rank, memory: bool, change: int) -> None:
        """Communication takes more of the device, or gives it back."""
        before = self._rate(rank, memory)
        rank.taken[memory] += change
        self._go_on(rank, memory, before)

    def _demand(self, rank: _Rank, item: _Item, sign: int) -> None:
        """Work begins, or has ended."""
        memory = self._needs_memory(rank, item)
        before = self._rate(rank, memory)
        rank.demanded[memory] += sign * self.demands[rank.calls[item.row]["operation"]]
        self._go_on(rank, memory, before)

    def _go_on(self, rank: _Rank, memory: bool, before: int) -> None:
        """Work that was under way at rate `before` goes on at the present one."""
        if self._rate(rank, memory) == before:
            return
        for queue in rank.streams.values():
            item = queue[0] if queue else None
            if item and item.running and item.due >= 0 and self._needs_memory(rank, item) == memory:
                item.left -= before * (self.now - item.since)
                item.since = self.now
                self._compute(rank, item)

    # --- rendezvous ---

    def _arrive(self, rank: _Rank, item: _Item, call: dict[str, int]) -> None:
        rendezvous = call["rendezvous"]
        message = self.messages.get(rendezvous)
        if message is not None:
            operation = self.operations[call["operation"]]
            sends = isinstance(operation, Collective) and operation.collective == "send"
            (self._send if sends else self._receive)(message, rank, item)
            return
        arrived = self.arrived.setdefault(rendezvous, [])
        arrived.append((rank, item))
        if len(arrived) == len(self.parties[rendezvous]):
            del self.arrived[rendezvous]
            self._move(rendezvous, arrived)

    def _move(self, rendezvous: int, parties: list[tuple[_Rank, _Item]]) -> _Transfer:
        draws = (
            0 if self.network is None or not len(self.network.draws) else int(self.network.draws[rendezvous])
        )
        all_parties = self.parties[rendezvous]
        duration = max(self.durations[party.calls[row]["operation"]] for party, row in all_parties)
        pattern = -1 if self.network is None else int(self.network.flow_of[rendezvous])
        transfer = _Transfer(draws, [], pattern, duration * ONE, self.now, self.now + duration)
        for party in parties:
            self._take_part(transfer, party)
        self._schedule(transfer.due, self._transfer_due, transfer)
        if pattern >= 0 and duration > 0:
            self.under_way.append(transfer)
            self._share_links()
        return transfer

    def _take_part(self, transfer: _Transfer, party: tuple[_Rank, _Item]) -> None:
        transfer.parties.append(party)
        self._account(party[0], "moving", 1)
        self._take(party[0], True, transfer.draws)

    def _send(self, message: _Message, rank: _Rank, item: _Item) -> None:
        message.sender = (rank, item)
        if message.receiver is not None:
            self._exchange(message)
        else:
            message.lane.waiting.append(message)
            self._fill(message.lane)

    def _receive(self, message: _Message, rank: _Rank, item: _Item) -> None:
        if message.under_way is not None:
            message.receiver = (rank, item)
            self._take_part(message.under_way, message.receiver)
        elif message.buffered:
            item.open_transfers -= 1
            self._free_room(message)
        else:
            message.receiver = (rank, item)
            if message.sender is not None:
                message.lane.waiting.remove(message)
                self._exchange(message)
                self._fill(message.lane)

    def _exchange(self, message: _Message) -> None:
        assert message.sender is not None and message.receiver is not None
        message.under_way = self._move(message.rendezvous, [message.sender, message.receiver])
        message.under_way.message = message
        message.sender = None

    def _fill(self, lane: _Lane) -> None:
        """Starts what waits, in order, as long as there is room for it."""
        while lane.waiting:
            message = lane.waiting[0]
            delivered = message.buffered  # by the iteration before, and not received
            if delivered or lane.taken + message.bytes > self.buffered_bytes:
                return
            assert message.sender is not None
            del lane.waiting[0]
            lane.taken += message.bytes
            message.buffered = True
            message.under_way = self._move(message.rendezvous, [message.sender])
            message.under_way.message = message
            message.sender = None

    def _free_room(self, message: _Message) -> None:
        message.buffered = False
        message.lane.taken -= message.bytes
        self._fill(message.lane)

    def _transfer_due(self, transfer: _Transfer) -> None:
        if transfer.due != self.now:
            return  # its rate has changed since
        transfer.due = -1
        if transfer in self.under_way:
            self.under_way = [other for other in self.under_way if other is not transfer]
            self._share_links()
        self._end_transfer(transfer)

    def _share_links(self) -> None:
        """Changes the rates of all transfers under way to the fair ones."""
        assert self.network is not None
        rates = fair_rates(self.network, [transfer.pattern for transfer in self.under_way])
        for transfer, rate in zip(self.under_way, rates, strict=True):
            if rate != transfer.rate:
                transfer.left -= transfer.rate * (self.now - transfer.since)
                transfer.since, transfer.rate = self.now, rate
                transfer.due = self.now + -(-max(0, transfer.left) // rate)
                self._schedule(transfer.due, self._transfer_due, transfer)

    def _end_transfer(self, transfer: _Transfer) -> None:
        if transfer.message is not None:
            self._deliver(transfer.message)
        for rank, item in transfer.parties:
            self._account(rank, "moving", -1)
            self._take(rank, True, -transfer.draws)
            item.open_transfers -= 1
            if item.open_transfers == 0:
                self._finish(rank, item)

    def _deliver(self, message: _Message) -> None:
        received = message.receiver is not None
        message.under_way = message.receiver = None
        if received and message.buffered:
            self._free_room(message)

    # --- accounts ---

    def _account(self, rank: _Rank, what: str, change: int) -> None:
        self._touch(rank)
        rank.busy[what] += change

    def _touch(self, rank: _Rank) -> None:
        if rank.busy["work"]:
            activity = Activity.OVERLAPPED if rank.busy["communication"] else Activity.COMPUTE
        elif rank.busy["moving"]:
            activity = Activity.MOVING
        else:
            activity = Activity.WAITING if rank.busy["communication"] else Activity.IDLE
        self.current[rank.index, activity] += self.now - rank.touched
        rank.touched = self.now

    def _piece_ended(self, iteration: int) -> None:
        self.pieces[iteration] -= 1
        if self.pieces[iteration] == 0:
            self.iteration_end[iteration] = self.now
            for rank in self.ranks:
                self._touch(rank)
            self.activity[iteration] = self.current
            self.current[:] = 0


def fair_rates(network: Network, patterns: list[int]) -> list[int]:
    """Max-min fair rates, in 1 / ONE, of transfers with these flow patterns: all grow together, each in
    proportion to what it takes of the link that it uses most, until it has its full rate or a link is full
    (progressive filling; Bertsekas, Gallager: Data Networks, 6.5.2)."""
    begin, rates = network.flow_begin.tolist(), [0] * len(patterns)
    amounts = zip(
        network.flow_link.tolist(), network.flow_use.tolist(), network.flow_share.tolist(), strict=True
    )
    rows = list(amounts)
    hops = [
        {link: (use, share) for link, use, share in rows[begin[pattern] : begin[pattern + 1]]}
        for pattern in patterns
    ]
    peaks = [int(network.flow_peak[pattern]) for pattern in patterns]
    growing = set(range(len(patterns)))
    while growing:
        levels = {}
        for link in {link for flow in growing for link in hops[flow]}:
            spare = ONE * ONE - sum(rates[f] * own[link][0] for f, own in enumerate(hops) if link in own)
            levels[link] = max(0, spare) // sum(hops[flow][link][1] for flow in growing if link in hops[flow])
        level = min(levels.values())
        full = {flow for flow in growing if peaks[flow] <= level}
        held = {flow for flow in growing if any(levels[link] == level for link in hops[flow])}
        for flow in full or held:
            rates[flow] = ONE if full else max(1, level * ONE // peaks[flow])
        growing -= full or held
    return rates
