"""The search's report in a real browser, at desktop and phone size, light and dark."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maya.clusters import load
from maya.estimate.likely import LikelyError
from maya.launch.spawned import NOTE
from maya.report.labels import duration, time_unit
from maya.search.objective import Objective
from maya.search.report import report_data, write_report
from maya.search.results import Experiment, start_command, write_results
from maya.simulate.types import Breakdown, Prediction

PLOTS = ("memory-plot", "convergence-plot", "knobs-plot", "pareto-plot")


def synthetic() -> Any:
    """The synthetic search of tests/search, which lies beside this room."""
    path = Path(__file__).parents[1] / "search" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("synthetic_search", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    made = synthetic()

    def judge(assignment: Any) -> Prediction:
        if assignment.trial % 29 == 7:
            return Prediction("FAILED", message="Traceback\nRuntimeError: </script><b>boom</b>")
        prediction = made.analytic(assignment)
        if prediction.iteration_time_s is None:
            return prediction
        quarter = prediction.iteration_time_s / 4
        parts = Breakdown(quarter, quarter, quarter, quarter)
        return dataclasses.replace(
            prediction,
            breakdown_s=parts,
            hardware_flops_utilization=0.4,
            provenance={"learned": 1.0},
            likely_error=LikelyError(median=0.04, p90=0.13, iterations=250, own=True),
        )

    search = made.make_search(tmp_path_factory.mktemp("experiment") / "search", search__max_trials=90)
    made.run_inline(search, judge)
    assert {"FITS", "OOM", "FAILED", "PRUNED"} <= set(search.counts.verdicts)
    return Experiment(search, load("dgx-h100"), "train.py", False, wall_s=1.0, concurrency=1)


@pytest.fixture(scope="module")
def report(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(experiment, tmp_path_factory.mktemp("report") / "report.html")


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_screenshots_for_the_docs(
    open_page: Callable[..., Any], report: Path, tmp_path: Path, width: int, height: int
) -> None:
    """MAYA_SCREENSHOTS=docs/images renews those in the documentation."""
    for scheme in ("light", "dark"):
        browser = open_page(report, width, height, scheme)
        directory = Path(os.environ.get("MAYA_SCREENSHOTS", tmp_path))
        picture = directory / f"search-report-{'phone' if width < 600 else 'desktop'}-{scheme}.png"
        assert browser.save_screenshot(str(picture)) and picture.stat().st_size > 10_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_table_and_plots_are_seen_without_console_errors(
    open_page: Callable[..., Any],
    console_errors: Callable[[], list[str]],
    report: Path,
    experiment: Experiment,
    width: int,
    height: int,
    scheme: str,
) -> None:
    browser = open_page(report, width, height, scheme)
    rows = browser.find_elements("css selector", "#ranking tbody tr")
    assert len(rows) == len(experiment.search.ranking())
    heads = [
        head.get_attribute("textContent") for head in browser.find_elements("css selector", "#ranking th")
    ]
    assert {knob.name for knob in experiment.search.space.knobs} <= set(heads)
    for plot in PLOTS:
        drawn = browser.find_elements("css selector", f"#{plot} svg .scatterlayer .trace")
        assert drawn and drawn[0].is_displayed()
    assert "torchrun" in browser.find_element("id", "command").text
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert console_errors() == []
    requests = [entry["message"] for entry in browser.get_log("performance")]
    sent = [message for message in requests if '"Network.requestWillBeSent"' in message]
    assert not [message for message in sent if '"url":"http' in message]


def test_a_click_sorts_the_table(open_page: Callable[..., Any], report: Path) -> None:
    assert_a_click_sorts(open_page(report))


def test_tables_sort_on_a_page_whose_plots_cannot_be_drawn(
    open_page: Callable[..., Any], report: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(report.read_text().replace('<script>\n"use strict"', "<script>\nPlotly = undefined"))
    assert_a_click_sorts(open_page(broken))


def assert_a_click_sorts(browser: Any) -> None:
    """Click and read back in one script: nothing can come between."""
    head, cells = browser.execute_script("""
        const head = document.querySelectorAll("#ranking th")[5];
        head.querySelector("button").click();
        const cells = document.querySelectorAll("#ranking tbody tr td:nth-child(6)");
        return [head.getAttribute("aria-sort"), [...cells].map(cell => cell.textContent)];
    """)
    shown = [float(cell) for cell in cells]
    assert head == "ascending" and len(set(shown)) > 1 and shown == sorted(shown)


def test_how_sure_it_is_stands_there_in_the_words_of_a_prediction(report: Path) -> None:
    text = report.read_text()
    assert "100.0 % learned from measurements of this device. Likely error: within 4 % for half" in text
    assert "compute with communication 25.0 %" in text


def test_figures_are_shown_in_units_that_people_read(experiment: Experiment) -> None:
    data = report_data(experiment)
    best, last = data["ranking"][0], data["ranking"][-1]
    assert best["figure"] == best["shown"] == duration(best["objective"], 4)
    assert data["axes"]["objective"] == time_unit(last["objective"])
    assert data["objective"]["heading"] == "iteration time"


@pytest.mark.parametrize(
    ("metric", "work", "value", "heading", "figure", "shown"),
    [
        ("iteration_time", "1", 0.00034449, "iteration time", "344.5 µs", "344.5 µs"),
        ("throughput", "tokens", 949_812.3, "throughput (tokens / s)", "949,812", "949,812 tokens / s"),
        ("cost", "tokens", 0.012345, "cost (USD / (tokens))", "0.01235", "0.01235 USD / (tokens)"),
        ("model_flops_utilization", "1", 0.4131, "model flops utilization (of peak)", "41.3 %", "41.3 % of peak"),
    ],
)  # fmt: skip
def test_an_objective_is_shown_with_its_unit(
    metric: str, work: str, value: float, heading: str, figure: str, shown: str
) -> None:
    made = synthetic()
    text = made.SPACE.replace("let: {", "let: {tokens: '1', ")
    space = made.make_space(text, objective__metric=metric, objective__work=work)
    objective = Objective(space, price_per_gpu_hour=2.0)
    assert (objective.heading, objective.figure(value), objective.shown(value)) == (heading, figure, shown)


def test_what_a_script_printed_cannot_become_part_of_the_page(report: Path) -> None:
    text = report.read_text()
    assert "<b>boom</b>" not in text and "&lt;b&gt;boom" in text


def test_files_say_the_same(experiment: Experiment, tmp_path: Path) -> None:
    import json

    import pandas as pd

    write_results(experiment, tmp_path)
    best = json.loads((tmp_path / "best.json").read_text())
    table = pd.read_csv(tmp_path / "trials.csv")
    assert len(table) == len(pd.read_parquet(tmp_path / "trials.parquet")) == len(experiment.search.trials)
    fitting = table[table.verdict == "FITS"]
    assert fitting.iteration_time_s.min() == pytest.approx(best["iteration_time_s"])
    launch = (tmp_path / "launch.sh").read_text()
    assert "--nnodes=4" in launch and '"--node-rank=$NODE_RANK"' in launch
    assert all(word in launch for word in best["command"] if word.startswith("--"))


def test_a_script_that_spawns_its_ranks_is_started_once(experiment: Experiment) -> None:
    best = experiment.search.ranking()[0]
    assert best.outcome is not None
    spawning = dataclasses.replace(best.outcome, prediction={**best.outcome.prediction, "notes": [NOTE]})
    command = start_command(experiment, dataclasses.replace(best, outcome=spawning))
    assert command[:2] == ["python", "train.py"]
    assert command[2:] == start_command(experiment, best)[-len(command[2:]) :]
