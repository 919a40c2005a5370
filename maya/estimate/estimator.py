"""The chain: for each distinct operation the first source that knows answers, with its provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from maya.clusters import Cluster
from maya.estimate import (
    attention,
    collectives,
    convolution,
    embedding,
    gemm,
    grouped,
    kernels,
    lapack,
    memory,
    packed,
    tensor_cores,
)
from maya.estimate.demand import demand, occupies_device
from maya.estimate.power import Draw
from maya.estimate.profiles import Profiles, identity
from maya.estimate.types import Estimates, Power, Provenance
from maya.trace.types import Collective, Convolution, Gemm, Kernel, Lapack, Memcpy, Memset, Operation

_WORTH_PADDING = 1.25  # times what an aligned product takes


@dataclass(frozen=True)
class _Answer:
    seconds: float
    provenance: Provenance
    flops: float = 0.0
    draw: float = 0.0  # of a device's power (power.py), by its products
    clocked: bool = False  # whether the clock decides how long it takes: a product's, unless it was measured
    unknown: str = ""
    demand: float = 1.0
    use: tuple[float, float] = (0.0, 0.0)
    narrow: Gemm | None = None  # the product itself, where unaligned rows decide its time
    lookup: embedding.Lookup | None = None
    packed: int = 0  # sequences of unlike lengths
    routine: str = ""  # of LAPACK
    meeting: bool = False  # of ranks that read each other's memory


class Estimator:
    """Durations of operations on one cluster's devices and links.

    A pure function of its arguments: the same operations get the same answers, in any order and mix.
    `reuse` tells of embedding tables how often a batch looks the same row up (see embedding.py, lookups.py).
    `profiles` are consulted first; None: those that MAYA_PROFILES names. Products are as fast as at full clock, which a
    job's power limit may not leave them (power.py).
    """

    def __init__(
        self,
        cluster: Cluster,
        reuse: embedding.Reuse = embedding.UNIFORM,
        profiles: Profiles | None = None,
        draw: Draw | None = None,
    ) -> None:
        self._cluster = cluster
        self._reuse = reuse
        profiles = Profiles.from_environment() if profiles is None else profiles
        self._measured = profiles.on(cluster.device.name)
        self._draw = Draw.of(cluster.device) if draw is None else draw
        self._gemm = gemm.GemmEstimator(cluster.device)
        self._peer_link = cluster.least_link
        self._answers: dict[Operation, _Answer] = {}

    def estimate(self, operations: Sequence[Operation]) -> Estimates:
        """One duration in seconds per operation, in order; `unknown` names what nothing is known of."""
        # The same object often stands many times: told apart by identity before its fields are hashed.
        identities = np.fromiter(map(id, operations), dtype=np.int64, count=len(operations))
        _, first, inverse = np.unique(identities, return_index=True, return_inverse=True)
        rows = [self._answer(operations[index]) for index in first]
        return Estimates(
            seconds=np.array([row.seconds for row in rows], dtype=np.float64)[inverse],
            provenance=np.array([row.provenance for row in rows], dtype=np.uint8)[inverse],
            flops=np.array([row.flops for row in rows], dtype=np.float64)[inverse],
            unknown=tuple(sorted({row.unknown for row in rows if row.unknown})),
            demand=np.array([row.demand for row in rows], dtype=np.float64)[inverse],
            power=Power(
                draw=np.array([row.draw for row in rows], dtype=np.float64)[inverse],
                clocked=np.array([row.clocked for row in rows], dtype=np.bool_)[inverse],
            ),
            use=np.array([row.use for row in rows], dtype=np.float64).reshape(-1, 2)[inverse],
            notes=(
                *gemm.narrow_note({row.narrow for row in rows if row.narrow}),
                *packed.note(max((row.packed for row in rows), default=0)),
                *lapack.note({row.routine for row in rows if row.routine}),
                *kernels.meeting_note(any(row.meeting for row in rows)),
                *embedding.untouched_note(self._reuse, {row.lookup for row in rows if row.lookup}),
            ),
        )

    def _answer(self, operation: Operation) -> _Answer:
        answer = self._answers.get(operation)
        if answer is None:
            answer = self._measured_or(self._work_out(operation), operation)
            share = demand(operation, answer.seconds, answer.flops, self._cluster.device)
            draw = answer.draw or (self._draw.others if occupies_device(operation) else 0.0)
            answer = self._answers[operation] = replace(answer, demand=share, draw=draw)
        return answer

    def _measured_or(self, worked_out: _Answer, operation: Operation) -> _Answer:
        if not self._measured or (seconds := self._measured.get(identity(operation))) is None:
            return worked_out
        draw = worked_out.draw * worked_out.seconds / seconds if seconds > 0 else 0.0
        provenance = Provenance.PROFILED
        return replace(
            worked_out,
            seconds=seconds,
            provenance=provenance,
            draw=draw,
            clocked=False,
            unknown="",
            narrow=None,
        )

    def _work_out(self, operation: Operation) -> _Answer:
        device = self._cluster.device
        match operation:
            case Gemm():
                return self._product(operation)
            case Convolution():
                answer = convolution.estimate_convolution(operation, device)
                return self._in_burst(*answer, convolution.flops(operation), device.tensor_flops)
            case Lapack():
                seconds, provenance = lapack.estimate_lapack(operation, device)
                return _Answer(seconds, provenance, routine=operation.routine)
            case Memcpy():
                return _Answer(*memory.copy_seconds(operation, device, self._peer_link))
            case Memset():
                return _Answer(*memory.memset_seconds(operation, device))
            case Collective():
                cost, provenance = collectives.estimate_collective(operation, self._cluster)
                return _Answer(cost.seconds, provenance, use=cost.use)
            case Kernel():
                return self._kernel(operation)

    def _product(self, product: Gemm) -> _Answer:
        device = self._cluster.device
        burst_s, provenance = self._gemm.estimate(product)
        dtype = gemm.math_dtype(product, device)
        peak = device.peak_flops.get(dtype, device.vector_flops)
        narrow = self._gemm.narrow(product)
        if narrow is None or narrow[0] <= burst_s:
            return self._in_burst(burst_s, provenance, gemm.flops(product), peak, dtype)
        answer = self._in_burst(*narrow, gemm.flops(product), peak, dtype)
        return replace(answer, narrow=product if narrow[0] > _WORTH_PADDING * burst_s else None)

    def _in_burst(
        self, seconds: float, provenance: Provenance, flops: float, peak: float, dtype: str = "bf16"
    ) -> _Answer:
        share = min(flops / seconds / peak, 1.0) if seconds > 0 else 0.0
        return _Answer(seconds, provenance, flops, draw=self._draw.product(dtype, share), clocked=True)

    def _kernel(self, kernel: Kernel) -> _Answer:
        device = self._cluster.device
        fused = attention.recognise(kernel)
        if fused is not None:
            answer = attention.estimate_attention(fused, device)
            sequences = 0 if fused.pairs is None else fused.batch
            return replace(self._in_burst(*answer, fused.flops, device.tensor_flops), packed=sequences)
        if attention.is_auxiliary(kernel):
            seconds, _ = memory.bytes_seconds(attention.auxiliary_bytes(kernel), device)
            return _Answer(seconds, Provenance.ROOFLINE)
        groups = grouped.recognise(kernel)
        if groups is not None:
            return replace(self._product(groups), provenance=Provenance.ROOFLINE, narrow=None)
        lookup = embedding.recognise(kernel, kernels.row_item_bytes(kernel.name), self._reuse)
        if lookup is not None:
            return _Answer(*embedding.estimate_lookup(lookup, device), lookup=lookup)
        products = tensor_cores.counted_flops(kernel)
        moved = None if not products and kernels.is_product(kernel) else kernels.traffic(kernel)
        if moved is None:
            return _Answer(memory.floor_seconds(device), Provenance.UNKNOWN, unknown=f"kernel {kernel.name}")
        seconds, provenance = memory.kernel_seconds(moved, device)
        if moved.guessed:
            provenance = Provenance.ROOFLINE
        known = _Answer(seconds, provenance, meeting=kernels.is_meeting(kernel))
        return self._with_products(known, kernel, products) if products else known

    def _with_products(self, moving: _Answer, kernel: Kernel, flops: float) -> _Answer:
        """What a kernel takes that multiplies matrices while it moves its bytes: the longer of both."""
        device, like = self._cluster.device, self._product(tensor_cores.LIKE)
        busy = like.seconds * flops / like.flops / tensor_cores.occupied(kernel, device)
        seconds = memory.floor_seconds(device) + busy
        if seconds <= moving.seconds:
            return replace(moving, flops=flops)
        answer = self._in_burst(seconds, Provenance.ROOFLINE, flops, device.tensor_flops)
        return replace(answer, meeting=moving.meeting)
