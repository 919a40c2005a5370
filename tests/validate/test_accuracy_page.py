"""The page says how far off predictions are, of rows that nothing was fitted on, and by provenance."""

import xml.etree.ElementTree as ET

import pandas as pd
import pytest

from maya.validate import write_page
from maya.validate.page import BEGIN, END
from maya.validate.statistics import CONFIGURATION


@pytest.fixture
def predicted():
    work = {"source": "s", "gpu": "g", "model": "m", "layers": 1, "hidden": 1, "seq": 1, "gpus": 8, "gbs": 8}
    row = dict.fromkeys(CONFIGURATION) | work
    row |= {"verdict": "FITS", "reason": "", "measured_iteration_time_s": 1.0}
    return pd.DataFrame(
        [
            {**row, "id": "s-1", "fit": False, "predicted_iteration_time_s": 1.1, "learned": 1.0, "roofline": 0.0},
            {**row, "id": "s-2", "fit": False, "predicted_iteration_time_s": 0.7, "learned": 0.0, "roofline": 1.0},
            {**row, "id": "s-3", "fit": True, "predicted_iteration_time_s": 1.0, "learned": 1.0, "roofline": 0.0},
            {**row, "id": "s-4", "fit": False, "verdict": "UNMAPPED", "reason": "FP8: none\nmore of it"},
        ]
    )  # fmt: skip


def test_reported_rows_stand_apart_from_fitted_ones(predicted, tmp_path):
    write_page(predicted, tmp_path / "accuracy.md")
    text = (tmp_path / "accuracy.md").read_text()
    reported, fitted = text.split("### The fit share")
    assert "| s | 3 | 2 | 20.0% | 20.0% |" in reported
    assert "| s | 1 | 1 | 0.0% |" in fitted
    assert "1 of s, UNMAPPED: FP8: none\n" in reported


def test_a_group_that_the_split_parts_is_judged_whole_too(predicted, tmp_path):
    page = tmp_path / "accuracy.md"
    write_page(predicted, page)
    assert "whole groups" not in page.read_text()  # one configuration, measured again
    predicted["tp"] = [1, 2, 4, 8]
    predicted.loc[1, "measured_iteration_time_s"] = 1.25  # ranked first, 1.25 times the best
    write_page(predicted, page)
    assert "selection is 1.250, over 1 groups" in page.read_text()


def test_an_error_is_charged_to_where_the_time_came_from(predicted, tmp_path):
    write_page(predicted, tmp_path / "accuracy.md")
    text = (tmp_path / "accuracy.md").read_text()
    assert "| learned | 50.0% | 10.0% | 1 |" in text
    assert "| roofline | 50.0% | 30.0% | 1 |" in text


def test_what_is_outside_the_marks_stays(predicted, tmp_path):
    page = tmp_path / "accuracy.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    write_page(predicted, page)
    assert page.read_text().startswith("# Title\n") and page.read_text().endswith(f"{END}\n\nafter\n")
    assert "old" not in page.read_text()


def test_the_picture_is_an_svg_with_a_point_a_row(predicted, tmp_path):
    write_page(predicted, tmp_path / "accuracy.md")
    root = ET.parse(tmp_path / "accuracy.svg").getroot()
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == 2 + 1  # and the legend's
