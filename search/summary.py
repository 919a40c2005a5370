"""What a search says on the terminal when it is over: the answer, the runners-up, how it was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from maya.estimate.likely import LikelyError
from maya.report.labels import counted, duration
from maya.report.terminal import likely
from maya.search.driver import Search
from maya.search.expression import show
from maya.search.results import Experiment, shell_command, start_command
from maya.search.types import Trial

_ROWS = 5


def render_summary(experiment: Experiment, console: Console, written: Sequence[Path]) -> None:
    search = experiment.search
    ranking = search.ranking()
    if ranking:
        _answer(experiment, ranking[0], console)
        console.print(_table(search, ranking[:_ROWS]))
    else:
        console.print("[bold red]No configuration fits.[/]")
    if search.counts.verdicts["FAILED"]:
        console.print(_failures(search))
    console.print(tally(experiment), highlight=False)
    console.print("wrote " + ", ".join(str(path) for path in written), highlight=False, soft_wrap=True)


def tally(experiment: Experiment) -> str:
    """How many points were asked, what became of them and why the search ended."""
    search, counts = experiment.search, experiment.search.counts
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counts.verdicts.items()))
    return (
        f"{counted(len(search.trials), 'configuration')} judged ({verdicts}) of "
        f"{counted(search.space.size, 'combination')}; {counted(counts.asked, 'point')} proposed, "
        f"{counts.duplicates:,} of them known already and {counts.inadmissible:,} inadmissible; "
        f"{counts.replayed:,} taken from the journal; {counted(counts.launched, 'trial')} launched, "
        f"{counts.reused:,} judged by a trace from the cache; {together(search)}"
        f"ended: {search.ended or 'cut short'}; {experiment.wall_s:,.0f} s, "
        f"{experiment.concurrency} at a time"
    )


def together(search: Search) -> str:
    """How many trials were judged once more, and why others were not; empty where that says nothing."""
    counts = search.counts
    alone = ", ".join(f"{count:,} not: {reason}" for reason, count in sorted(counts.alone.items()))
    if not counts.together and not alone:
        return ""
    fit = "fits" if counts.together == 1 else "fit"
    return f"{counts.together:,} that {fit} judged together in the end{f' ({alone})' if alone else ''}; "


def _answer(experiment: Experiment, best: Trial, console: Console) -> None:
    objective = experiment.search.objective
    knobs = "  ".join(f"{name}={show(value)}" for name, value in best.configuration.items())
    console.print(f"\n[bold]Best of {len(experiment.search.trials)}:[/] {escape(knobs)}", highlight=False)
    line = f"  {duration(best.iteration_time_s or 0.0, 4)} an iteration on {experiment.cluster.name}"
    if objective.metric != "iteration_time":
        line += f"; {objective.metric.replace('_', ' ')} {objective.shown(best.objective or 0.0)}"
    console.print(f"{line}  ({best.verdict})", highlight=False)
    prediction = best.outcome.prediction if best.outcome else {}
    if error := prediction.get("likely_error"):
        said = likely(LikelyError(**error), prediction["provenance"])
        console.print(f"  likely error: {said}", highlight=False, soft_wrap=True)
    console.print(f"\n{shell_command(start_command(experiment, best))}\n", markup=False, highlight=False)


def _table(search: Search, ranking: Sequence[Trial]) -> Table:
    objective = search.objective
    table = Table("#", "trial", objective.heading, "memory", "MFU", "HFU", "verdict")
    table.add_column("configuration", overflow="fold")
    for place, trial in enumerate(ranking, 1):
        prediction = trial.outcome.prediction if trial.outcome else {}
        memory = prediction.get("peak_memory_bytes", {}).get("max")
        table.add_row(
            str(place),
            str(trial.number),
            objective.figure(trial.objective or 0.0),
            f"{memory / 2**30:.1f} GiB" if memory else "",
            *(_share(prediction.get(f"{which}_flops_utilization")) for which in ("model", "hardware")),
            trial.verdict,
            " ".join(f"{name}={show(value)}" for name, value in trial.configuration.items()),
        )
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _failures(search: Search) -> Table:
    table = Table("trial", "failed with", title="Failed")
    for trial in search.trials:
        if trial.verdict == "FAILED" and trial.outcome:
            table.add_row(str(trial.number), escape(trial.outcome.last_line))
    return table
