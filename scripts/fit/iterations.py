"""Fitting on whole iterations: the recorded rows of the fit share, and the choice of one coefficient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from entries import Entry, FloatArray

from maya.clusters.types import Cluster, Device
from maya.estimate import Estimator
from maya.estimate.power import slowed, within_limit
from maya.estimate.recordings import Recording, ScriptTimes, undisturbed_beside
from maya.simulate import build_network, place, simulate
from maya.simulate.network import Network
from maya.trace.types import JobTrace
from maya.validate import Mapped, is_fit, map_row, read_rows
from maya.validate.mapping import Family, family
from maya.validate.rows import Row
from maya.validate.traces import TraceStore


def recorded_rows(table: Path, traces: Path, examples: Path) -> Iterator[tuple[Row, Mapped, JobTrace]]:
    """The rows of the fit share whose trace `maya validate --traces` has kept."""
    for row, mapped, (trace,) in repeatedly_recorded_rows(table, [traces], examples):
        yield row, mapped, trace


def repeatedly_recorded_rows(
    table: Path, directories: Sequence[Path], examples: Path
) -> Iterator[tuple[Row, Mapped, list[JobTrace]]]:
    """Likewise, with what each of the directories has of a row.

    What disturbed the recordings is taken out by all rows of a family, whatever their share: recordings say nothing of
    what was measured.
    """
    stores = [TraceStore(directory) for directory in directories]
    rows = [(row, it) for row in read_rows(table) if isinstance(it := map_row(row), Mapped)]
    families: dict[Family, list[tuple[Row, Mapped]]] = defaultdict(list)
    for row, mapped in rows:
        families[family(row, mapped)].append((row, mapped))
    for members in families.values():
        wanted = [(row, mapped) for row, mapped in members if is_fit(row.id)]
        scripts = [told(store, members, examples) if wanted else None for store in stores]
        for row, mapped in wanted:
            traces = [
                mapped.as_measured(undisturbed_beside(trace, script).trace)
                for store, script in zip(stores, scripts, strict=True)
                if isinstance(trace := store.read(mapped, examples), JobTrace)
            ]
            if traces:
                yield row, mapped, traces


def told(store: TraceStore, members: list[tuple[Row, Mapped]], examples: Path) -> ScriptTimes | None:
    """What the recordings of a family tell of its script."""
    kept = (store.read(mapped, examples) for _, mapped in members)
    return ScriptTimes.of([Recording.of(trace) for trace in kept if isinstance(trace, JobTrace)])


@dataclass(frozen=True)
class Iteration:
    """A recorded row's trace on its cluster, with durations and shared links as `maya validate` has them."""

    trace: JobTrace
    seconds: FloatArray  # [operations]
    network: Network
    demand: FloatArray | None  # [operations]

    @staticmethod
    def of(trace: JobTrace, mapped: Mapped, slowdown: float | None = None) -> Iteration:
        """`trace`: its host undisturbed, as measured; `slowdown`: by which the devices' clocks are lower, None: what
        their power limits leave."""
        placed = place(trace, mapped.cluster)
        estimates = Estimator(mapped.cluster).estimate(placed.operations)
        if slowdown is None:
            estimates = within_limit(placed, estimates, mapped.cluster.device)
        else:
            estimates = slowed(estimates, slowdown)
        seconds = mapped.software.durations(placed, estimates.seconds)
        network = build_network(placed, estimates.use, mapped.cluster)
        return Iteration(placed, seconds, network, estimates.demand)

    def simulated_s(self, cluster: Cluster) -> float:
        """`cluster`: the one it was estimated on, or one that differs in its hosts alone."""
        timeline = simulate(
            self.trace,
            self.seconds,
            cluster,
            iterations=2,
            keep_timeline=False,
            network=self.network,
            demand=self.demand,
        )
        return float(timeline.iterations_ns[-1]) * 1e-9 / self.trace.iterations_per_cycle


Average = Callable[..., FloatArray]  # over axis 0


@dataclass(frozen=True)
class Choice:
    """Which of the candidates was taken, and the relative error of each row predicted by a fit on the others."""

    candidate: int
    errors: FloatArray  # [rows]

    def __str__(self) -> str:
        sizes = abs(self.errors)
        return (
            f"from {len(sizes)} rows, left out one at a time: "
            f"median {np.median(sizes):.1%} mean {sizes.mean():.1%} bias {self.errors.mean():+.1%}"
        )


def entry(device: Device, coefficients: dict[str, float], choice: Choice, variant: str = "") -> Entry:
    """Of maya/estimate/fits."""
    sizes = abs(choice.errors)
    return {
        "device": device.key,
        "compute_capability": list(device.compute_capability),
        "variant": variant,
        "coefficients": coefficients,
        "source": "measured iterations, fit share (docs/accuracy.md)",
        "licence": "of the sources named there",
        "error": {"method": "one iteration left out at a time", "points": len(sizes),
                  "median": round(float(np.median(sizes)), 4), "mean": round(float(sizes.mean()), 4),
                  "bias": round(float(choice.errors.mean()), 4)},
    }  # fmt: skip


def choose(logs: FloatArray, flat: float = 0.0, average: Average = np.median) -> Choice:
    """The first candidate whose `average` absolute error is the least, or larger by the share `flat` of it at most;
    `logs` [rows, candidates]: log of predicted over measured."""
    cost = np.abs(logs)

    def first(costs: FloatArray) -> int:
        averages = average(costs, axis=0)
        return int((averages <= averages.min() * (1 + flat)).argmax())

    best = first(cost)
    left_out = [first(np.delete(cost, row, axis=0)) if len(logs) > 1 else best for row in range(len(logs))]
    return Choice(best, np.exp([logs[row, at] for row, at in enumerate(left_out)]) - 1)
