"""Predicts the rows of a table, several at a time, and can be taken up again."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd

from maya.errors import MayaError
from maya.validate.mapping import Mapped, Unmapped, map_row
from maya.validate.rows import Row, read_rows
from maya.validate.statistics import GROUP

COLUMNS = (
    "id", "verdict", "predicted_iteration_time_s", "measured_iteration_time_s", "error", "reason",
)  # fmt: skip
ROW_SECONDS = 300.0


def select(rows: list[Row], source: str | None, sample: int | None, seed: int) -> list[Row]:
    """Raises MayaError when nothing is left."""
    chosen = [row for row in rows if source is None or row.source == source]
    if not chosen:
        raise MayaError(
            f"no row of source {source!r}; there are {', '.join(sorted({r.source for r in rows}))}"
        )
    if sample is not None and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    return chosen


def validate(
    path: Path,
    examples: Path,
    out: Path,
    *,
    source: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda line: None,
) -> pd.DataFrame:
    """Predicts the chosen rows; `out` gets one line each as it is done, and lines it has already are not done again.

    Returns COLUMNS and the statistics' group columns of the chosen rows. Raises MayaError for bad input.
    """
    if not (examples / "megatron").is_dir():
        raise MayaError(f"{examples}: the example scripts are not here; name their folder with --examples")
    rows = select(read_rows(path), source, sample, seed)
    done = _already_done(out)
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not done and file.tell() == 0:
            writer.writeheader()
        for line in _predictions([row for row in rows if row.id not in done], examples, workers):
            writer.writerow(line)
            file.flush()
            os.fsync(file.fileno())
            progress(line)
    return _joined(rows, out)


def _predictions(rows: list[Row], examples: Path, workers: int | None) -> Iterable[dict[str, Any]]:
    mapped: list[tuple[Row, Mapped]] = []
    for row in rows:
        it = map_row(row)
        if isinstance(it, Unmapped):
            yield _line(row, "UNMAPPED", None, it.reason)
        else:
            mapped.append((row, it))
    mapped.sort(
        key=lambda pair: (pair[1].script, pair[1].cluster.device.key)
    )  # neighbours share a fork server
    count = workers or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, max_tasks_per_child=None) as pool:
        futures = [pool.submit(_predict, row, it, examples) for row, it in mapped]
        for future in as_completed(futures):
            yield future.result()


_predictors: dict[str, Any] = {}  # of this worker process: cluster -> a Predictor with a warm fork server


def _predict(row: Row, mapped: Mapped, examples: Path) -> dict[str, Any]:
    from maya.launch.types import Job
    from maya.predict import Predictor

    key = mapped.cluster.model_dump_json()
    if key not in _predictors:
        for stale in _predictors.values():
            stale.__exit__(None, None, None)
        _predictors.clear()
        _predictors[key] = Predictor(mapped.cluster).__enter__()
    job = Job(
        script=str(examples / mapped.script),
        argv=mapped.argv,
        world=mapped.world,
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        timeout_s=ROW_SECONDS,
    )
    try:
        prediction = _predictors[key].predict(job).prediction
    except MayaError as error:
        return _line(row, "FAILED", None, str(error))
    reason = prediction.message.strip().splitlines()[-1] if prediction.message.strip() else ""
    return _line(row, prediction.verdict, prediction.iteration_time_s, reason)


def _line(row: Row, verdict: str, predicted: float | None, reason: str) -> dict[str, Any]:
    error = None if predicted is None else predicted / row.measured_s - 1
    return {
        "id": row.id,
        "verdict": verdict,
        "predicted_iteration_time_s": "" if predicted is None else f"{predicted:.6g}",
        "measured_iteration_time_s": f"{row.measured_s:.6g}",
        "error": "" if error is None else f"{error:+.4f}",
        "reason": reason,
    }


def _already_done(out: Path) -> set[str]:
    if not out.exists():
        return set()
    with out.open(newline="") as file:
        return {line["id"] for line in csv.DictReader(file) if line.get("reason") is not None}


def _joined(rows: list[Row], out: Path) -> pd.DataFrame:
    lines = pd.read_csv(out).drop_duplicates("id", keep="last")
    groups = pd.DataFrame(
        [
            {"id": row.id, "source": row.source, **{name: row.values[name] for name in GROUP[1:]}}
            for row in rows
        ]
    )
    return groups.merge(lines, on="id", how="inner")
