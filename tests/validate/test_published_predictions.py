"""What docs/accuracy.md says of each source is what the predictions beside it come to."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from maya.validate import is_fit

DOCS = Path(__file__).parents[2] / "docs"
LINE = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) \| ([\d.]+)% \| ([\d.]+)% \|", re.MULTILINE)


def test_the_page_says_what_its_predictions_come_to():
    lines = pd.read_csv(DOCS / "predictions.csv")
    lines = lines[~lines["id"].map(is_fit)].dropna(subset=["error"])
    lines["off"] = (lines["predicted_iteration_time_s"] / lines["measured_iteration_time_s"] - 1).abs()
    lines["source"] = lines["id"].str.rpartition("-")[0]
    page = (DOCS / "accuracy.md").read_text(encoding="utf-8")
    reported = page.partition("### Rows that nothing was fitted on")[2].partition("###")[0]
    said = [match.groups() for match in LINE.finditer(reported)]
    assert {source for source, *_ in said} == {*lines["source"], "all"}
    for source, _, predicted, mean, median in said:
        errors = lines["off"][(lines["source"] == source) | (source == "all")]
        assert len(errors) == int(predicted)
        assert f"{errors.mean():.1%}" == f"{mean}%"
        assert f"{errors.median():.1%}" == f"{median}%"
