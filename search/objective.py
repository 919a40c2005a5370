"""What makes one configuration better than another."""

from __future__ import annotations

import math

from maya.report.labels import duration, number
from maya.search.algorithms.base import UNFIT
from maya.search.expression import ExpressionError, show
from maya.search.space import Point, Space
from maya.search.types import Outcome, Trial

# All that fit lie below UNFIT, then out of memory, failed, inadmissible.
_FAILED = 1e4 * UNFIT
_INADMISSIBLE = 1e5 * UNFIT


class Objective:
    """The space's objective. `price_per_gpu_hour` (USD) is the cluster's, used where the space names none."""

    def __init__(self, space: Space, price_per_gpu_hour: float | None = None) -> None:
        spec = space.file.objective
        self._space = space
        self.metric = spec.metric
        natural = "max" if spec.metric == "throughput" or spec.metric.endswith("utilization") else "min"
        self.mode = spec.mode or natural
        self._price = spec.price_per_gpu_hour or price_per_gpu_hour
        if self.metric in ("cost", "time_cost") and self._price is None:
            raise space.fail("objective.price_per_gpu_hour", "is missing, and the cluster names no price")
        per_work = f" / ({spec.work})" if spec.work else " / iteration"
        self.unit = {
            "iteration_time": "s",
            "throughput": f"{spec.work or 'iterations'} / s",
            "cost": f"USD{per_work}",
            "time_cost": f"s USD{per_work}²",
            "model_flops_utilization": "of peak",
            "hardware_flops_utilization": "of peak",
        }[self.metric]

    @property
    def heading(self) -> str:
        """Above a column of `figure`s."""
        name = self.metric.replace("_", " ")
        return name if self.metric == "iteration_time" else f"{name} ({self.unit})"

    def figure(self, value: float) -> str:
        """For people to read, under the heading."""
        if self.metric == "iteration_time":
            return duration(value, 4)
        return f"{100 * value:.1f} %" if self.unit == "of peak" else number(value)

    def shown(self, value: float) -> str:
        """For people to read, by itself."""
        return self.figure(value) + ("" if self.metric == "iteration_time" else f" {self.unit}")

    def value(self, point: Point, iteration_time_s: float | None, outcome: Outcome | None) -> float | None:
        """The objective, in `unit`; None when it has no value."""
        if iteration_time_s is None or iteration_time_s <= 0:
            return None
        match self.metric:
            case "iteration_time":
                return iteration_time_s
            case "throughput":
                return self.work(point) / iteration_time_s
            case "cost":
                return self.cost(point, iteration_time_s)
            case "time_cost":
                time, cost = self.time(point, iteration_time_s), self.cost(point, iteration_time_s)
                return time * cost if time is not None and cost is not None else None
            case "model_flops_utilization" | "hardware_flops_utilization":
                return outcome.prediction.get(self.metric) if outcome else None

    def time(self, point: Point, iteration_time_s: float | None) -> float | None:
        """Seconds per unit of work."""
        return None if iteration_time_s is None else iteration_time_s / self.work(point)

    def cost(self, point: Point, iteration_time_s: float | None) -> float | None:
        """USD per unit of work; None where no price is known."""
        if iteration_time_s is None or self._price is None:
            return None
        # GPU-hours of one iteration at the price
        gpu_hours = iteration_time_s * self._space.world(point) / 3600
        return gpu_hours * self._price / self.work(point)

    def better_first(self, value: float) -> float:
        """A sort key."""
        return -value if self.mode == "max" else value

    def loss(self, trial: Trial, source: Trial | None = None) -> float:
        """What a sampler is told: finite, smaller is better, out of memory worse by what was lacking.

        A pruned trial lacks at least what the one it follows from, `source`, did.
        """
        if trial.objective is not None:
            return self.better_first(trial.objective)
        outcome = source.outcome if source else trial.outcome
        if outcome and outcome.verdict == "OOM":
            return UNFIT * (1.0 + min(outcome.shortfall, 1000.0))
        return _FAILED

    def inadmissible(self, violation: float) -> float:
        return _INADMISSIBLE * (1.0 + violation)

    def work(self, point: Point) -> float:
        """What an iteration completes. Raises SpaceError where the space's expression gives no positive number."""
        if self._space.work is None:
            return 1.0
        try:
            work = self._space.work.value(self._space.names(point))
        except ExpressionError as error:
            raise self._space.fail("objective.work", str(error)) from None
        if isinstance(work, str) or not 0 < work < math.inf:
            where = " ".join(
                f"{name}={show(value)}" for name, value in self._space.configuration(point).items()
            )
            raise self._space.fail(
                "objective.work", f"{self._space.work.text!r} is {work!r}, not positive, at {where}"
            )
        return float(work)
