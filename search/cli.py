"""The `maya-search` command."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from maya.cli import VersionOption, run
from maya.errors import MayaError
from maya.estimate.recordings import ScriptTimes
from maya.launch.environment import require_cuda_build
from maya.launch.lessons import FILE as LESSONS
from maya.search.driver import Search
from maya.search.experiment import Plan, changes, make_plan
from maya.search.journal import Journal
from maya.search.judging import ScriptJudges
from maya.search.results import Experiment
from maya.search.schema import Algorithm
from maya.search.warmstart import WarmStart, best_configurations

FOUND, INTERNAL, BAD_INPUT, ALL_OOM, ALL_FAILED, INTERRUPTED = 0, 1, 2, 3, 4, 130

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SpaceOption = Annotated[Path | None, typer.Option("--space", help="The search space, docs/search.md.")]
ClusterOption = Annotated[str | None, typer.Option("--cluster", help="Instead of the space's.")]
GpusOption = Annotated[int | None, typer.Option("--gpus", min=1, help="Instead of the space's.")]
TrialsOption = Annotated[int | None, typer.Option("--max-trials", min=1, help="Distinct configurations.")]
AlgorithmOption = Annotated[Algorithm | None, typer.Option("--algorithm", help="Instead of the space's.")]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="Instead of the space's.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="The experiment's directory, made anew.")]
ResumeOption = Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Go on with a search.")]
AddressOption = Annotated[str | None, typer.Option("--address", help="A running Ray cluster, or auto.")]
ConcurrencyOption = Annotated[int | None, typer.Option("--concurrency", min=1, help="Trials at a time.")]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=1, help="Seconds a trial may take; 600 by default.")
]
CacheOption = Annotated[
    bool | None,
    typer.Option("--cache/--no-cache", help="Use what was recorded of the same work before ($MAYA_CACHE)."),
]
WarmStartOption = Annotated[
    Path | None, typer.Option("--warm-start", metavar="DIR", help="Begin with the best of an earlier search.")
]
CompareOption = Annotated[
    tuple[Path, Path] | None,
    typer.Option("--compare", metavar="A B", help="Set two finished searches side by side, and no more."),
]
ModuleOption = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")]
ScriptArgument = Annotated[str | None, typer.Argument(metavar="SCRIPT", show_default=False)]


@app.command()
def search(
    script: ScriptArgument = None,
    space: SpaceOption = None,
    cluster: ClusterOption = None,
    gpus: GpusOption = None,
    max_trials: TrialsOption = None,
    algorithm: AlgorithmOption = None,
    seed: SeedOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    address: AddressOption = None,
    concurrency: ConcurrencyOption = None,
    timeout: TimeoutOption = None,
    cache: CacheOption = None,
    warm_start: WarmStartOption = None,
    compare: CompareOption = None,
    module: ModuleOption = False,
    version: VersionOption = False,
) -> None:
    """Find the best configuration of SCRIPT in a space, by prediction, without a GPU.

    Exit code: 0 one was found, 2 bad input, 3 none fits and some ran out of memory, 4 every one failed,
    130 interrupted.
    """
    if compare is not None:
        from maya.search.compare import render_comparison

        render_comparison(*compare, Console())
        raise typer.Exit(FOUND)
    overrides = {
        "cluster": cluster,
        "gpus": gpus,
        "search.max_trials": max_trials,
        "search.algorithm": algorithm,
        "search.seed": seed,
    }
    given = _given(overrides)
    how = _given({"timeout_s": timeout, "cache": cache})
    concurrency = concurrency or default_concurrency()
    require_cuda_build()  # before anything is written or started
    if resume is not None:
        if out is not None:
            raise MayaError("--out and --resume exclude each other: a resumed search stays where it is")
        plan, journal = _resume(resume, space, script, module, given, how)
        directory = resume
    else:
        plan = replace(_plan(space, script, module, given), **how)
        if warm_start is not None:
            plan = replace(plan, warm_start=tuple(best_configurations(warm_start)))
        directory = out or Path(f"maya-search-{datetime.now():%Y%m%d-%H%M%S}")
        journal = Journal.create(directory, plan.header())
    with journal:
        raise typer.Exit(_search(plan, journal, directory, concurrency, address))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def default_concurrency() -> int:
    """Trials at a time: each runs several rank processes, about four of them busy at once."""
    return max(1, len(os.sched_getaffinity(0)) // 4)


def _plan(space: Path | None, script: str | None, module: bool, given: dict[str, Any]) -> Plan:
    if space is None:
        raise MayaError("--space FILE is missing")
    if script is None:
        raise MayaError("SCRIPT is missing")
    try:
        text = space.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MayaError(f"{space}: cannot be read: {error}") from None
    return make_plan(text, str(space), given, script, module)


def _resume(
    directory: Path,
    space: Path | None,
    script: str | None,
    module: bool,
    given: dict[str, Any],
    how: dict[str, Any],
) -> tuple[Plan, Journal]:
    """The search in `directory`, and in its journal what is given now. Raises MayaError when that is not what it was
    about."""
    journal = Journal.resume(directory)
    before = Plan.from_header(journal.header)
    _require_directory(directory, before)
    given = {**before.overrides, **given}
    script, module = script or before.script, module or before.module
    if space is not None:
        now = _plan(space, script, module, given)
    else:
        now = make_plan(before.space_text, before.space_source, given, script, module)
    kept: dict[str, Any] = {
        "warm_start": before.warm_start,
        "timeout_s": before.timeout_s,
        "cache": before.cache,
    }
    now = replace(now, **(kept | how))
    changed = changes(before, now)
    if changed:
        raise MayaError(f"{directory} holds another search, start anew; changed: {'; '.join(changed)}")
    journal.amend(now.header())
    return now, journal


def _require_directory(directory: Path, before: Plan) -> None:
    """Ranks run where the search was begun, unless it has been moved to a machine without that place."""
    begun = Path(before.directory or Path.cwd())
    if begun.is_dir() and not begun.samefile(Path.cwd()):
        raise MayaError(
            f"{directory} was begun in {begun}, where its script runs: cd {begun}, then --resume {directory.resolve()}"
        )


def _search(
    plan: Plan,
    journal: Journal,
    directory: Path,
    concurrency: int,
    address: str | None,
) -> int:
    from maya.search.algorithms import sampler_for
    from maya.search.objective import Objective
    from maya.search.progress import SearchProgress

    space = plan.space()
    console = Console()
    progress = SearchProgress(console)
    sampler = sampler_for(space)
    if plan.warm_start:
        sampler = WarmStart(sampler, space, plan.warm_start)
    objective = Objective(space, plan.cluster.price_per_gpu_hour)
    search = Search(space, sampler, objective, journal, progress.settled)
    for note in search.dominance.notes:
        console.print(note, highlight=False)
    script = plan.script if plan.module else str(Path(plan.script).resolve())
    judges = ScriptJudges(
        script, plan.cluster, plan.directory, plan.module, plan.timeout_s, plan.cache, plan.reuse(),
        lessons=(directory / LESSONS).resolve(),
    )  # fmt: skip
    with progress:
        progress.watch(search)
        search.replay()  # first of all: what cuts this part short takes nothing of the parts before
        stopped, told = _run(search, judges, concurrency, address)
    experiment = Experiment(search, plan.cluster, plan.script, plan.module, journal.elapsed_s, concurrency)
    experiment = _with_timeline(experiment, judges, told, directory)
    return _conclude(experiment, directory, console, stopped)


def _with_timeline(
    experiment: Experiment, judges: ScriptJudges, told: ScriptTimes | None, directory: Path
) -> Experiment:
    from maya.search.timeline import earlier_timeline, remove_timeline, write_timeline

    ranking = experiment.search.ranking()
    if not ranking:
        remove_timeline(directory)
        return experiment
    best = experiment.search.assignment(ranking[0].number)
    try:
        files = earlier_timeline(ranking[0], directory) or write_timeline(judges, best, told, directory)
    except OSError:  # no room for it: the report does without
        remove_timeline(directory)
        files = []
    return replace(experiment, timeline=tuple(path.name for path in files))


def _run(
    search: Search, judges: ScriptJudges, concurrency: int, address: str | None
) -> tuple[tuple[int, str] | None, ScriptTimes | None]:
    """(If it was cut short, the exit code and why; what its recordings tell of the script.)"""
    from maya.search.tuning import run_search

    try:
        return None, run_search(search, judges, concurrency, address, judges)
    except KeyboardInterrupt:
        stopped = INTERRUPTED, "interrupted"
    except OSError as error:
        stopped = INTERNAL, str(error)
    search.revise({})  # what an earlier part said in the end stands
    return stopped, None


def _conclude(
    experiment: Experiment, directory: Path, console: Console, stopped: tuple[int, str] | None
) -> int:
    """Write the results, say what was found, and tell the exit code."""
    from maya.search.report import write_report
    from maya.search.results import write_results
    from maya.search.summary import render_summary

    written: list[Path] = []
    try:
        written += write_results(experiment, directory)
        written.append(write_report(experiment, directory / "report.html"))
        written += [directory / name for name in experiment.timeline]
    except OSError as error:  # the journal has everything, and --resume writes them again
        stopped = stopped or (INTERNAL, f"the results cannot be written: {error}")
    render_summary(experiment, console, written)
    if stopped:
        print(f"maya-search: {stopped[1]}; `maya-search --resume {directory}` goes on", file=sys.stderr)
        return stopped[0]
    return exit_code(experiment.search)


def exit_code(search: Search) -> int:
    counts = search.counts.verdicts
    if search.ranking():
        return FOUND
    return ALL_OOM if counts["OOM"] else ALL_FAILED


def main() -> None:
    run(app)
