"""A small job as the rooms before would hand it over: two pipeline stages, each two ranks of tensor parallel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from maya.estimate.likely import LikelyError
from maya.estimate.types import Estimates, Provenance
from maya.simulate.types import Activity, Breakdown, CommunicationTotal, Prediction, RankTimeline, Timeline
from maya.trace.types import (
    RECORD,
    Collective,
    Communicator,
    Gemm,
    JobTrace,
    Kernel,
    Memcpy,
    Operator,
    RankTrace,
    RecordKind,
)

GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluFunctor<c10::BFloat16>, char*>(int)"
LAYERS = 6
ITERATIONS = 3
ITERATION_NS = 40_000_000
OPERATIONS = (
    Gemm(4096, 2048, 1024, operator=Operator("aten::addmm", ((4096,), (2048, 1024), (1024, 4096)))),
    Kernel(GELU, (1024, 1, 1), (128, 1, 1), elements=1 << 20, operator=Operator("aten::gelu")),
    Collective("all_reduce", "bf16", 4 << 20, (0, 1)),
    Memcpy("h2d", 32_768),
    Collective("send", "bf16", 4 << 20, (0, 2), peer=2),
    Collective("recv", "bf16", 4 << 20, (0, 2), peer=0),
)
DURATIONS_NS = (1_500_000, 300_000, 900_000, 20_000, 400_000, 400_000)


@dataclass(frozen=True)
class Sample:
    prediction: Prediction
    trace: JobTrace
    timeline: Timeline
    estimates: Estimates


def _row(kind: RecordKind, stream: int = 0, operation: int = -1, **fields: int) -> np.ndarray:
    row = np.zeros((), RECORD)
    row["wait"] = row["communicator"] = row["peer_class"] = -1
    row["kind"], row["stream"], row["operation"], row["host_ns"] = kind, stream, operation, 40_000
    for name, value in fields.items():
        row[name] = value
    return row


def _records(stage: int) -> np.ndarray:
    """Layers of GEMM, GELU and an all-reduce on a side stream, then a transfer to or from the other stage."""
    rows = [_row(RecordKind.MEMCPY, 0, 3, size=32_768, blocking=1)]
    if stage == 1:
        rows.append(_row(RecordKind.COLLECTIVE, 9, 5, communicator=1, peer_class=0))
    for _ in range(LAYERS):
        rows.append(_row(RecordKind.KERNEL, 0, 0))
        rows.append(_row(RecordKind.KERNEL, 0, 1))
        rows.append(_row(RecordKind.EVENT_RECORD, 0))
        rows.append(_row(RecordKind.STREAM_WAIT_EVENT, 7, wait=len(rows) - 1))
        rows.append(_row(RecordKind.COLLECTIVE, 7, 2, communicator=0))
    if stage == 0:
        rows.append(_row(RecordKind.COLLECTIVE, 9, 4, communicator=1, peer_class=1, blocking=1))
    rows.append(_row(RecordKind.DEVICE_SYNCHRONIZE))
    rows.append(_row(RecordKind.STEP))
    return np.array(rows, RECORD)


def _times(records: np.ndarray, stage: int) -> RankTimeline:
    """In-order streams; the host, half as fast as the reference, works before each call and waits where the record says
    so."""
    host_ns = 2 * records["host_ns"].astype(np.int64)
    shape = (ITERATIONS, len(records))
    issued, start, end = (np.zeros(shape, np.int64) for _ in range(3))
    for iteration in range(ITERATIONS):
        host = iteration * ITERATION_NS + stage * 12_000_000
        streams: dict[int, int] = {}
        for index, record in enumerate(records):
            host += int(host_ns[index])
            issued[iteration, index] = host
            stream, operation = int(record["stream"]), int(record["operation"])
            begin = max(host, streams.get(stream, 0))
            if record["kind"] == RecordKind.STREAM_WAIT_EVENT:
                begin = max(begin, int(end[iteration, record["wait"]]))
            if record["kind"] == RecordKind.DEVICE_SYNCHRONIZE:
                begin, finish = host, max([host, *streams.values()])
                host = finish
            else:
                finish = begin + (DURATIONS_NS[operation] if operation >= 0 else 0)
                streams[stream] = finish
                host = finish if record["blocking"] else host
            start[iteration, index], end[iteration, index] = begin, finish
    return RankTimeline(2 * stage, host_ns, issued, start, end)


@pytest.fixture(scope="session")
def sample() -> Sample:
    records = [_records(0), _records(1)]
    ranks = tuple(
        RankTrace(2 * stage, records[stage], (61 - 9 * stage) << 30, 80 << 30) for stage in range(2)
    )
    trace = JobTrace(
        world=4,
        ranks=ranks,
        class_of_rank=np.array([0, 0, 1, 1], np.int32),
        launched=3,
        operations=OPERATIONS,
        communicators=(Communicator(0, (0, 1), (0,), 2), Communicator(1, (0, 2), (0, 1), 2)),
        iterations_recorded=2,
    )
    ends = np.arange(1, ITERATIONS + 1, dtype=np.int64) * ITERATION_NS
    activity = np.zeros((ITERATIONS, 2, len(Activity)), np.int64)
    activity[:] = np.array([18, 3, 2, 9, 8]) * 1_000_000  # of 40 ms
    timeline = Timeline(tuple(_times(records[stage], stage) for stage in range(2)), ends, activity)
    provenance = [Provenance.LEARNED, Provenance.ROOFLINE] + [Provenance.LEARNED] * 4
    estimates = Estimates(
        np.array(DURATIONS_NS) / 1e9, np.array(provenance, np.uint8), np.zeros(len(OPERATIONS))
    )
    prediction = Prediction(
        verdict="FITS",
        iteration_time_s=0.04,
        iterations_s=(0.0401, 0.04, 0.04),
        breakdown_s=Breakdown(0.018, 0.005, 0.009, 0.008),
        peak_memory_bytes={"max": 61 << 30, "by_class": {"0": 61 << 30, "1": 52 << 30}, "capacity": 80 << 30},
        hardware_flops_utilization=0.413,
        ranks={"world": 4, "launched": 3, "unique": 2},
        provenance={"profiled": 0.0, "learned": 0.82, "roofline": 0.12, "measured_host": 0.06},
        stages_s={"launch": 2.1, "emulate": 4.4, "collate": 0.2, "estimate": 0.03, "simulate": 0.01},
        version="0.1.0",
        command=("pretrain.py", "--layers", "6"),
        cluster="dgx-h100",
        waiting_s=0.002,
        host_bound_s=0.001,
        likely_error=LikelyError(median=0.04, p90=0.13, iterations=250, own=True),
        critical_path_s={"gemm": 0.03, "all_reduce": 0.008, "host": 0.002},
        communication=(CommunicationTotal(0, "all_reduce", (0, 1), 2, 4, 6.0, 24 << 20, 0.0054, 0.0018),),
        sm_busy=tuple(0.5 + 0.4 * (number % 3 == 0) for number in range(40)),
        memory_timeline={"0": ((0.0, 1 << 30), (0.5, 40 << 30), (1.0, 61 << 30)), "2": ((0.0, 1 << 30),)},
    )
    return Sample(prediction, trace, timeline, estimates)
