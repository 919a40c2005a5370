"""A prediction as JSON: the documented interface of `maya predict --json`, checked by its schema."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from maya.simulate.types import Prediction


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The prediction's fields by their documented names, in the documented order."""
    content = asdict(prediction)
    trailing = {key: content.pop(key) for key in ("message", "shortfall_bytes", "notes")}
    by_class = content["peak_memory_bytes"].get("by_class", {})
    content["peak_memory_bytes"] = {
        **content["peak_memory_bytes"],
        "by_class": {str(name): value for name, value in by_class.items()},
    }
    return {**content, **trailing}


def write_json(prediction: Prediction, path: Path) -> None:
    """Raises ValueError for a figure that is not finite: it would not be JSON."""
    path.write_text(json.dumps(as_json(prediction), indent=2, allow_nan=False) + "\n", encoding="utf-8")


@cache
def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what `write_json` writes."""
    text = files("maya.report").joinpath("prediction.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]
