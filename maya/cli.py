"""The `maya` command."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from maya import __version__
from maya.errors import NO_ROOM, MayaError

app = typer.Typer(
    help="Predict how an unmodified PyTorch training script performs on a GPU cluster, without a GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, or that of the click within typer
EXIT = {"FITS": 0, "INCOMPLETE": 0, "OOM": 3, "FAILED": 4}
# Options end at the script's name: what follows is the script's own.
SCRIPT_FOLLOWS = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def _say_version(asked: bool) -> None:
    if asked:
        print(f"maya {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print Maya's version.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", help="A name of `maya clusters`, or a YAML file.")]
GpusOption = Annotated[int, typer.Option("--gpus", min=1, help="World size: one rank a GPU.")]
IterationsOption = Annotated[
    int | None,
    typer.Option(
        "--iterations",
        min=1,
        help="Steady iterations to record; found by default. 2 N take in what comes every N.",
    ),
]
ModuleOption = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")]
RanksOption = Annotated[
    Literal["auto", "all", "dedup", "representatives"],
    typer.Option(
        "--ranks",
        help="all: every rank runs to the end. dedup: ranks of equal work are merged after their first iteration. "
        "representatives: only ranks that stand for others are started. auto: dedup up to 16 ranks.",
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=1, help="Seconds before the run is given up.")]
CacheOption = Annotated[
    bool,
    typer.Option("--cache/--no-cache", help="Use what was recorded of the same work before ($MAYA_CACHE)."),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the prediction as JSON.")]
PerfettoOption = Annotated[Path | None, typer.Option("--perfetto", help="Write a trace for ui.perfetto.dev.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write a self-contained report.")]
ScaleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scale", metavar="KIND=FACTOR", help="Scale durations: gemm=0.5, communication=2, host=0.5."
    ),
]
LinkOption = Annotated[
    list[str] | None,
    typer.Option("--link", metavar="LINK=RATE", help="Replace a bandwidth: nvlink=2x, nic=100GB/s."),
]
SlowRankOption = Annotated[
    list[str] | None,
    typer.Option("--slow-rank", metavar="RANK=FACTOR", help="Slow one rank's device: 17=1.2."),
]
LookupsOption = Annotated[
    Path | None,
    typer.Option("--lookups", help="How often a batch looks the same row of its embedding tables up (YAML)."),
]
ScriptArgument = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", show_default=False)]


@app.callback()
def common(version: VersionOption = False) -> None:
    pass


@app.command(context_settings=SCRIPT_FOLLOWS)
def predict(
    script: ScriptArgument,
    cluster: ClusterOption = "dgx-h100",
    gpus: GpusOption = 1,
    iterations: IterationsOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Keep the rank traces here.")] = None,
    json: JsonOption = None,
    perfetto: PerfettoOption = None,
    html: HtmlOption = None,
    module: ModuleOption = False,
    ranks: RanksOption = "auto",
    timeout: TimeoutOption = 600.0,
    lookups: LookupsOption = None,
    cache: CacheOption = True,
) -> None:
    """Predict one configuration: its verdict, iteration time, memory, and how sure that is.

    Exit code: 0 a prediction was made, 2 bad usage, 3 out of memory, 4 the script failed.
    """
    from maya.cache import TraceCache
    from maya.clusters import load
    from maya.estimate import read_lookups
    from maya.predict import Predictor

    job = _job(script, gpus, iterations, module, ranks, timeout)
    reuse = read_lookups(lookups)
    _make_room_for(json, perfetto, html)
    if out is not None:
        _make_trace_folder(out)
    with Predictor(load(cluster), cache=TraceCache.default() if cache else None, reuse=reuse) as predictor:
        judgement = predictor.predict(job, out)
    _report(judgement, json, perfetto, html)


@app.command(context_settings=SCRIPT_FOLLOWS)
def trace(
    script: ScriptArgument,
    out: Annotated[Path, typer.Option("--out", help="Where the job trace goes.")],
    cluster: ClusterOption = "dgx-h100",
    gpus: GpusOption = 1,
    iterations: IterationsOption = None,
    module: ModuleOption = False,
    ranks: RanksOption = "auto",
    timeout: TimeoutOption = 600.0,
) -> None:
    """Record a script's device calls; `maya simulate` predicts from what is written.

    Exit code: 0 a trace was written, 2 bad usage, 3 out of memory, 4 the script failed.
    """
    from maya.clusters import keep, load
    from maya.launch import ForkServer
    from maya.predict import idle, unsimulated
    from maya.report.labels import counted
    from maya.trace import collate, write_job

    job = _job(script, gpus, iterations, module, ranks, timeout)
    recorded_on = load(cluster)
    _make_trace_folder(out)
    with ForkServer(recorded_on) as server:
        run = server.run(job, out)
    if run.status != "traced":
        _report(unsimulated(run, job, recorded_on), None, None, None)
    job_trace = collate(run)
    if job_trace.is_idle:
        _report(idle(job_trace, recorded_on, run.seconds), None, None, None)
    write_job(job_trace, out)
    keep(recorded_on, out)
    Console().print(
        f"{out}: {counted(job_trace.world, 'rank')}, {job_trace.launched:,} launched, {len(job_trace.ranks):,} "
        f"unique, {counted(sum(len(rank.records) for rank in job_trace.ranks), 'record')} an iteration",
        highlight=False,
    )


@app.command()
def simulate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `maya trace --out` wrote.")],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", help="Instead of the recorded one: a name of `maya clusters`, or a YAML file."
        ),
    ] = None,
    scale: ScaleOption = None,
    link: LinkOption = None,
    slow_rank: SlowRankOption = None,
    lookups: LookupsOption = None,
    json: JsonOption = None,
    perfetto: PerfettoOption = None,
    html: HtmlOption = None,
) -> None:
    """Predict from a recorded trace, without running the script again; what if something were different."""
    from maya.clusters import kept, load
    from maya.estimate import read_lookups
    from maya.predict import judge_trace
    from maya.simulate.whatif import WhatIf
    from maya.trace import read_job

    what_if = WhatIf.parse(scale or (), link or (), slow_rank or ())
    reuse = read_lookups(lookups)
    _make_room_for(json, perfetto, html)
    trace = read_job(directory)
    on = load(cluster) if cluster is not None else kept(directory)
    judgement = judge_trace(trace, on, what_if=what_if, reuse=reuse)
    _report(judgement, json, perfetto, html)


@app.command()
def clusters() -> None:
    """List the clusters that come with Maya."""
    from maya.clusters import load, names

    table = Table("name", "GPUs", "GiB", "bf16 TFLOP/s", "HBM TB/s", "link GB/s", "NICs Gb/s", box=None)
    for column in table.columns:
        column.no_wrap = True
    for name in names():
        it = load(name)
        peak = it.device.peak_flops.get("bf16") or it.device.peak_flops.get("fp16", 0.0)
        table.add_row(
            name,
            f"{it.node.gpus} x {it.device.key}",
            f"{it.device.memory_bytes / 2**30:.0f}",
            f"{peak / 1e12:.0f}",
            f"{it.device.memory_bandwidth / 1e12:.2f}",
            f"{it.node.link.bandwidth / 1e9:.0f}",
            f"{it.node.nics} x {it.node.nic.bandwidth * 8 / 1e9:.0f}",
        )
    Console().print(table)


@app.command()
def validate(
    table: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured iterations, one a row.")],
    source: Annotated[str | None, typer.Option("--source", help="Only rows of this source.")] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="That many rows, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the draw.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="One line a row; resumed if it exists.")] = Path(
        "predictions.csv"
    ),
    examples: Annotated[Path, typer.Option("--examples", help="The folder of example scripts.")] = Path(
        "examples"
    ),
    share: Annotated[
        Literal["all", "fit", "report"],
        typer.Option("--share", help="fit: the tenth that may be fitted on; report: the rest."),
    ] = "all",
    traces: Annotated[
        Path | None, typer.Option("--traces", help="Keep what was recorded here, to judge it again.")
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Run nothing: judge only rows whose trace is kept.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write the figures into this Markdown page.")
    ] = None,
    workers: Annotated[int | None, typer.Option("-j", "--workers", min=1, help="Rows at a time.")] = None,
) -> None:
    """Predict measured iterations and say how well that went."""
    from maya.validate import Share, render_errors, write_page
    from maya.validate import validate as run_validation

    _make_room_for(out, page)
    console = Console() if sys.stdout.isatty() else Console(width=140)  # a file folds no lines
    predicted = run_validation(
        table, examples, out,
        traces=traces, source=source, share=Share(share), sample=sample, seed=seed, workers=workers,
        recorded=recorded,
        recording=lambda row_id, done, of: console.print(
            f"{row_id}  recorded, {done} of {of}; judged when all of its script are", highlight=False
        ),
        progress=lambda line: console.print(
            f"{line['id']}  {line['verdict']}  {line['error']}  {line['reason']}", highlight=False
        ),
    )  # fmt: skip
    render_errors(predicted, console)
    if page is not None:
        write_page(predicted, page)


@app.command(context_settings=SCRIPT_FOLLOWS)
def profile(
    script: ScriptArgument,
    database: Annotated[
        Path,
        typer.Option("--database", help="Where durations are added; MAYA_PROFILES names it to estimates."),
    ] = Path("profiles.parquet"),
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster of this GPU; found by its name by default.")
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Iterations to measure.")] = 5,
    timeout: TimeoutOption = 600.0,
) -> None:
    """Measure a script's operations on this machine's GPU, and add them to a profile database."""
    from maya.profile import profile as measure
    from maya.profile.terminal import render

    job = _job(script, 1, None, False, "all", timeout)
    _make_room_for(database)
    render(measure(job, database, iterations=iterations, cluster=cluster), database, Console())


@app.command()
def doctor() -> None:
    """Say whether this machine can run Maya, and how much of PyTorch's CUDA imports it covers."""
    from maya.doctor import examine, render

    findings = examine()
    render(findings, Console())
    raise typer.Exit(0 if findings.usable else 2)


def _job(
    script: list[str], gpus: int, iterations: int | None, module: bool, ranks: Any, timeout: float
) -> Any:
    from maya.launch.types import Job

    name, *argv = script
    return Job(
        script=name if module else _script(name),
        argv=tuple(argv),
        world=gpus,
        module=module,
        iterations=iterations,
        ranks=ranks,
        timeout_s=timeout,
    )


def _script(name: str) -> str:
    """A path, or where a shell would find a program of Python's, such as torchrun: this Python's own first.
    Raises MayaError for neither."""
    if Path(name).is_file():
        return name
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    program = shutil.which(name, path=places)
    if program is None:
        raise MayaError(f"{name}: no such script (started in {Path.cwd()})")
    from maya.launch.script import is_pythons

    if not is_pythons(program):
        raise MayaError(f"{name}: {program} is not Python's")
    return program


def _make_room_for(*files: Path | None) -> None:
    """Makes the folders that files are to lie in, before what takes minutes. Raises MayaError for no place."""
    for file in filter(None, files):
        _make_folder(file.parent)
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise MayaError(
                f"{file}: cannot be written: {'it is a folder' if file.is_dir() else 'no permission'}"
            )


def _make_trace_folder(folder: Path) -> None:
    """Where ranks are recorded. Raises MayaError for one that holds a trace, whose recording may have taken long."""
    from maya.trace import holds_job

    _make_folder(folder)
    if holds_job(folder):
        raise MayaError(
            f"{folder}: holds a trace already; give another folder, or remove that one (rm -r {folder})"
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MayaError(f"{folder}: cannot be made a folder: {error.strerror}") from None


def _report(judgement: Any, json: Path | None, perfetto: Path | None, html: Path | None) -> NoReturn:
    """Says and writes what was predicted, and ends with the verdict's exit code."""
    from maya.report import render_terminal, write_html, write_json, write_perfetto

    prediction = judgement.prediction
    render_terminal(prediction, Console())
    if json is not None:
        write_json(prediction, json)
    if judgement.timeline is not None and perfetto is not None:
        device = judgement.cluster.device
        write_perfetto(judgement.trace, judgement.timeline, perfetto, judgement.estimates, device)
    if judgement.timeline is not None and html is not None:
        write_html(prediction, judgement.trace, judgement.timeline, judgement.estimates, html)
    if judgement.timeline is None:
        for file in filter(None, (perfetto, html)):
            left = "; what it holds is of an earlier prediction" if file.exists() else ""
            print(f"maya: {file}: not written, for nothing was simulated{left}", file=sys.stderr)
    raise typer.Exit(EXIT[prediction.verdict])


def run(command: typer.Typer) -> NoReturn:
    """Runs a command; an error the user can mend is one line on stderr and exit code 2."""
    try:
        sys.exit(command(standalone_mode=False))  # else typer draws a box around what is wrong
    except MayaError as error:
        print(f"maya: {error}", file=sys.stderr)
        sys.exit(2)
    except _UsageError as error:
        _explain(error)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _no_room(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)


def _explain(error: Any) -> None:
    """A mistake in the options, in one line; of a command without any its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    said = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    more = f"; see {error.ctx.command_path} --help" if error.ctx else ""
    print(f"maya: {said[:1].lower()}{said[1:]}{more}", file=sys.stderr)


def _no_room(error: OSError) -> NoReturn:
    """Ends with one line where a disk is full. Raises any other error again: it is a fault of Maya's."""
    if error.errno not in NO_ROOM:
        raise error
    print(f"maya: {error}", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    run(app)
