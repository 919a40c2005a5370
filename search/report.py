"""report.html: one file without external requests; the answer first, then the alternatives, then the how."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from maya import __version__
from maya.estimate.likely import LikelyError
from maya.report.labels import counted, duration, number, time_unit
from maya.report.terminal import BREAKDOWN, likely, sureness
from maya.search.expression import show
from maya.search.files import replace_file
from maya.search.pareto import pareto_front
from maya.search.results import Experiment, shell_command, start_command
from maya.search.summary import tally
from maya.search.types import Trial

_TEMPLATES = Path(__file__).parent / "templates"


def write_report(experiment: Experiment, path: Path) -> Path:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("search.html").render(
        data=report_data(experiment), plotly=get_plotlyjs(), json=_script_json
    )
    replace_file(path, page.encode())
    return path


def report_data(experiment: Experiment) -> dict[str, Any]:
    """All that the page shows, as plain values."""
    search = experiment.search
    ranking = search.ranking()
    objective = search.objective
    return {
        "title": Path(experiment.script).name,
        "cluster": experiment.cluster.name,
        "device": experiment.cluster.device.name,
        "objective": {
            "metric": objective.metric,
            "mode": objective.mode,
            "unit": objective.unit,
            "heading": objective.heading,
        },
        "axes": _axes(experiment, ranking),
        "knobs": [knob.name for knob in search.space.knobs],
        "best": _best(experiment, ranking[0]) if ranking else None,
        "parts": {part: name for part, (_, name) in BREAKDOWN.items()},
        "ranking": [_ranked(experiment, trial) for trial in ranking],
        "out_of_memory": [_out_of_memory(trial) for trial in search.trials if trial.verdict == "OOM"],
        "pruned": [_pruned(experiment, trial) for trial in search.trials if trial.pruning],
        "pareto": [_ranked(experiment, trial) for trial, _, _ in pareto_front(search)],
        "work": search.space.file.objective.work or "iteration",
        "timeline": experiment.timeline,
        "failed": [_failed(trial) for trial in search.trials if trial.verdict == "FAILED"],
        "convergence": _convergence(experiment),
        "verdicts": dict(search.counts.verdicts),
        "capacity_bytes": experiment.cluster.device.memory_bytes,
        "tally": tally(experiment),
        "notes": list(search.dominance.notes),
        "facts": _facts(experiment),
    }


def _axes(experiment: Experiment, ranking: Sequence[Trial]) -> dict[str, Any]:
    """What a plot's figures are divided by, and the unit that they are in then."""
    objective = experiment.search.objective
    iterations = [trial.iteration_time_s or 0.0 for trial in ranking]
    work = [objective.time(trial.point, trial.iteration_time_s) or 0.0 for trial in ranking]
    iteration = time_unit(max(iterations, default=1.0))
    own = iteration if objective.metric == "iteration_time" else (1.0, objective.unit)
    return {"iteration": iteration, "work": time_unit(max(work, default=1.0)), "objective": own}


def _best(experiment: Experiment, best: Trial) -> dict[str, Any]:
    prediction = best.outcome.prediction if best.outcome else {}
    breakdown, provenance = prediction.get("breakdown_s") or {}, prediction.get("provenance") or {}
    error = prediction.get("likely_error")
    return {
        **_ranked(experiment, best),
        "command": shell_command(start_command(experiment, best)),
        "breakdown": {part: breakdown[part] for part in BREAKDOWN} if breakdown else {},
        "sureness": sureness(provenance),
        "likely": likely(LikelyError(**error), provenance) if error else "",
        "message": prediction.get("message") or "",
        "notes": list(prediction.get("notes") or ()),
    }


def _ranked(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    """Numbers to plot and sort by, and what is shown of them."""
    objective = experiment.search.objective
    prediction = trial.outcome.prediction if trial.outcome else {}
    time, cost = (of(trial.point, trial.iteration_time_s) for of in (objective.time, objective.cost))
    return {
        **_identity(trial),
        "verdict": trial.verdict,
        **_valued(experiment, trial),
        "iteration_time_s": trial.iteration_time_s,
        "iteration_time": duration(trial.iteration_time_s or 0.0, 4),
        "time_s": time,
        "time": duration(time or 0.0, 4),
        "cost_usd": cost,
        "cost": "" if cost is None else number(cost),
        "memory_bytes": prediction.get("peak_memory_bytes", {}).get("max"),
        "mfu": prediction.get("model_flops_utilization"),
        "hfu": prediction.get("hardware_flops_utilization"),
        "gpus": experiment.search.space.world(trial.point),
    }


def _valued(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    objective, value = experiment.search.objective, trial.objective
    said = {"figure": "", "shown": ""} if value is None else {
        "figure": objective.figure(value), "shown": objective.shown(value)
    }  # fmt: skip
    return {"objective": value, **said}


def _identity(trial: Trial) -> dict[str, Any]:
    return {"trial": trial.number, "values": [show(value) for value in trial.configuration.values()]}


def _out_of_memory(trial: Trial) -> dict[str, Any]:
    prediction = trial.outcome.prediction if trial.outcome else {}
    return {**_identity(trial), "shortfall_bytes": prediction.get("shortfall_bytes")}


def _pruned(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    assert trial.pruning is not None
    return {
        **_identity(trial),
        "by": trial.pruning.by,
        "rules": list(trial.pruning.rules),
        "implies": trial.pruning.implies,
        **_valued(experiment, trial),
    }


def _failed(trial: Trial) -> dict[str, Any]:
    assert trial.outcome is not None
    return {**_identity(trial), "last_line": trial.outcome.last_line, "message": trial.outcome.message}


def _convergence(experiment: Experiment) -> list[dict[str, Any]]:
    """Each trial that ran, in order, with the best objective so far."""
    objective = experiment.search.objective
    best: Trial | None = None
    curve = []
    for trial in experiment.search.trials:
        if trial.outcome is None:
            continue
        if trial.objective is not None and (
            best is None
            or objective.better_first(trial.objective) < objective.better_first(best.objective or 0.0)
        ):
            best = trial
        so_far = _valued(experiment, best) if best else {"objective": None, "shown": ""}
        curve.append({"trial": trial.number, **_valued(experiment, trial), "best": so_far})
    return curve


def _facts(experiment: Experiment) -> list[tuple[str, str]]:
    """How it was found; the foot of the page."""
    file = experiment.search.space.file
    return [
        ("script", experiment.script),
        ("space", experiment.search.space.source),
        ("cluster", f"{experiment.cluster.name}, {experiment.cluster.device.name}"),
        ("algorithm", f"{file.search.algorithm}, seed {file.search.seed}"),
        (
            "stop rule",
            f"best {file.stop.top} unchanged over {counted(file.stop.patience, 'trial')} that fit",
        ),
        ("ended", experiment.search.ended or "cut short"),
        ("Maya", __version__),
    ]


def _script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
