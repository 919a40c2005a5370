"""One prediction as one self-contained page: no request leaves it, and it needs no library."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from maya.estimate.types import Estimates, Provenance
from maya.report.labels import category, duration, label, operator_name, ranges, size
from maya.report.plots import steps, thinned
from maya.report.slices import device_rows, host_slices
from maya.report.terminal import SURENESS, likely
from maya.simulate.results import kernel_shares
from maya.simulate.types import Activity, Prediction, RankTimeline, Timeline
from maya.trace.types import Collective, JobTrace, RankTrace

TOP_OPERATIONS = 25
DRAWN_CLASSES = 24  # more would not fit a screen; the others are named
DRAWN_SLICES = 60_000  # of all tracks together: about 1 MB of page
BREAKDOWN = {
    "exposed_compute": "compute",
    "overlapped": "compute with communication",
    "exposed_communication": "communication",
    "idle": "idle",
}
ACTIVITIES = {  # colour and name, in the order of the breakdown
    Activity.COMPUTE: ("exposed_compute", "compute"),
    Activity.OVERLAPPED: ("overlapped", "with comm."),
    Activity.MOVING: ("exposed_communication", "comm."),
    Activity.WAITING: ("waiting", "waiting"),
    Activity.IDLE: ("idle", "idle"),
}


@dataclass(frozen=True)
class Window:
    """The iteration that is shown: the last simulated one, in ns."""

    iteration: int
    begin: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.begin


def write_html(
    prediction: Prediction, trace: JobTrace, timeline: Timeline, estimates: Estimates, path: Path
) -> None:
    window = _window(timeline)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("maya.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"duration": duration, "size": size}
    page = environment.get_template("prediction.html").render(
        prediction=prediction,
        breakdown=_breakdown(prediction),
        sureness=_sureness(prediction),
        likely=likely(prediction.likely_error, prediction.provenance) if prediction.likely_error else "",
        measured=sum(prediction.provenance.get(name, 0.0) for name in ("profiled", "learned")),
        classes=_classes(trace, timeline, window),
        activities=[name for _, name in ACTIVITIES.values()],
        operations=_operations(trace, timeline, estimates, window),
        communication=_communication(prediction),
        path=_path(prediction),
        busy=_busy_line(prediction),
        memory=_memory_line(prediction),
        drawing=_script_json(_drawing(trace, timeline, window)),
        undrawn=max(0, len(trace.ranks) - DRAWN_CLASSES),
        iteration_s=window.length / 1e9,
    )
    path.write_text(page, encoding="utf-8")


def _script_json(content: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _window(timeline: Timeline) -> Window:
    ends = timeline.iteration_end_ns.tolist()
    return Window(len(ends) - 1, ends[-2] if len(ends) > 1 else 0, ends[-1])


def _breakdown(prediction: Prediction) -> list[dict[str, Any]]:
    if prediction.breakdown_s is None:
        return []
    parts = asdict(prediction.breakdown_s)
    total = sum(parts.values()) or 1.0
    return [
        {"key": key, "name": name, "seconds": parts[key], "share": parts[key] / total}
        for key, name in BREAKDOWN.items()
    ]


def _sureness(prediction: Prediction) -> list[dict[str, Any]]:
    shares = sorted(prediction.provenance.items(), key=lambda item: -item[1])
    return [
        {"key": key, "name": SURENESS.get(key, key), "share": share} for key, share in shares if share > 0
    ]


# -- ranks ----------------------------------------------------------------------------------------------


def _classes(trace: JobTrace, timeline: Timeline, window: Window) -> list[dict[str, Any]]:
    alike = [np.flatnonzero(trace.class_of_rank == number) for number in range(len(trace.ranks))]
    activity = timeline.activity_ns[window.iteration] / max(1, window.length)  # [classes, activities]
    return [
        {
            "ranks": ranges(tuple(alike[number].tolist())),
            "count": len(alike[number]),
            "peak": rank.peak_reserved_bytes,
            "parts": [(key, float(activity[number, kind])) for kind, (key, _) in ACTIVITIES.items()],
        }
        for number, rank in enumerate(trace.ranks)
    ]


# -- tables ---------------------------------------------------------------------------------------------


@dataclass
class _Sum:
    count: float = 0.0  # a rank and iteration, mean over ranks
    seconds: float = 0.0
    alone: float = 0.0  # of them without waiting for other ranks, and for links and what else is in use


def _operations(trace: JobTrace, timeline: Timeline, estimates: Estimates, window: Window) -> dict[str, Any]:
    """Device time of an iteration by operation, mean over all ranks; the largest first."""
    seconds, counts = _device_time(trace, timeline, window)
    sums: defaultdict[tuple[str, str, str], _Sum] = defaultdict(_Sum)
    for index in np.flatnonzero(counts).tolist():
        operation = trace.operations[index]
        provenance = Provenance(estimates.provenance[index]).name.lower()
        if isinstance(operation, Collective):
            operation = replace(operation, peer=None)  # transfers of a kind are one line, whoever they go to
        entry = sums[label(operation), operator_name(operation), provenance]
        entry.count += float(counts[index])
        entry.seconds += float(seconds[index])
        entry.alone += float(counts[index] * estimates.seconds[index])
    ranked = sorted(sums.items(), key=lambda item: -item[1].seconds)
    total = sum(entry.seconds for _, entry in ranked) or 1.0
    rows = [
        {
            "name": name,
            "operator": operator,
            "provenance": provenance,
            "count": entry.count,
            "seconds": entry.seconds,
            "waiting": max(0.0, entry.seconds - entry.alone),
            "share": entry.seconds / total,
        }
        for (name, operator, provenance), entry in ranked
    ]
    rest = rows[TOP_OPERATIONS:]
    return {
        "rows": rows[:TOP_OPERATIONS],
        "others": len(rest),
        "others_seconds": sum(row["seconds"] for row in rest),
        "total": total,
    }


def _device_time(
    trace: JobTrace, timeline: Timeline, window: Window
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds and calls of each operation in one iteration, mean over ranks."""
    seconds = np.zeros(len(trace.operations))
    counts = np.zeros(len(trace.operations))
    weights = np.bincount(trace.class_of_rank, minlength=len(trace.ranks)) / trace.world
    for weight, rank, times in zip(weights.tolist(), trace.ranks, timeline.ranks, strict=True):
        rows = device_rows(rank)
        operation = rank.records["operation"][rows]
        spent = kernel_shares(rank, trace.operations)[rows]
        spent *= (times.end - times.start)[window.iteration][rows] / 1e9
        seconds += weight * np.bincount(operation, spent, minlength=len(seconds))
        counts += weight * np.bincount(operation, minlength=len(counts))
    return seconds, counts


def _communication(prediction: Prediction) -> list[dict[str, Any]]:
    return [
        {
            "total": total,
            "members": ranges(total.members),
            "calls": f"{total.calls:.4g} {total.collective}",
            "waiting": total.waiting_s / total.seconds if total.seconds > 0 else 0.0,
        }
        for total in prediction.communication
    ]


# -- lines over time ------------------------------------------------------------------------------------


def _path(prediction: Prediction) -> list[dict[str, Any]]:
    total = sum(prediction.critical_path_s.values()) or 1.0
    return [
        {"name": name, "seconds": seconds, "share": seconds / total}
        for name, seconds in prediction.critical_path_s.items()
    ]


def _busy_line(prediction: Prediction) -> str:
    busy = thinned(prediction.sm_busy)
    return steps(list(range(len(busy))), busy, len(busy), 1.0)


def _memory_line(prediction: Prediction) -> dict[str, Any] | None:
    """Of the rank that takes most."""
    lines = prediction.memory_timeline
    if not lines:
        return None
    rank = max(lines, key=lambda name: max(taken for _, taken in lines[name]))
    places, taken = [place for place, _ in lines[rank]], [count for _, count in lines[rank]]
    until = max(float(int(places[-1]) + 1), 1.0)
    return {
        "rank": rank,
        "points": steps(places, taken, until, max(taken)),
        "most": max(taken),
        "until": until,
    }


# -- the drawing ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Track:
    name: str
    slices: list[tuple[int, int, str, str]]  # begin and end in ns from the window's begin, name, category


def _drawing(trace: JobTrace, timeline: Timeline, window: Window) -> dict[str, Any]:
    """Tracks for the page's canvas. Names are numbered; a track is flat: begin, length, name, ..."""
    pairs = list(zip(trace.ranks, timeline.ranks, strict=True))[:DRAWN_CLASSES]
    groups = [
        (_who(trace, number), list(_tracks(trace, rank, times, window)))
        for number, (rank, times) in enumerate(pairs)
    ]
    budget = DRAWN_SLICES // max(1, sum(len(tracks) for _, tracks in groups))
    names: dict[tuple[str, str], int] = {}
    drawn = []
    for who, tracks in groups:
        for track in tracks:
            flat: list[int] = []
            for begin, end, name, kind in _thin(track.slices, window.length // max(1, budget), budget):
                flat += [begin, end - begin, names.setdefault((name, kind), len(names))]
            drawn.append({"ranks": who, "name": track.name, "slices": flat})
    return {"length": window.length, "names": list(names), "tracks": drawn}


def _who(trace: JobTrace, number: int) -> str:
    ranks = tuple(np.flatnonzero(trace.class_of_rank == number).tolist())
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"


def _tracks(trace: JobTrace, rank: RankTrace, times: RankTimeline, window: Window) -> Iterator[_Track]:
    yield _Track("host", list(_clipped(_host_work(trace, rank, times), window)))
    labels = [label(operation) for operation in trace.operations]
    kinds = [category(operation) for operation in trace.operations]
    rows = device_rows(rank)
    streams = rank.records["stream"][rows]
    for stream in np.unique(streams).tolist():
        own = rows[streams == stream]
        operation = rank.records["operation"][own].tolist()
        work = (
            (begin, end, labels[index], kinds[index])
            for iteration in range(times.start.shape[0])
            for begin, end, index in zip(
                times.start[iteration][own].tolist(),
                times.end[iteration][own].tolist(),
                operation,
                strict=True,
            )
        )
        yield _Track("default stream" if stream == 0 else f"stream {stream}", list(_clipped(work, window)))


def _host_work(trace: JobTrace, rank: RankTrace, times: RankTimeline) -> Iterator[tuple[int, int, str, str]]:
    for iteration in range(times.start.shape[0]):
        for begin, end, name, waits in host_slices(rank, times, iteration, trace.operations):
            yield begin, end, name, "wait" if waits else "host"


def _clipped(
    slices: Iterable[tuple[int, int, str, str]], window: Window
) -> Iterator[tuple[int, int, str, str]]:
    for begin, end, name, kind in slices:
        if end > window.begin and begin < window.end:
            yield max(begin, window.begin) - window.begin, min(end, window.end) - window.begin, name, kind


def _thin(
    slices: list[tuple[int, int, str, str]], resolution: int, budget: int
) -> Iterator[tuple[int, int, str, str]]:
    """At most about `budget` slices: neighbours of one category closer than `resolution` become one."""
    if len(slices) <= budget:
        yield from slices
        return
    merged = slices[0]
    count = 1
    for following in slices[1:]:
        near = following[0] - merged[1] < resolution and following[1] - merged[0] < 4 * resolution
        if near and following[3] == merged[3]:
            count += 1
            merged = (merged[0], following[1], f"{count} operations", merged[3])
        else:
            yield merged
            merged, count = following, 1
    yield merged
