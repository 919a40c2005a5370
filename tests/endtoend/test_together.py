"""Recordings of one script tell of each other: trials of a search in its end, rows of a source in a validation."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from maya.estimate.recordings import Recording, ScriptTimes
from maya.predict import judge_trace
from maya.trace.types import JobTrace
from maya.validate import Mapped, map_row, read_rows
from maya.validate.run import validate
from maya.validate.traces import TraceStore

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPACE = """
cluster: dgx-a100
gpus: 2
args: {--iterations: 500000, --hidden: 256, --heads: 4, --seq: 128}
knobs:
  layers: {flag: --layers, values: [2, 3]}
search: {algorithm: grid}
"""


def test_trials_of_a_search_are_judged_together_from_the_cache(
    maya_search: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    cached = {**os.environ, "MAYA_CACHE": str(tmp_path / "cache")}
    done = maya_search(
        "--space", "space.yaml", "--out", "out", EXAMPLES / "gpt" / "train.py", environment=cached
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 that fit judged together in the end" in " ".join(done.stdout.split())
    out = tmp_path / "out"
    first = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()[1:]]
    trials = pd.read_csv(out / "trials.csv").set_index("trial")
    for line in first:
        assert trials.iteration_time_s[line["trial"]] != line["prediction"]["iteration_time_s"]
    best = json.loads((out / "best.json").read_text())
    assert "2 recordings of the script" in best["prediction"]["notes"][-1]
    assert best["iteration_time_s"] == best["prediction"]["iteration_time_s"] == trials.iteration_time_s.min()
    assert (out / "best.html").exists()

    again = maya_search("--resume", "out", environment=cached)
    assert again.returncode == 0, again.stdout + again.stderr
    assert json.loads((out / "best.json").read_text())["iteration_time_s"] == best["iteration_time_s"]

    files = ("trials.csv", "launch.sh", "best.html", "best.perfetto.json", "journal.jsonl", "together.json")
    before = {name: (out / name).read_bytes() for name in files}
    evicted = maya_search(
        "--resume", "out", environment={**os.environ, "MAYA_CACHE": str(tmp_path / "empty")}
    )
    assert evicted.returncode == 0, evicted.stdout + evicted.stderr
    said = " ".join(evicted.stdout.split())
    assert (
        "2 taken from the journal; 0 trials launched, 0 judged by a trace from the cache; 2 that fit" in said
    )
    assert {name: (out / name).read_bytes() for name in files} == before
    now = json.loads((out / "best.json").read_text())
    assert now["prediction"] == best["prediction"] and now["objective"] == best["objective"]
    assert "best.html" in (out / "report.html").read_text()


ROWS = """id,gpu,gpus,framework,model,layers,hidden,ffn,heads,seq,vocab,mbs,gbs,precision,iter_time_s
small-1,A100,2,FSDP,GPT,2,256,1024,4,128,1024,1,2,bf16,0.01
small-2,A100,2,FSDP,GPT,3,256,1024,4,128,1024,1,2,bf16,0.01
other-3,A100,2,FSDP,GPT,2,256,1024,4,128,1024,2,4,bf16,0.01
small-4,A100,2,FSDP,GPT,2,256,1024,4,128,1024,1,2,bf16,0.02
"""


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The examples; each rank of the FSDP example adds a letter to `ran`, the first an "A"."""
    folder = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    script = folder / "fsdp/train.py"
    noting = f"open({str(tmp_path / 'ran')!r}, 'a').write(chr(ord('A') + int(os.environ['RANK'])))"
    text = script.read_text()
    assert text.count("\nimport os\n") == 1
    script.write_text(text.replace("\nimport os\n", f"\nimport os; {noting}\n"))
    return folder


def test_rows_of_a_source_are_judged_together(tmp_path: Path, examples: Path) -> None:
    table, traces = tmp_path / "rows.csv", tmp_path / "traces"
    table.write_text(ROWS)
    told: list[tuple[str, int, int]] = []
    predicted = validate(
        table, examples, tmp_path / "out.csv", traces=traces, workers=2, recording=lambda *it: told.append(it)
    )
    assert {row_id for row_id, _, _ in told} == set(predicted["id"])
    assert [(done, of) for _, done, of in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (tmp_path / "ran").read_text().count("A") == 3  # one job is measured twice, and runs once
    assert set(predicted["verdict"]) == {"FITS"}
    times = predicted.set_index("id")["predicted_iteration_time_s"]
    rows = {row.id: (row, map_row(row)) for row in read_rows(table)}
    traces_of = {}
    for row, mapped in rows.values():
        assert isinstance(mapped, Mapped)
        trace = TraceStore(traces).read(mapped, examples)
        assert isinstance(trace, JobTrace)
        traces_of[row.id] = trace
        alone = judge_trace(trace, mapped.cluster).prediction
        assert (alone.iteration_time_s == pytest.approx(times[row.id], rel=1e-5)) == (row.id == "other-3")
    judged_together = ("small-1", "small-2", "small-4")
    script = ScriptTimes.of([Recording.of(traces_of[name]) for name in judged_together])
    for name in judged_together:
        together = judge_trace(traces_of[name], rows[name][1].cluster, script=script).prediction
        assert together.iteration_time_s == pytest.approx(times[name], rel=1e-5)

    out = (tmp_path / "out.csv").read_text().splitlines()
    (tmp_path / "out.csv").write_text(
        "\n".join(line for line in out if not line.startswith("small-2")) + "\n"
    )
    again: list[tuple[str, int, int]] = []
    resumed = validate(
        table, examples, tmp_path / "out.csv", traces=traces, recorded=True,
        recording=lambda *it: again.append(it),
    )  # fmt: skip
    assert not again
    assert resumed.set_index("id")["predicted_iteration_time_s"]["small-2"] == times["small-2"]


def test_a_script_that_changes_while_it_is_recorded_is_not_judged(tmp_path: Path, examples: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(ROWS.splitlines()[:2]))

    def edit(*_: object) -> None:
        with (examples / "fsdp/train.py").open("a") as script:
            script.write("\n")

    lines = validate(table, examples, tmp_path / "out.csv", traces=tmp_path / "traces", recording=edit)
    assert lines["verdict"].tolist() == ["NOT RUN"]
    assert "fsdp/train.py has changed since it was recorded: run again" in lines["reason"][0]
