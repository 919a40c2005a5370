"""Rates of memory-bound kernels from timed calls of several kernels: what `scripts/fit/memory` takes from Liger-Kernel.

A call's time is the sum of its kernels'. Those of the fitted variants take the candidate coefficients, the others what
the other tables tell of the A100. Each device's coefficients are fitted on its calls of at least SHORTEST_CALL_S that
do not wait for their host.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from entries import Entry, FloatArray, entry
from operators import MARK, Case, Measurement, measurements
from scipy.optimize import least_squares

from maya import clusters
from maya.clusters import Device
from maya.estimate import Estimator, kernels, memory
from maya.estimate.kernels import Traffic
from maya.trace import read_job
from maya.trace.types import Kernel, Memcpy, Memset, Operation

DEVICES = {"NVIDIA A100-SXM4-80GB": "dgx-a100", "NVIDIA H100 80GB HBM3": "dgx-h100"}
# By device, what its calls decide: the coefficient of each variant.
FITTED = {
    "dgx-a100": {
        "strided_2": "elements_per_clock",
        "strided_4": "elements_per_clock",
        "unrolled": "elements_per_clock",
        "concatenation": "elements_per_clock",
    },
    "dgx-h100": {
        "strided_2": "elements_per_clock",
        "strided_4": "elements_per_clock",
        "unrolled": "elements_per_clock",
        "elementwise": "efficiency",
        "layer_norm": "efficiency",
    },
}
SOURCE = "Liger-Kernel, all_benchmark_data.csv: whole calls in which it takes part"
START = {"elements_per_clock": 1.0, "efficiency": 0.85}
SHORTEST_CALL_S = 100e-6  # below, a call is a matter of launches and of what L2 still holds
HOST_S = 8e-6  # of an eager operator: calls of shorter kernels waited for their host
_MARK = re.compile(r"FillFunctor<double>")


@dataclass(frozen=True)
class Call:
    case: Case
    measured_s: float
    fixed_s: float  # launches, and all that is no kernel
    kernels: tuple[Traffic, ...]

    def seconds(self, device: Device, coefficients: Mapping[str, Mapping[str, float]]) -> float:
        """`coefficients` by variant; what a variant lacks is that of element-wise kernels."""
        elementwise = coefficients["elementwise"]
        return self.fixed_s + sum(
            memory.work_seconds(moved, device, {**elementwise, **coefficients.get(moved.variant, {})})
            for moved in self.kernels
        )


def calls(table: Path, trace: Path, entries: list[Entry]) -> list[Entry]:
    """`entries`: of the other tables, whose coefficients hold where a device's own are not fitted here."""
    operations = dict(timed_operations(table, trace))
    found: list[Entry] = []
    for gpu, name in DEVICES.items():
        device = clusters.load(name).device
        timed = [m for m in measurements(table) if m.gpu == gpu and m.case in operations]
        known = of_a100(entries + found)
        busy = list(usable(timed, operations, name))
        if name == "dgx-a100":
            print(f"a read that waits for another: {wait_seconds(busy, device, known) * 1e6:.2f} us")
        mine = [call for call in busy if any(uses(call, variant) for variant in FITTED[name])]
        found += fit(device, FITTED[name], mine, known)
    return found


def wait_seconds(timed: list[Call], device: Device, known: Mapping[str, Mapping[str, float]]) -> float:
    """Of one read that waits for another: PyTorch of 2024 summed 16,384 rows' losses with 32 threads, which shows
    where the vocabulary is small. The trace's PyTorch has more threads."""
    before, now = 16384 / 32, 16384 / 1024
    rest = [
        call.measured_s - call.seconds(device, known)
        for call in timed
        if call.case.benchmark == "cross_entropy" and call.case.mode == "forward" and call.case.size <= 8192
    ]
    return float(np.mean(rest)) / (before - now)


def of_a100(entries: list[Entry]) -> dict[str, dict[str, float]]:
    return {entry["variant"]: entry["coefficients"] for entry in entries if entry["device"] == "a100_sxm"}


def timed_operations(table: Path, trace: Path) -> Iterator[tuple[Case, list[Operation]]]:
    """The operations between each case's two marks."""
    cases = sorted({measurement.case for measurement in measurements(table)})
    job = read_job(trace)
    between: dict[Case, list[Operation]] = defaultdict(list)
    case = None
    for index in job.ranks[0].records["operation"]:
        operation = job.operations[index] if index >= 0 else None
        if isinstance(operation, Kernel) and _MARK.search(operation.name):
            number = (operation.elements or 0) - MARK
            if 0 <= number <= len(cases):
                case = cases[number - 1] if number else None
                continue
        if case is not None and operation is not None:
            between[case].append(operation)
    yield from between.items()


def usable(
    timed: list[Measurement], operations: Mapping[Case, list[Operation]], cluster: str
) -> Iterator[Call]:
    """Calls that kept the device busy. A whole call says nothing that its two halves do not."""
    estimator, device = Estimator(clusters.load(cluster)), clusters.load(cluster).device
    halves = {m.case.benchmark for m in timed if m.case.mode == "backward"}
    for measurement in timed:
        mine = operations[measurement.case]
        whole = measurement.case.mode == "full" and measurement.case.benchmark in halves
        if whole or measurement.seconds < max(SHORTEST_CALL_S, HOST_S * len(mine)):
            continue
        moved, fixed_s = [], 0.0
        for operation, seconds in zip(mine, estimator.estimate(mine).seconds, strict=True):
            traffic = traffic_of(operation)
            moved += [traffic] if traffic is not None else []
            fixed_s += float(seconds) if traffic is None else memory.floor_seconds(device)
        yield Call(measurement.case, measurement.seconds, fixed_s, tuple(moved))


def traffic_of(operation: Operation) -> Traffic | None:
    """What moves at the device's own rate, hence by the candidate coefficients."""
    match operation:
        case Kernel():
            return kernels.traffic(operation)
        case Memcpy(direction="d2d", bytes=moved):
            return Traffic(2.0 * moved)
        case Memset(bytes=moved):
            return Traffic(float(moved))
    return None


def fit(
    device: Device, fitted: Mapping[str, str], mine: list[Call], known: dict[str, dict[str, float]]
) -> list[Entry]:
    def logs(values: FloatArray, chosen: list[Call]) -> FloatArray:
        candidate = {
            v: {name: value} for (v, name), value in zip(fitted.items(), np.exp(values), strict=True)
        }
        coefficients = known | {variant: known.get(variant, {}) | own for variant, own in candidate.items()}
        return np.log([call.seconds(device, coefficients) / call.measured_s for call in chosen])

    def solved(chosen: list[Call]) -> FloatArray:
        start = np.log([START[name] for name in fitted.values()])
        return np.asarray(least_squares(logs, start, args=(chosen,), loss="soft_l1", f_scale=0.1).x)

    best = solved(mine)
    error = np.zeros(len(mine))
    fold = np.random.default_rng(0).integers(0, 5, len(mine))
    for left_out in range(5):
        values = solved([call for call, of in zip(mine, fold, strict=True) if of != left_out])
        test = np.flatnonzero(fold == left_out)
        error[test] = np.exp(logs(values, [mine[index] for index in test])) - 1
    for call, off in sorted(zip(mine, error, strict=True), key=lambda pair: pair[0].case):
        print(f"  {device.key} {call.case.benchmark} {call.case.mode} {call.case.size}: {off:+.1%}")
    found = []
    for (variant, name), value in zip(fitted.items(), np.exp(best).tolist(), strict=True):
        its = error[[uses(call, variant) for call in mine]]
        print(f"{device.key:10} {variant:14} {value:.3f} in {its.size} calls: "
              f"median {np.median(abs(its)):.1%} mean {abs(its).mean():.1%} bias {its.mean():+.1%}")  # fmt: skip
        found.append(entry(device, variant, {name: round(value, 4)}, its, SOURCE, "BSD-2-Clause"))
    return found


def uses(call: Call, variant: str) -> bool:
    return any(moved.variant == variant for moved in call.kernels)
