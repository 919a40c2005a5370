"""Rows of the accuracy page come out as it says: an estimate that has changed since then is seen here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
# One of each source that the device, not its host, keeps waiting.
ROWS = Path(__file__).with_name("published.csv")


def test_rows_of_the_page_are_predicted_as_it_says(maya, tmp_path):
    out = tmp_path / "predictions.csv"
    completed = maya(
        "validate", ROWS, "--examples", ROOT / "examples", "--out", out, "--traces", tmp_path / "traces"
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    now = pd.read_csv(out, index_col="id")["predicted_iteration_time_s"]
    said = pd.read_csv(ROOT / "docs/predictions.csv", index_col="id")["predicted_iteration_time_s"]
    assert len(now) == 6 and now.to_dict() == pytest.approx(said[now.index].to_dict(), rel=0.02)
