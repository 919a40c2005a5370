"""What a search leaves behind: trials.csv and .parquet, best.json, launch.sh."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from maya import __version__
from maya.clusters.types import Cluster
from maya.launch import spawned
from maya.report.labels import duration
from maya.search.driver import Search
from maya.search.expression import show
from maya.search.files import replace_file
from maya.search.pareto import pareto_front
from maya.search.types import Trial


@dataclass(frozen=True)
class Experiment:
    """A search and what it was about; everything that its files and its report say."""

    search: Search
    cluster: Cluster
    script: str
    module: bool
    wall_s: float
    concurrency: int
    timeline: tuple[str, ...] = ()  # files about the best configuration, beside the report


def write_results(experiment: Experiment, directory: Path) -> list[Path]:
    """Write the files into `directory` and name them; best.json and launch.sh only when something fits."""
    table = trials_table(experiment.search)
    written = [directory / "trials.csv", directory / "trials.parquet"]
    replace_file(written[0], table.to_csv(index=False).encode())
    replace_file(written[1], _uniform(table).to_parquet(index=False))
    ranking = experiment.search.ranking()
    best = {directory / "best.json": b"", directory / "launch.sh": b""}
    if not ranking:
        for path in best:
            path.unlink(missing_ok=True)  # of an earlier part of this search
        return written
    best[directory / "best.json"] = (json.dumps(best_json(experiment, ranking[0]), indent=2) + "\n").encode()
    best[directory / "launch.sh"] = launch_script(experiment, ranking[0]).encode()
    for path, content in best.items():
        replace_file(path, content)
    (directory / "launch.sh").chmod(0o755)
    return [*written, *best]


def trials_table(search: Search) -> pd.DataFrame:
    """One row a settled trial, one column a knob; times in seconds, memory in bytes."""
    front = {trial.number for trial, _, _ in pareto_front(search)}
    return pd.DataFrame([_row(search, trial, front) for trial in search.trials])


def _row(search: Search, trial: Trial, front: set[int]) -> dict[str, Any]:
    prediction = trial.outcome.prediction if trial.outcome else {}
    pruning = trial.pruning
    return {
        "trial": trial.number,
        "verdict": trial.verdict,
        search.objective.metric: trial.objective,
        "iteration_time_s": trial.iteration_time_s,
        "model_flops_utilization": prediction.get("model_flops_utilization"),
        "hardware_flops_utilization": prediction.get("hardware_flops_utilization"),
        "peak_memory_bytes": prediction.get("peak_memory_bytes", {}).get("max"),
        "shortfall_bytes": prediction.get("shortfall_bytes"),
        **{f"knob.{name}": value for name, value in trial.configuration.items()},
        "implied": pruning.implies if pruning else None,
        "pruned_by": pruning.by if pruning else None,
        "rule": "; ".join(pruning.rules) if pruning else None,
        "message": trial.outcome.last_line if trial.outcome else None,
        "wall_s": round(trial.outcome.wall_s, 3) if trial.outcome else None,
        "gpus": search.space.world(trial.point),
        "cost_usd": search.objective.cost(trial.point, trial.iteration_time_s),
        "pareto": trial.number in front,
        "trace": _origin(trial),
        "arguments": shlex.join(search.space.argv(trial.point)),
    }


def _origin(trial: Trial) -> str | None:
    if trial.outcome is None:
        return None
    return "cache" if trial.outcome.reused else "launched"


def best_json(experiment: Experiment, best: Trial) -> dict[str, Any]:
    search = experiment.search
    return {
        "trial": best.number,
        "verdict": best.verdict,
        "configuration": best.configuration,
        "objective": {
            "metric": search.objective.metric,
            "mode": search.objective.mode,
            "unit": search.objective.unit,
            "value": best.objective,
        },
        "iteration_time_s": best.iteration_time_s,
        "cluster": experiment.cluster.name,
        "gpus": search.space.world(best.point),
        "pareto": [
            {"trial": trial.number, "time_s": time, "cost_usd": cost, "configuration": trial.configuration}
            for trial, time, cost in pareto_front(search)
        ],
        "command": start_command(experiment, best),
        "prediction": best.outcome.prediction if best.outcome else None,
        "search": {
            "algorithm": search.space.file.search.algorithm,
            "seed": search.space.file.search.seed,
            "ended": search.ended,
            "counts": {**vars(search.counts), "verdicts": dict(search.counts.verdicts)},
            "wall_s": round(experiment.wall_s, 1),
        },
        "version": __version__,
    }


def start_command(experiment: Experiment, trial: Trial) -> list[str]:
    """The command that runs a configuration, on each node; $MASTER_ADDR and $NODE_RANK are the launcher's. A script
    that spawns its ranks itself is started once."""
    module = ["--module"] if experiment.module else []
    told = [experiment.script, *experiment.search.space.argv(trial.point)]
    if trial.outcome and spawned.NOTE in trial.outcome.prediction.get("notes", ()):
        return ["python", *(["-m"] if module else []), *told]
    world = experiment.search.space.world(trial.point)
    per_node = min(world, experiment.cluster.node.gpus)
    nodes = -(-world // per_node)
    command = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={per_node}"]
    if nodes > 1:
        command += ["--node-rank=$NODE_RANK", "--master-addr=$MASTER_ADDR", "--master-port=29500"]
    else:
        command += ["--standalone"]
    return [*command, *module, *told]


def launch_script(experiment: Experiment, best: Trial) -> str:
    objective = experiment.search.objective
    words = start_command(experiment, best)
    other = objective.metric != "iteration_time"
    said = f"{objective.metric.replace('_', ' ')} {objective.shown(best.objective or 0.0)}; " if other else ""
    lines = [
        "#!/bin/sh",
        f"# {experiment.cluster.name}, {experiment.search.space.world(best.point)} GPUs: "
        f"{' '.join(f'{name}={show(value)}' for name, value in best.configuration.items())}",
        f"# Maya {__version__} predicts {duration(best.iteration_time_s or 0.0, 4)} an iteration"
        f" ({said}verdict {best.verdict}).",
    ]
    if any("$NODE_RANK" in word for word in words):
        lines += [
            "# Run it on every node.",
            ': "${MASTER_ADDR:?is the address of the first node}" "${NODE_RANK:?is 0 on the first node}"',
        ]
    return "\n".join([*lines, "exec " + shell_command(words) + ' \\\n  "$@"', ""])


def shell_command(words: Sequence[str]) -> str:
    """One argument with its values a line; only the launcher's two variables are left to the shell."""
    lines: list[str] = []
    for word in words:
        quoted = f'"{word}"' if word.endswith(("=$NODE_RANK", "=$MASTER_ADDR")) else shlex.quote(word)
        starts_line = word.startswith("-") and not _is_number(word)
        if starts_line or not lines or "/" in word or word.endswith(".py"):
            lines.append(quoted)
        else:
            lines[-1] += " " + quoted
    return " \\\n  ".join(lines)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _uniform(table: pd.DataFrame) -> pd.DataFrame:
    """Parquet columns have one type: knobs that mix strings with booleans or numbers become strings."""
    mixed = [
        name
        for name in table.columns
        if name.startswith("knob.") and len({type(value) for value in table[name]}) > 1
    ]
    return table.assign(**{name: [show(value) for value in table[name]] for name in mixed})
