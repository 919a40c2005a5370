"""Which trials no other beats in both time and cost."""

from __future__ import annotations

from maya.search.driver import Search
from maya.search.types import Trial


def pareto_front(search: Search) -> list[tuple[Trial, float, float]]:
    """Trials that ran and fit, each with seconds and USD per unit of work, fastest first; each next one is cheaper.

    Empty where no price is known. With one number of GPUs cost is time at a rate, and the front its best trial.
    """
    measured = []
    for trial in search.ranking():
        time = search.objective.time(trial.point, trial.iteration_time_s)
        cost = search.objective.cost(trial.point, trial.iteration_time_s)
        if time is not None and cost is not None:
            measured.append((time, cost, trial.number, trial))
    front: list[tuple[Trial, float, float]] = []
    for time, cost, _, trial in sorted(measured, key=lambda entry: entry[:3]):
        if not front or cost < front[-1][2]:
            front.append((trial, time, cost))
    return front
