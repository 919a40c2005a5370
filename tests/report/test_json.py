import json
from dataclasses import replace

import jsonschema
import pytest

from maya.report import schema, write_json
from maya.simulate.types import Prediction

DOCUMENTED = [
    *("verdict", "iteration_time_s", "iterations_s", "breakdown_s", "peak_memory_bytes"),
    *("hardware_flops_utilization", "ranks", "provenance", "unsupported", "stages_s", "version", "command"),
]


def written(prediction, tmp_path):
    write_json(prediction, tmp_path / "o.json")
    return json.loads((tmp_path / "o.json").read_text())


def test_documented_keys_come_in_the_documented_order(sample, tmp_path):
    assert list(written(sample.prediction, tmp_path))[: len(DOCUMENTED)] == DOCUMENTED


def test_written_json_follows_the_schema(sample, tmp_path):
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(written(sample.prediction, tmp_path), schema())


@pytest.mark.parametrize("verdict", ["OOM", "FAILED", "INCOMPLETE"])
def test_a_verdict_without_figures_follows_the_schema(verdict, tmp_path):
    content = written(Prediction(verdict=verdict, message="why", shortfall_bytes=5), tmp_path)
    jsonschema.validate(content, schema())
    assert content["iteration_time_s"] is None and content["message"] == "why"


def test_schema_refuses_an_unknown_key(sample, tmp_path):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written(sample.prediction, tmp_path), "surprise": 1}, schema())


def test_class_numbers_become_strings(sample, tmp_path):
    numbered = replace(sample.prediction, peak_memory_bytes={"max": 5, "by_class": {0: 5, 1: 4}})
    assert written(numbered, tmp_path)["peak_memory_bytes"] == {"max": 5, "by_class": {"0": 5, "1": 4}}


def test_a_figure_that_is_not_finite_is_refused(sample, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(replace(sample.prediction, iteration_time_s=float("nan")), tmp_path / "o.json")
