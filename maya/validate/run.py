"""Predicts the rows of a table, several at a time, and can be taken up again.

A row's script runs once: its trace is kept, and judged again whenever its line is missing from the output. Rows of a
family are judged together, by all that their recordings tell of the script, as the trials of a search are.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from maya.errors import MayaError
from maya.estimate.recordings import Recording, ScriptTimes
from maya.launch.lessons import FILE as LESSONS
from maya.trace.types import JobTrace
from maya.validate.mapping import Family, Mapped, Unmapped, family, map_row
from maya.validate.recorder import Recorder
from maya.validate.rows import Row, read_rows
from maya.validate.split import Share, in_share, is_fit
from maya.validate.statistics import CONFIGURATION, GROUP
from maya.validate.traces import TraceStore, Unjudged, job_key

COLUMNS = (
    "id", "verdict", "predicted_iteration_time_s", "measured_iteration_time_s", "error", "reason",
)  # fmt: skip

NOT_RUN = "NOT RUN"


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


@dataclass(frozen=True)
class Inputs:
    """What every worker process needs beside the row."""

    examples: Path
    traces: Path

    def kept(self, mapped: Mapped) -> bool:
        """That its trace is there: nothing has to run."""
        return TraceStore(self.traces).has(mapped, self.examples)


def validate(
    path: Path,
    examples: Path,
    out: Path,
    *,
    traces: Path | None = None,
    source: str | None = None,
    share: Share = Share.ALL,
    sample: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    recorded: bool = False,
    recording: Callable[[str, int, int], None] = lambda row_id, done, of: None,
    progress: Callable[[dict[str, Any]], None] = lambda line: None,
) -> pd.DataFrame:
    """Predicts the chosen rows; `out` gets one line each as it is done, and lines it has already are not done again.

    `recording` is told of each row whose script has run, how many have and how many are to, from another thread;
    `progress` of each line.
    With `recorded` nothing is run: only rows whose trace is kept are judged, the others stay without a verdict.
    Traces are kept in `traces` (default: beside `out`), shares of each prediction's time in `out`.details.jsonl.
    Returns COLUMNS, those of `details` and the statistics' group columns of the chosen rows. Raises MayaError for
    bad input.
    """
    if not (examples / "megatron").is_dir():
        raise MayaError(f"{examples}: the example scripts are not here; name their folder with --examples")
    rows = select([row for row in read_rows(path) if in_share(row.id, share)], source, sample, seed)
    done = _already_done(out)
    inputs = Inputs(examples, traces or out.with_name(out.name + ".traces"))
    with out.open("a", newline="") as file, details_path(out).open("a") as details:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not done and file.tell() == 0:
            writer.writeheader()
        wanted = {row.id for row in rows if row.id not in done and (not recorded or _is_kept(row, inputs))}
        for line, shares in _predictions(rows, wanted, inputs, workers, recording):
            details.write(json.dumps({"id": line["id"], **shares}) + "\n")
            details.flush()
            writer.writerow(line)
            file.flush()
            os.fsync(file.fileno())
            progress(line)
    return joined(rows, out)


def _is_kept(row: Row, inputs: Inputs) -> bool:
    mapped = map_row(row)
    return isinstance(mapped, Unmapped) or inputs.kept(mapped)


def details_path(out: Path) -> Path:
    return out.with_name(out.name + ".details.jsonl")


Predicted = tuple[dict[str, Any], dict[str, float]]  # a line and the shares of its time
Recorded = Unjudged | Recording


def _predictions(
    rows: list[Row],
    wanted: set[str],
    inputs: Inputs,
    workers: int | None,
    recording: Callable[[str, int, int], None],
) -> Iterable[Predicted]:
    """Of those of `rows` that are `wanted`; each is judged when all of its family are recorded."""
    families: dict[Family, list[tuple[Row, Mapped]]] = defaultdict(list)
    for row in rows:
        it = map_row(row)
        if isinstance(it, Mapped):
            families[family(row, it)].append((row, it))
        elif row.id in wanted:
            yield _line(row, "UNMAPPED", None, it.reason), {}
    telling = [sorted(_telling(each, wanted, inputs), key=_neighbours) for each in families.values()]
    new = {row.id for members in telling for row, it in members if not inputs.kept(it)}
    count = workers or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count) as recorders, ProcessPoolExecutor(count) as judges:
        recordings = _recordings(telling, inputs, lambda it: recorders.submit(_record, it, inputs))
        _tell_when_recorded(itertools.chain.from_iterable(recordings), new, recording)
        for recorded in recordings:
            yield from _judged(
                [(row, it, told.result()) for row, it, told in recorded], wanted, inputs, judges
            )


def _recordings(
    telling: list[list[tuple[Row, Mapped]]], inputs: Inputs, record: Callable[[Mapped], Future[Recorded]]
) -> list[list[tuple[Row, Mapped, Future[Recorded]]]]:
    """Rows of one job, measured twice or on two networks, share its recording."""
    jobs: dict[str, Future[Recorded]] = {}

    def recording(mapped: Mapped) -> Future[Recorded]:
        key = job_key(mapped, inputs.examples)
        if key not in jobs:
            jobs[key] = record(mapped)
        return jobs[key]

    return [[(row, it, recording(it)) for row, it in members] for members in telling]


def _tell_when_recorded(
    recordings: Iterable[tuple[Row, Mapped, Future[Recorded]]],
    new: set[str],
    recording: Callable[[str, int, int], None],
) -> None:
    """Calls `recording` whenever one of `new` is done: a family's lines wait for the last of them."""
    done = itertools.count(1)

    def tell(row_id: str, _: Future[Any]) -> None:
        recording(row_id, next(done), len(new))

    for row, _, told in recordings:
        if row.id in new:
            told.add_done_callback(partial(tell, row.id))


def _telling(members: list[tuple[Row, Mapped]], wanted: set[str], inputs: Inputs) -> list[tuple[Row, Mapped]]:
    """Of a family those to be judged, and with them those that are recorded already."""
    if not any(row.id in wanted for row, _ in members):
        return []
    return [(row, it) for row, it in members if row.id in wanted or inputs.kept(it)]


def _neighbours(pair: tuple[Row, Mapped]) -> tuple[str, int]:
    """Sorts rows so that neighbours share a fork server, small worlds first."""
    return pair[1].cluster.model_dump_json(), pair[1].world


def _judged(
    members: list[tuple[Row, Mapped, Recorded]],
    wanted: set[str],
    inputs: Inputs,
    judges: ProcessPoolExecutor,
) -> Iterable[Predicted]:
    """Of a family, all of it recorded."""
    script = ScriptTimes.of([told for _, _, told in members if isinstance(told, Recording)])
    futures = []
    for row, it, told in members:
        if row.id in wanted and isinstance(told, Unjudged):
            yield _line(row, told.verdict, None, told.message), {}
        elif row.id in wanted:
            futures.append(judges.submit(_judge, row, it, inputs, script))
    for future in as_completed(futures):
        yield future.result()


@cache
def _recorder(traces: Path) -> Recorder:
    """Of this worker process; what its rows tell of their script lies beside their traces."""
    traces.mkdir(parents=True, exist_ok=True)
    return Recorder(traces / LESSONS)


def _record(mapped: Mapped, inputs: Inputs) -> Recorded:
    """Sees to it that the row's trace is kept, and says what that tells of its family's others."""
    store = TraceStore(inputs.traces)
    try:
        kept = store.read(mapped, inputs.examples)
    except MayaError as error:
        return Unjudged("FAILED", str(error))
    if kept is None:
        try:
            kept = _recorder(inputs.traces).record(mapped, inputs.examples)
        except MayaError as error:  # for the user to mend: a library that is not installed
            return Unjudged(NOT_RUN, str(error))
        store.keep(mapped, inputs.examples, kept)
    return kept if isinstance(kept, Unjudged) else Recording.of(kept)


def _judge(row: Row, mapped: Mapped, inputs: Inputs, times: ScriptTimes | None) -> Predicted:
    from maya.predict import judge_trace

    try:
        kept = TraceStore(inputs.traces).read(mapped, inputs.examples)
        if not isinstance(kept, JobTrace):
            script = inputs.examples / mapped.script
            return _line(row, NOT_RUN, None, f"{script} has changed since it was recorded: run again"), {}
        trace = mapped.as_measured(kept)
        prediction = judge_trace(trace, mapped.cluster, what_if=mapped.software, script=times).prediction
    except MayaError as error:
        return _line(row, "FAILED", None, str(error)), {}
    line = _line(row, prediction.verdict, prediction.iteration_time_s, prediction.message)
    return line, dict(prediction.provenance)


def reason_of(message: str) -> str:
    """The line of a prediction's message that says what went wrong: of a traceback the error, not the advice that some
    end with; else the first, which what the script wrote last may follow, without the error that the script made of it.
    """
    first, *others = message.strip().splitlines() or [""]
    if "Last error:" in others[:-1]:  # what NCCL says, behind what PyTorch says of NCCL's errors
        return others[others.index("Last error:") + 1]
    raised = [line for line in others if _RAISED.match(line)]
    return raised[-1] if raised and first.endswith(_TRACEBACK) else _OF_THE_SCRIPT.split(first, maxsplit=1)[0]


_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[\w.]+(Error|Exception)\b.*: ")
_OF_THE_SCRIPT = re.compile(r"\. (?=[\w.]+Error: )")


def _line(row: Row, verdict: str, predicted: float | None, message: str) -> dict[str, Any]:
    error = None if predicted is None else predicted / row.measured_s - 1
    return {
        "id": row.id,
        "verdict": verdict,
        "predicted_iteration_time_s": "" if predicted is None else f"{predicted:.6g}",
        "measured_iteration_time_s": f"{row.measured_s:.6g}",
        "error": "" if error is None else f"{error:+.4f}",
        "reason": reason_of(message),
    }


def _already_done(out: Path) -> set[str]:
    """Ids of whole lines of rows that ran or never will."""
    if not out.exists():
        return set()
    with out.open(newline="") as file:
        reader = csv.DictReader(file)
        found = reader.fieldnames
        if found is not None and tuple(found) != COLUMNS:
            raise MayaError(
                f"{out} exists and holds no predictions: its columns are {', '.join(found)}, those of predictions "
                f"{', '.join(COLUMNS)}; name another file with --out"
            )
        whole = (line for line in reader if line.get("reason") is not None)
        return {line["id"] for line in whole if line["verdict"] != NOT_RUN}


def joined(rows: list[Row], out: Path) -> pd.DataFrame:
    """One line a row: what `validate` returns, of the lines and details that `out` has."""
    lines = pd.read_csv(out).drop_duplicates("id", keep="last")
    groups = pd.DataFrame(
        [
            {
                "id": row.id,
                "source": row.source,
                **{name: row.values[name] for name in (*GROUP[1:], *CONFIGURATION)},
            }
            for row in rows
        ]
    )
    groups["fit"] = groups["id"].map(is_fit)
    predicted = groups.merge(lines, on="id", how="left").fillna({"verdict": NOT_RUN})
    with details_path(out).open() as file:
        details = pd.DataFrame([{"id": "", **json.loads(line)} for line in file] or [{"id": ""}])
    shares = details.drop_duplicates("id", keep="last")
    return predicted.merge(shares, on="id", how="left")
