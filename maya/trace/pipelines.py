"""Pipeline schedules as `JobTrace`s: 1F1B and interleaved (Narayanan et al. 2021, arXiv:2104.04473, 2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from maya.trace.build import JobBuilder, RankBuilder

COMPUTE, RECV_FORWARD, SEND_FORWARD, RECV_BACKWARD, SEND_BACKWARD, REDUCE = 1, 2, 3, 4, 5, 6  # streams


@dataclass(frozen=True)
class Pipeline:
    """`stages` devices, each with `chunks` model chunks (1: plain 1F1B), times in ns.

    `forward_ns` and `backward_ns` are those of one micro-batch on one whole stage, made of `kernels`
    kernels a chunk. With `gradient_ns` the `replicas` of a stage all-reduce that long beside each chunk's
    last backward pass, a kernel's gradients at a time. `host_ns` is the host's time before each kernel.
    """

    stages: int
    micro_batches: int
    forward_ns: int
    backward_ns: int
    chunks: int = 1
    kernels: int = 1
    transfer_ns: int = 0
    gradient_ns: int = 0
    replicas: int = 1
    host_ns: int = 0

    def job(self, folded: bool = True) -> JobBuilder:
        """Stage s has the global ranks s * replicas to (s + 1) * replicas - 1: one class each when folded."""
        world = self.stages * self.replicas
        job = JobBuilder(world, [rank // self.replicas for rank in range(world)] if folded else ())
        lanes = [list(range(replica, world, self.replicas)) for replica in range(self.replicas)]
        teams = [range(first, first + self.replicas) for first in range(0, world, self.replicas)]
        forward, backward = _communicators(job, lanes, folded), _communicators(job, lanes, folded)
        data = _communicators(job, teams, False)
        for rank in job.ranks:
            stage, replica = divmod(rank.rank, self.replicas)
            _Stage(self, stage, replica, rank, forward[replica], backward[replica], data[stage]).fill()
        return job


def _communicators(job: JobBuilder, instances: Sequence[Sequence[int]], folded: bool) -> list[int]:
    """The communicator of each instance: one for all when they are folded."""
    if folded:
        return [job.communicator(*instances)] * len(instances)
    return [job.communicator(instance) for instance in instances]


@dataclass
class _Stage:
    """Writes one stage's calls."""

    shape: Pipeline
    stage: int
    replica: int
    rank: RankBuilder
    forward_lane: int
    backward_lane: int
    data: int
    _event: int = field(default=0)

    def fill(self) -> None:
        for backward, chunk, last in self._schedule():
            self._backward(chunk, last) if backward else self._forward(chunk)
        self.rank.device_synchronize()
        self.rank.step()

    def _schedule(self) -> Iterator[tuple[bool, int, bool]]:
        """(backward?, chunk, the chunk's last backward?) in order: warm-up, one forward one backward, drain."""
        p, v = self.shape.stages, self.shape.chunks
        total = self.shape.micro_batches * v
        ahead = p - self.stage - 1
        warm_up = min(ahead if v == 1 else 2 * ahead + (v - 1) * p, total)
        for k in range(warm_up):
            yield False, self._chunk(k), False
        for k in range(total):
            if k + warm_up < total:
                yield False, self._chunk(k + warm_up), False
            chunk = v - 1 - self._chunk(k)
            yield True, chunk, k >= total - p * v and k % p == p - 1

    def _chunk(self, k: int) -> int:
        p, v = self.shape.stages, self.shape.chunks
        return k % (p * v) // p if v > 1 else 0

    def _forward(self, chunk: int) -> None:
        first = self.stage == 0 and chunk == 0
        last = self.stage == self.shape.stages - 1 and chunk == self.shape.chunks - 1
        source, target = (None if first else -1), (None if last else 1)
        self._pass(self.forward_lane, RECV_FORWARD, SEND_FORWARD, source, target, self.shape.forward_ns)

    def _backward(self, chunk: int, last_of_chunk: bool) -> None:
        first = self.stage == self.shape.stages - 1 and chunk == self.shape.chunks - 1
        last = self.stage == 0 and chunk == 0
        source, target = (None if first else 1), (None if last else -1)
        reduce = last_of_chunk and self.shape.gradient_ns > 0
        self._pass(
            self.backward_lane, RECV_BACKWARD, SEND_BACKWARD, source, target, self.shape.backward_ns, reduce
        )

    def _pass(
        self,
        lane: int,
        recv: int,
        send: int,
        source: int | None,
        target: int | None,
        duration_ns: int,
        reduce: bool = False,
    ) -> None:
        if source is not None:
            self.rank.recv(lane, self._peer(source), self.shape.transfer_ns, recv)
            self._order(recv, COMPUTE)
        kernels = self.shape.kernels
        for _ in range(kernels):
            self.rank.kernel(
                duration_ns // (self.shape.chunks * kernels), COMPUTE, host_ns=self.shape.host_ns
            )
            if reduce:
                self._order(COMPUTE, REDUCE)
                self.rank.collective(self.data, self.shape.gradient_ns // kernels, REDUCE)
        if target is not None:
            self._order(COMPUTE, send)
            self.rank.send(lane, self._peer(target), self.shape.transfer_ns, send)

    def _peer(self, distance: int) -> int:
        return (self.stage + distance) % self.shape.stages * self.shape.replicas + self.replica

    def _order(self, before: int, after: int) -> None:
        self._event += 1
        self.rank.event_record(self._event, before)
        self.rank.stream_wait_event(self._event, after)
