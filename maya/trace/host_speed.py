"""How fast the recording machine was while it recorded, over a reference host, by PyTorch's operators in the trace.

What passes on the host from where an operator begins to its first device call is PyTorch's own C++, much alike in all
scripts: each recording times thousands of such spans, in the very caches, on the very cores and beside the very
neighbours that its script's other host time was spent with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from maya.launch.layout import WITHIN_NS
from maya.trace.format import RawRank
from maya.trace.host import UndisturbedTimes
from maya.trace.types import Spans

FEWEST = 16  # spans of an operator, for its least to tell
ENOUGH = 256  # more tell nothing new
FEWEST_OPERATORS = 3
# Of observing an operator, beyond what the emulator sees of it: as scripts/bench/host measures it, on the reference.
OBSERVING_NS = 350
_BEYOND = np.iinfo(np.uint16).max  # the field's largest


def spans_of(raws: Sequence[tuple[RawRank, int]]) -> dict[str, Spans]:
    """By operator, in each rank's records from a row on."""
    names: dict[str, int] = {}
    samples = []
    for raw, start in raws:
        told = (raw.records["within"][start:] > 0) & (raw.records["within"][start:] < _BEYOND)
        records = raw.records[start:][told]
        contexts, inverse = np.unique(records["context"], return_inverse=True)
        operators = [raw.contexts.get(number, {}).get("operator", "") for number in contexts.tolist()]
        numbers = np.array([names.setdefault(operator, len(names)) for operator in operators], np.int64)
        samples.append((numbers[inverse.reshape(-1)], records["within"].astype(np.int64) * WITHIN_NS))
    if not names:
        return {}
    count = np.bincount(np.concatenate([numbers for numbers, _ in samples])).tolist()
    operators = list(names)
    least = UndisturbedTimes.of(samples)
    return {
        operators[number]: Spans(float(ns), count[number])
        for number, ns in zip(least.alike.tolist(), least.host_ns.tolist(), strict=True)
        if count[number] >= FEWEST and ns > 0
    }


def host_speed(spans: Mapping[str, Spans]) -> float | None:
    """Of the machine that recorded `spans`, over the reference's; None where they hold too few operators that are known
    of it. The weighted geometric mean of the middle half of the operators: some take other ways through PyTorch in one
    script than in another.
    """
    known = [(each, reference()[operator]) for operator, each in spans.items() if operator in reference()]
    if len(known) < FEWEST_OPERATORS:
        return None
    logs = np.log([there.within_ns / here.least_ns for here, there in known])
    sure = np.array([min(here.count, ENOUGH) ** 0.5 / max(there.scatter, 0.05) for here, there in known])
    return float(np.exp(_middle_mean(logs, sure)))


def _middle_mean(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The mean of what lies between a quarter and three quarters of the weight."""
    order = np.argsort(values)
    ends = np.cumsum(weights[order]) / weights.sum()
    begins = ends - weights[order] / weights.sum()
    inside = np.clip(np.minimum(ends, 0.75) - np.maximum(begins, 0.25), 0, None)
    return float(np.average(values[order], weights=inside))


def on_reference(records: NDArray[np.void], speed: float) -> NDArray[np.uint64]:
    """[records] ns of host time on the reference host, without observing; `records` (dtype RAW_RECORD) were made by one
    `speed` times as fast."""
    net = records["host_ns"] * speed - records["ranges"] * np.float64(OBSERVING_NS)
    result: NDArray[np.uint64] = net.clip(min=0).astype(np.uint64)
    return result


@dataclass(frozen=True)
class ReferenceSpan:
    within_ns: float
    scatter: float  # mean absolute logarithm by which kinds of scripts differ from it


@cache
def reference() -> dict[str, ReferenceSpan]:
    """By operator, of the reference host: written by scripts/fit/reference_host."""
    table = json.loads((files("maya.trace") / "reference_host.json").read_text())
    return {operator: ReferenceSpan(**members) for operator, members in table["operators"].items()}
