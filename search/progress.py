"""What a search shows while it runs: a live line on a terminal, one line a trial elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from maya.search.driver import Search
from maya.search.expression import show
from maya.search.types import Trial

_STYLE = {"FITS": "green", "INCOMPLETE": "yellow", "OOM": "magenta", "FAILED": "red", "PRUNED": "dim"}


class SearchProgress:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._best: float | None = None
        self._live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total} unchanged"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._search: Search | None = None

    def watch(self, search: Search) -> None:
        self._search = search
        self._task = self._live.add_task("starting Ray", total=search.space.file.stop.patience)

    def settled(self, trial: Trial) -> None:
        search = self._search
        if search is None:
            return
        objective = search.objective
        improved = (
            trial.ran_and_fits
            and trial.objective is not None
            and (self._best is None or objective.better_first(trial.objective) < self._best)
        )
        if improved and trial.objective is not None:
            self._best = objective.better_first(trial.objective)
        if trial.verdict != "PRUNED" and (improved or not self._console.is_terminal):
            self._line(search, trial, improved)
        self._live.update(self._task, completed=search.unchanged, description=self._summary(search))

    def _line(self, search: Search, trial: Trial, improved: bool) -> None:
        value = search.objective.shown(trial.objective) if trial.objective is not None else ""
        style = _STYLE[trial.verdict or "FAILED"]
        knobs = " ".join(f"{name}={show(value)}" for name, value in trial.configuration.items())
        mark = "  best so far" if improved else ""
        self._console.print(
            f"trial {trial.number:>4}  [{style}]{trial.verdict:<10}[/]  {value:<14}  {knobs}{mark}",
            highlight=False,
            soft_wrap=True,
        )

    def _summary(self, search: Search) -> str:
        counts = search.counts.verdicts
        tally = "  ".join(f"[{_STYLE[name]}]{name} {counts[name]}[/]" for name in _STYLE if counts[name])
        best = search.objective.better_first(self._best) if self._best is not None else None
        found = f"best {search.objective.shown(best)}" if best is not None else "nothing fits yet"
        return f"{tally}  |  {found}"

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
