"""A timeline in the Trace Event Format, for ui.perfetto.dev: a process a rank, a track a stream, one for the host.

Written as it is generated: a trace of any size needs the memory of one rank's arrays.
Format: "Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from maya.clusters.types import Device
from maya.estimate.types import Estimates, Provenance
from maya.report.labels import category, details, label
from maya.report.slices import device_rows, host_slices
from maya.simulate.results import MILLISECOND_NS, memory_timeline, sm_busy
from maya.simulate.types import RankTimeline, Timeline
from maya.trace.types import DEVICE_WORK, JobTrace, Operation, RankTrace, RecordKind

HOST_TRACK = 0  # a stream's track is its number + 1


def write_perfetto(
    trace: JobTrace,
    timeline: Timeline,
    path: Path,
    estimates: Estimates | None = None,
    device: Device | None = None,
) -> None:
    """Writes every simulated iteration; compressed when the name ends in `.gz`.

    `estimates` adds to each operation where its duration came from, `device` the multiprocessors in use.
    """
    with _open(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = ""
        for event in _events(trace, timeline, estimates, device):
            file.write(separator + event)
            separator = ",\n"
        file.write("\n]}\n")


def _open(path: Path) -> TextIO:
    if path.name.endswith(".gz"):
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=5)
    return path.open("w", encoding="utf-8")


def _events(
    trace: JobTrace, timeline: Timeline, estimates: Estimates | None, device: Device | None
) -> Iterator[str]:
    names = _Names(trace, estimates)
    sizes = np.bincount(trace.class_of_rank, minlength=len(trace.ranks))
    flow = 0
    for number, (rank, times) in enumerate(zip(trace.ranks, timeline.ranks, strict=True)):
        yield from _metadata(rank, int(sizes[number]), number)
        yield from _memory(rank, timeline)
        if device is not None:
            yield from _busy(rank, times, trace.operations, device, timeline)
        for iteration in range(times.start.shape[0]):
            yield from _host(rank, times, iteration, trace)
            yield from _device(rank, times, iteration, names)
            arrows = list(_flows(rank, times, iteration, flow))
            flow += len(arrows) // 2
            yield from arrows


def _metadata(rank: RankTrace, ranks: int, order: int) -> Iterator[str]:
    alike = f" (and {ranks - 1} alike)" if ranks > 1 else ""
    yield _meta(rank.rank, None, "process_name", {"name": f"rank {rank.rank}{alike}"})
    yield _meta(rank.rank, None, "process_sort_index", {"sort_index": order})
    yield _meta(rank.rank, HOST_TRACK, "thread_name", {"name": "host"})
    yield _meta(rank.rank, HOST_TRACK, "thread_sort_index", {"sort_index": HOST_TRACK})
    for stream in np.unique(rank.records["stream"][device_rows(rank)]).tolist():
        name = "default stream" if stream == 0 else f"stream {stream}"
        yield _meta(rank.rank, stream + 1, "thread_name", {"name": name})
        yield _meta(rank.rank, stream + 1, "thread_sort_index", {"sort_index": stream + 1})


def _meta(pid: int, tid: int | None, name: str, args: dict[str, str | int]) -> str:
    thread = {} if tid is None else {"tid": tid}
    return json.dumps({"ph": "M", "pid": pid, **thread, "name": name, "args": args}, ensure_ascii=False)


def _busy(
    rank: RankTrace,
    times: RankTimeline,
    operations: tuple[Operation, ...],
    device: Device,
    timeline: Timeline,
) -> Iterator[str]:
    """A counter: share of the device's multiprocessors in use, each millisecond."""
    end = int(timeline.iteration_end_ns[-1])
    for number, share in enumerate(sm_busy(rank, times, operations, device, 0, end).tolist()):
        yield _counter(rank.rank, "multiprocessors in use", number * MILLISECOND_NS, round(share, 4))


def _memory(rank: RankTrace, timeline: Timeline) -> Iterator[str]:
    """A counter: device memory taken, of as many of the last recorded steps as were simulated."""
    line = memory_timeline(rank)
    bounds = [0, *timeline.iteration_end_ns.tolist()]
    before = max((int(place) for place, _ in line), default=0) + 2 - len(bounds)  # steps that are not shown
    for place, taken in line:
        step, part = divmod(max(0.0, place - max(before, 0)), 1.0)
        first, last = bounds[int(step)], bounds[int(step) + 1]
        yield _counter(rank.rank, "device memory", round(first + part * (last - first)), taken)


def _counter(pid: int, name: str, ns: int, value: float) -> str:
    return f'{{"ph":"C","pid":{pid},"ts":{_us(ns)},"name":"{name}","args":{{"value":{value}}}}}'


class _Names:
    """The part of a device slice that its operation decides, as JSON text made once."""

    def __init__(self, trace: JobTrace, estimates: Estimates | None) -> None:
        self.device = []
        for index, operation in enumerate(trace.operations):
            args = details(operation)
            if estimates is not None:
                args["estimated_us"] = round(float(estimates.seconds[index]) * 1e6, 3)
                args["provenance"] = Provenance(estimates.provenance[index]).name.lower()
            self.device.append(
                f'"name":{json.dumps(label(operation), ensure_ascii=False)},"cat":"{category(operation)}",'
                f'"args":{json.dumps(args, ensure_ascii=False)[:-1]}'
            )


def _host(rank: RankTrace, times: RankTimeline, iteration: int, trace: JobTrace) -> Iterator[str]:
    for begin, end, name, waits in host_slices(rank, times, iteration, trace.operations):
        category = "wait" if waits else "host"
        yield _slice(rank.rank, HOST_TRACK, begin, end, f'"name":{json.dumps(name)},"cat":"{category}"')
    for row in np.flatnonzero(rank.records["kind"] == RecordKind.STEP).tolist():
        at = _us(int(times.issued[iteration][row]))
        yield (
            f'{{"ph":"i","s":"p","pid":{rank.rank},"tid":{HOST_TRACK},"ts":{at},'
            '"name":"optimizer step","cat":"step"}'
        )


def _device(rank: RankTrace, times: RankTimeline, iteration: int, names: _Names) -> Iterator[str]:
    work = device_rows(rank)
    rows = zip(
        rank.records["stream"][work].tolist(),
        rank.records["operation"][work].tolist(),
        rank.records["size"][work].tolist(),
        times.start[iteration][work].tolist(),
        times.end[iteration][work].tolist(),
        strict=True,
    )
    for stream, operation, size, start, end in rows:
        named = names.device[operation]
        comma = "" if named.endswith("{") else ","
        tail = f'{named}{comma}"record_bytes":{size}}}' if size else f"{named}}}"
        yield _slice(rank.rank, stream + 1, start, end, tail)


def _flows(rank: RankTrace, times: RankTimeline, iteration: int, first: int) -> Iterator[str]:
    """An arrow from the last work before an event to the first work that waits for it on another stream."""
    records = rank.records
    start, end = times.start[iteration], times.end[iteration]
    latest: dict[int, int] = {}  # stream -> row of its last work
    before_event: dict[int, int] = {}  # row of an event record -> row of the work before it
    waiting: dict[int, list[int]] = {}  # stream -> rows of work it waits for
    number = first
    for row, (kind, stream, wait) in enumerate(
        zip(records["kind"].tolist(), records["stream"].tolist(), records["wait"].tolist(), strict=True)
    ):
        if kind == RecordKind.EVENT_RECORD and stream in latest:
            before_event[row] = latest[stream]
        elif kind == RecordKind.STREAM_WAIT_EVENT and wait in before_event:
            waiting.setdefault(stream, []).append(before_event[wait])
        elif kind in DEVICE_WORK:
            for source in waiting.pop(stream, []):
                from_stream = int(records["stream"][source])
                if from_stream == stream:
                    continue
                at = max(int(start[source]), int(end[source]) - 1)
                yield _arrow("s", number, rank.rank, from_stream + 1, at)
                yield _arrow("f", number, rank.rank, stream + 1, int(start[row]))
                number += 1
            latest[stream] = row


def _arrow(phase: str, number: int, pid: int, tid: int, ns: int) -> str:
    bind = ',"bp":"e"' if phase == "f" else ""
    return (
        f'{{"ph":"{phase}","id":{number},"pid":{pid},"tid":{tid},"ts":{_us(ns)},'
        f'"name":"event","cat":"event"{bind}}}'
    )


def _slice(pid: int, tid: int, start: int, end: int, rest: str) -> str:
    return f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{_us(start)},"dur":{_us(max(0, end - start))},{rest}}}'


def _us(ns: int) -> str:
    """Microseconds, exact: the format's unit, as a decimal of whole nanoseconds."""
    return f"{ns // 1000}.{ns % 1000:03d}"
