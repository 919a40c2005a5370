"""A prediction in a terminal: the answer first, then what it is made of and how sure it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from maya.estimate.likely import LikelyError
from maya.report.labels import duration, size
from maya.simulate.types import CommunicationTotal, Prediction

BAR_WIDTH = 48
LABEL_WIDTH = 15
LISTED = 4  # notes and the like; the JSON has all, at full length
CLIPPED = 160
STYLES = {"FITS": "bold green", "INCOMPLETE": "bold yellow", "OOM": "bold red", "FAILED": "bold red"}
BREAKDOWN = {  # colour and what to call it
    "exposed_compute": ("blue", "compute"),
    "overlapped": ("cyan", "compute with communication"),
    "exposed_communication": ("yellow", "communication"),
    "idle": ("bright_black", "idle"),
}
SURENESS = {
    "profiled": "profiled on this device",
    "learned": "learned from measurements of this device",
    "borrowed": "datasheet with another device's efficiency",
    "roofline": "datasheet roofline",
    "measured_host": "host time measured here",
    "unknown": "unknown, charged the launch floor",
}
UNMEASURED = ("borrowed", "roofline", "unknown")


def render_terminal(prediction: Prediction, console: Console) -> None:
    """Prints `prediction`; in colour with bars on a terminal, as plain `label value` lines elsewhere."""
    console.print(_verdict(prediction), soft_wrap=True, highlight=False)
    for name, text in _lines(prediction, console.is_terminal):
        console.print(Text.assemble((f"{name:<{LABEL_WIDTH}}", "dim"), text), soft_wrap=True, highlight=False)


def _verdict(prediction: Prediction) -> Text:
    text = Text(prediction.verdict, STYLES[prediction.verdict])
    if prediction.iteration_time_s is not None:
        text.append(f"  {duration(prediction.iteration_time_s)} an iteration", "bold")
    if prediction.message and prediction.verdict != "INCOMPLETE":  # that is said item by item below
        text.append("\n" + prediction.message.rstrip(), "" if prediction.verdict == "FAILED" else "default")
    return text


def _lines(prediction: Prediction, bars: bool) -> Iterator[tuple[str, Text]]:
    yield from _breakdown(prediction, bars)
    yield from _memory(prediction, bars)
    yield from _utilization(prediction)
    if prediction.dollars_per_iteration is not None:
        yield "cost", Text(f"${prediction.dollars_per_iteration:.4g} an iteration")
    yield from _critical_path(prediction)
    yield from _communication(prediction)
    if prediction.pipeline_bubble is not None:
        yield "pipeline", Text(f"{100 * prediction.pipeline_bubble:.1f} % of the iteration is bubble")
    if prediction.ranks:
        yield "ranks", Text(_ranks(prediction.ranks, prediction.cluster))
    if prediction.provenance:
        yield "durations", Text(sureness(prediction.provenance))
    if prediction.likely_error:
        yield "likely error", Text(likely(prediction.likely_error, prediction.provenance))
    yield from _listed("not covered", prediction.unsupported, "yellow")
    yield from _listed("note", prediction.notes, "")
    if prediction.stages_s:
        parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in prediction.stages_s.items())
        total = duration(sum(prediction.stages_s.values()))
        if prediction.recording_host_speed is not None:
            total += f" on a host {prediction.recording_host_speed:.2f} times as fast as the reference"
        yield "took", Text(f"{total}: {parts}", "dim")


def _listed(name: str, items: tuple[str, ...], style: str) -> Iterator[tuple[str, Text]]:
    for item in items[:LISTED]:
        yield name, Text(item if len(item) <= CLIPPED else item[: CLIPPED - 1] + "…", style)
    if len(items) > LISTED:
        yield "", Text(f"and {len(items) - LISTED} more, see --json", "dim")


def _utilization(prediction: Prediction) -> Iterator[tuple[str, Text]]:
    hardware, model = prediction.hardware_flops_utilization, prediction.model_flops_utilization
    if hardware is None:
        return
    text = f"{100 * hardware:.1f} % of the device's peak FLOP/s (HFU)"
    if model is not None:
        text += f", {100 * model:.1f} % without what is computed twice (MFU)"
    yield "utilization", Text(text)


def _breakdown(prediction: Prediction, bars: bool) -> Iterator[tuple[str, Text]]:
    total = prediction.iteration_time_s
    if prediction.breakdown_s is None or not total:
        return
    parts = asdict(prediction.breakdown_s)
    if bars:
        yield "", _bar([(parts[key] / total, colour) for key, (colour, _) in BREAKDOWN.items()])
    text = Text()
    for key, (colour, name) in BREAKDOWN.items():
        text.append("■ " if bars else "", colour)
        text.append(f"{name} {duration(parts[key])} ({100 * parts[key] / total:.0f} %)   ")
    text.rstrip()
    yield "breakdown", text


def _critical_path(prediction: Prediction) -> Iterator[tuple[str, Text]]:
    total = sum(prediction.critical_path_s.values())
    shares = [(name, seconds / total) for name, seconds in prediction.critical_path_s.items() if total > 0]
    if shares:
        parts = [f"{name} {100 * share:.0f} %" for name, share in shares if share >= 0.005]
        yield "critical path", Text(", ".join(parts))
    if prediction.host_bound_s is not None and prediction.host_bound_s >= 0.005 * total:
        yield "host", Text(f"{duration(prediction.host_bound_s)} of the iteration are waits for the host")


def _communication(prediction: Prediction) -> Iterator[tuple[str, Text]]:
    """One line for each collective and size of communicator: seconds of a rank, mean over all, on whichever of them."""
    groups: defaultdict[tuple[str, int], list[CommunicationTotal]] = defaultdict(list)
    for total in prediction.communication:
        groups[total.collective, len(total.members)].append(total)
    rows = []
    for (collective, members), totals in groups.items():
        seconds, waiting, moved = (
            sum(getattr(total, name) * total.ranks for total in totals) / prediction.ranks["world"]
            for name in ("seconds", "waiting_s", "bytes")
        )
        text = f"{collective} among {members} ranks: {size(moved)} in {duration(seconds)}"
        rows.append(
            (seconds, text + (f", {100 * waiting / seconds:.0f} % of it waiting" if seconds > 0 else ""))
        )
    yield from _listed("communication", tuple(text for _, text in sorted(rows, reverse=True)), "")


def _memory(prediction: Prediction, bars: bool) -> Iterator[tuple[str, Text]]:
    peak = prediction.peak_memory_bytes.get("max")
    if not peak:
        return
    capacity = prediction.peak_memory_bytes["capacity"]
    text = Text(f"{size(peak)} of {size(capacity)} on the fullest rank ({100 * peak / capacity:.0f} %)")
    if bars:
        yield "", _bar([(peak / capacity, "magenta"), (max(0.0, 1 - peak / capacity), "bright_black")])
    yield "memory", text


def sureness(provenance: Mapping[str, float]) -> str:
    """The shares of time by where it came from, largest first."""
    shares = sorted(provenance.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{100 * share:.1f} % {SURENESS.get(name, name)}" for name, share in shares if share >= 5e-4
    )


def likely(error: LikelyError, provenance: Mapping[str, float]) -> str:
    """What measured iterations were off by; perhaps by more, where datasheets tell most of the time."""
    unmeasured = sum(provenance.get(name, 0.0) for name in UNMEASURED)
    rests = f"; perhaps more here, where {100 * unmeasured:.0f} % of the time rests on a datasheet"
    of = "this device" if error.own else "all devices, for of this one there are too few"
    return (
        f"within {100 * error.median:.0f} % for half, {100 * error.p90:.0f} % for nine in ten of {error.iterations} "
        f"measured iterations with as much host time on {of}{rests if unmeasured > 0.5 else ''}"
    )


def _bar(parts: list[tuple[float, str]]) -> Text:
    """Cells by cumulative rounding, so that they always fill the bar's width."""
    text, filled, position = Text(), 0, 0.0
    for share, colour in parts:
        position += share
        upto = min(BAR_WIDTH, round(position * BAR_WIDTH))
        text.append("█" * (upto - filled), colour)
        filled = max(filled, upto)
    return text


def _ranks(ranks: dict[str, int], cluster: str) -> str:
    world, launched = ranks["world"], ranks["launched"]
    text = f"{world} on {cluster}; {launched} launched"
    if "unique" in ranks:  # they got as far as being compared
        text += f", {ranks['unique']} unique"
        if launched < world:
            text += f", {world - launched} inferred ({ranks.get('checked', 0)} checked)"
    return text
