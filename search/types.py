"""What a search handles: an `Assignment` goes to a judge, an `Outcome` comes back, both make a `Trial`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from maya.estimate.recordings import Recording, ScriptTimes
from maya.report import as_json
from maya.search.expression import Value
from maya.search.space import Point
from maya.simulate.types import Prediction

TrialVerdict = Literal["FITS", "OOM", "FAILED", "INCOMPLETE", "PRUNED"]


@dataclass(frozen=True)
class Assignment:
    """One configuration to judge: the script's arguments and how many ranks run it."""

    trial: int
    argv: tuple[str, ...]
    world: int
    cores: tuple[int, ...] = ()  # to run its ranks on; empty: any


Judge = Callable[[Assignment], Prediction]
JudgeFactory = Callable[[], AbstractContextManager[Judge]]  # opened once in each process that judges


class Recordings(Protocol):
    """What was recorded of configurations that are judged. Both raise LookupError where one is not at hand."""

    def recording(self, assignment: Assignment) -> Recording:
        """What it tells of the others."""

    def judge(self, assignment: Assignment, script: ScriptTimes) -> Prediction:
        """Once more, with what all of them tell."""


@dataclass(frozen=True)
class Outcome:
    """What a judge said of one configuration. `prediction` is `maya.simulate.types.Prediction` as JSON."""

    verdict: Literal["FITS", "OOM", "FAILED", "INCOMPLETE"]
    prediction: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0

    @classmethod
    def of(cls, prediction: Prediction, wall_s: float = 0.0) -> Outcome:
        """The prediction as `maya predict --json` writes it."""
        return cls(prediction.verdict, json.loads(json.dumps(as_json(prediction))), wall_s)

    def revised(self, prediction: Prediction, note: str) -> Outcome:
        """With what is predicted now; how it was recorded stays."""
        now = Outcome.of(prediction)
        recorded = {
            "stages_s": self.prediction.get("stages_s", {}),
            "notes": [*self.prediction.get("notes", ()), note],
        }
        return replace(self, verdict=now.verdict, prediction={**now.prediction, **recorded})

    @property
    def iteration_time_s(self) -> float | None:
        return self.prediction.get("iteration_time_s")

    @property
    def shortfall(self) -> float:
        """What an OOM lacked, as a share of what there was asked of it; 0 when unknown."""
        lacking = self.prediction.get("shortfall_bytes") or 0
        peak = self.prediction.get("peak_memory_bytes", {}).get("max") or 0
        return float(lacking) / float(max(peak, 1)) if lacking else 0.0

    @property
    def reused(self) -> bool:
        """Whether its trace came from the cache: the script did not run."""
        return "cache" in (self.prediction.get("stages_s") or {})

    @property
    def by_chance(self) -> bool:
        """Whether it failed as another launch may not."""
        return bool(self.prediction.get("by_chance"))

    @property
    def message(self) -> str:
        return str(self.prediction.get("message") or "")

    @property
    def last_line(self) -> str:
        """The last line of the message: of a traceback, the exception."""
        lines = self.message.strip().splitlines()
        return lines[-1].strip() if lines else ""


@dataclass(frozen=True)
class Pruning:
    """Why a configuration was not run: `rules` lead to it from trial `by`, whose outcome tells its own."""

    by: int
    rules: tuple[str, ...]
    implies: Literal["OOM", "FITS"]


@dataclass(frozen=True)
class Trial:
    """A distinct admissible configuration, numbered in the order in which the sampler proposed it.

    `outcome` is a judge's; a pruned trial has `pruning` instead, and where the rule says that it is no
    faster `iteration_time_s` is that of the trial it follows from.
    """

    number: int
    point: Point
    configuration: dict[str, Value]
    outcome: Outcome | None = None
    pruning: Pruning | None = None
    iteration_time_s: float | None = None
    objective: float | None = None

    @property
    def verdict(self) -> TrialVerdict | None:
        """None while it is still open."""
        if self.pruning:
            return "PRUNED"
        return self.outcome.verdict if self.outcome else None

    @property
    def known(self) -> Literal["oom", "fits"] | None:
        """What dominance rules may build on."""
        if self.outcome is None or self.outcome.verdict == "FAILED":
            return None
        return "oom" if self.outcome.verdict == "OOM" else "fits"

    @property
    def ran_and_fits(self) -> bool:
        return self.known == "fits" and self.objective is not None
