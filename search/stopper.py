"""When enough is known: the best few have stayed the same over many trials that fit (the paper: 5, 20)."""

from __future__ import annotations

from maya.report.labels import counted
from maya.search.objective import Objective
from maya.search.schema import StopSpec
from maya.search.types import Trial


class Stopper:
    """Observes settled trials in the order of their numbers."""

    def __init__(self, spec: StopSpec, objective: Objective) -> None:
        self._spec = spec
        self._objective = objective
        self._best: list[tuple[float, int]] = []
        self.unchanged = 0  # consecutive trials that ran, fit and left the best as they were
        self._failures: list[str] | None = []  # of the first trials, until one does not fail

    def observe(self, trial: Trial) -> str | None:
        """Why to stop after `trial`; None to go on."""
        if trial.outcome is None:
            return None
        return self._all_fail_alike(trial) or self._best_unchanged(trial)

    def _best_unchanged(self, trial: Trial) -> str | None:
        if not trial.ran_and_fits or trial.objective is None:
            return None  # out of memory neither breaks nor lengthens the run
        best = sorted([*self._best, (self._objective.better_first(trial.objective), trial.number)])
        best = best[: self._spec.top]
        self.unchanged = self.unchanged + 1 if best == self._best else 0
        self._best = best
        if len(best) == self._spec.top and self.unchanged >= self._spec.patience:
            best_are = "the best is" if self._spec.top == 1 else f"the best {self._spec.top} are"
            return f"{best_are} unchanged over {counted(self.unchanged, 'trial')} that fit"
        return None

    def _all_fail_alike(self, trial: Trial) -> str | None:
        if self._failures is None or trial.outcome is None or trial.outcome.verdict != "FAILED":
            self._failures = None
            return None
        self._failures.append(trial.outcome.last_line)
        if len(set(self._failures)) > 1:
            self._failures = None
        elif len(self._failures) >= self._spec.same_failures:
            count = len(self._failures)
            they_fail = "the first trial fails" if count == 1 else f"the first {count} trials all fail"
            return f"{they_fail} with: {self._failures[0] or 'no message'}"
        return None
