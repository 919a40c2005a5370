"""A `JobTrace`: one steady iteration of each unique rank, communicators joined, every rank in a class."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maya.launch.layout import RecordKind as RecordKind  # `records["kind"]`


@dataclass(frozen=True)
class Operator:
    """The framework operator a device call was made in: `aten::addmm` and its input shapes."""

    name: str = ""
    sizes: tuple[tuple[int, ...], ...] = ()


class Work(NamedTuple):
    """What a launch's threads do, all told: instructions that are issued, and how many of them go to the units for
    double precision and to those for special functions; lines of 128 bytes that its warps ask for, each time anew;
    FLOP of matrix products on tensor cores, as of 16-bit operands: of TF32's twice as many, of 8 bits' half."""

    instructions: int
    doubles: int
    specials: int
    lines: int
    products: int = 0


@dataclass(frozen=True)
class Kernel:
    name: str  # demangled
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    elements: int | None = None  # what an element-wise kernel was launched for
    bytes: int | None = None  # read and written, when its arguments tell
    operator: Operator = Operator()
    # Of cuDNN's fused attention: batch, query heads, queries, keys, head dim, and 1 if it is causal (older traces do
    # not say).
    attention: tuple[int, ...] | None = None
    work: Work | None = None  # where its instructions could be read: Triton's

    @property
    def launch(self) -> tuple[str, tuple[int, int, int], tuple[int, int, int]]:
        """Name, grid and block: what a recording and a profile tell alike; how much it moves only one of them may."""
        return self.name, self.grid, self.block


@dataclass(frozen=True)
class Gemm:
    """C[m, n] = A[m, k] B[k, n], `batch` times; column-major as cuBLAS has it."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"  # of A
    dtype_out: str = "bf16"
    compute: str = "fp32"
    transpose_a: bool = False
    transpose_b: bool = False
    epilogue: str = ""
    multiprocessors: int = 0  # that its caller leaves it; 0: all
    operator: Operator = Operator()


@dataclass(frozen=True)
class Convolution:
    direction: Literal["forward", "backward_data", "backward_filter"]
    input: tuple[int, ...]
    filter: tuple[int, ...]
    output: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: str
    layout: str
    operator: Operator = Operator()


@dataclass(frozen=True)
class Lapack:
    """A factorisation of `batch` matrices of m x n, or a solve with one, under LAPACK's name for it.

    `k`: right-hand sides of a solve, reflectors of an orthogonal matrix. `batched`: by a kernel for many small ones.
    """

    routine: str  # geqrf, potrf, syevd, ...
    m: int
    n: int
    k: int = 0
    batch: int = 1
    dtype: str = "fp32"
    vectors: bool = False  # eigenvectors or singular vectors besides their values
    batched: bool = False
    operator: Operator = Operator()


@dataclass(frozen=True)
class Memcpy:
    direction: Literal["h2d", "d2h", "d2d", "h2h", "p2p"]
    bytes: int
    pinned: bool = True


@dataclass(frozen=True)
class Memset:
    bytes: int


@dataclass(frozen=True)
class Collective:
    """One rank's part of a collective or one side of a point-to-point transfer.

    `bytes` is the larger of the rank's send and receive buffer. `members` are the global ranks of the
    communicator (of the representative's own instance), `peer` the global rank of the other side and `rank`
    that of this one; both only of point-to-point transfers.
    """

    collective: str  # all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send, recv
    dtype: str
    bytes: int
    members: tuple[int, ...]
    peer: int | None = None
    reduction: str = ""
    rank: int | None = None


Operation = Kernel | Gemm | Convolution | Lapack | Memcpy | Memset | Collective


@dataclass(frozen=True)
class Communicator:
    """A communicator as the merged job sees it: instances whose members fall into the same classes are one.

    `members` are the global ranks of one instance in communicator-rank order; -1 where a member never
    announced itself. `classes` are the distinct rank classes among them: the parties that a simulation of
    merged ranks waits for. `instances` is how many communicators this one stands for; `all_members` has the
    members of each of them, this one's first, and is empty where they are not known.
    """

    id: int
    members: tuple[int, ...]
    classes: tuple[int, ...]
    instances: int = 1
    all_members: tuple[tuple[int, ...], ...] = ()


# Device memory taken from (+) and given back to (-) the driver during the whole run.
ALLOCATION = np.dtype(
    [
        ("record", np.int64),  # which record of the run
        ("step", np.int32),  # optimizer steps that had ended before
        ("bytes", np.int64),
    ]
)

# Kinds of records that are work on the device.
DEVICE_WORK = (RecordKind.KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.COLLECTIVE)

# One row per record of a steady iteration.
RECORD = np.dtype(
    [
        ("kind", np.uint8),  # RecordKind
        ("blocking", np.bool_),  # the call returns when the device work is done
        ("stream", np.uint32),  # dense; 0 is the legacy default stream
        ("operation", np.int32),  # index into JobTrace.operations; -1: none
        ("host_ns", np.int64),  # host CPU time before this call
        ("size", np.int64),  # bytes, see RecordKind
        # Row of the EVENT_RECORD this one waits for. A row after this one is that of the iteration before (the event
        # was recorded at its end); one before it there counts from the end, from -2. -1: none, the event is complete.
        ("wait", np.int32),
        ("communicator", np.int32),  # index into JobTrace.communicators; -1: none
        # Ordinal in this iteration: of collectives on that communicator; p2p: per peer rank and direction.
        ("sequence", np.int32),
        ("peer_class", np.int32),  # p2p: class of the other side; -1
        ("group", np.int32),  # NCCL group, 0: none; members of a group run as one kernel
        ("rendezvous", np.int32),  # records of the job with the same number meet (rendezvous.py); -1: alone
        ("graph", np.bool_),  # replayed from a CUDA graph: no launch call of its own
    ]
)


class Pass(IntEnum):
    """What a call is part of."""

    FORWARD = 0  # all that is neither of the following
    BACKWARD = 1
    OPTIMIZER = 2
    RECOMPUTATION = 3  # of a forward pass, in a backward one


@dataclass(frozen=True)
class RankTrace:
    """One class of identical ranks: its representative's steady iteration (`records`, dtype RECORD)."""

    rank: int  # the representative
    records: NDArray[np.void]
    peak_reserved_bytes: int  # device memory taken from the driver, context included
    capacity_bytes: int
    allocations: NDArray[np.void] | None = None  # dtype ALLOCATION, for a memory timeline
    # Streams that synchronise with the legacy default stream (made without cudaStreamNonBlocking).
    blocking_streams: tuple[int, ...] = ()
    passes: NDArray[np.uint8] | None = None  # [records] `Pass`; None: not known


@dataclass(frozen=True)
class JobTrace:
    world: int
    ranks: tuple[RankTrace, ...]  # one a class, in class order
    class_of_rank: NDArray[np.int32]  # [world]
    launched: int
    operations: tuple[Operation, ...]
    communicators: tuple[Communicator, ...]
    iterations_recorded: int  # steady iterations that were seen before the run ended
    # Of the script, in the ranks' records: more than one where it does something every second iteration.
    iterations_per_cycle: int = 1
    unsupported: tuple[str, ...] = ()  # refused calls, "library.function"
    checked: int = 0  # launched ranks that were only compared with what had been inferred of them
    uncovered: tuple[str, ...] = ()  # recorded with less than their true effect
    # Of the machine that recorded, over the reference, whose `host_ns` then are (trace/host_speed.py); None: not known,
    # and they are that machine's.
    host_speed: float | None = None
    # What a rank's data-loader workers need for an iteration's batches, of the rank where that is longest, on the
    # reference host: it is not in `records`.
    loading_s: float = 0.0
    software: str = ""  # what the host ran: "CPython 3.11, PyTorch 2.11"; empty: not known
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def is_idle(self) -> bool:
        """Whether the script ended without a call for a device, as one does that prints its usage."""
        return not any(len(rank.records) for rank in self.ranks)
