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
    """The prediction's fields by name: the documented ones in the documented order, then those that explain."""
    content = asdict(prediction)
    memory = content["peak_memory_bytes"]
    by_class = {str(name): count for name, count in memory.get("by_class", {}).items()}
    content["peak_memory_bytes"] = {**memory, "by_class": by_class}
    return {name: content.pop(name) for name in schema()["required"]} | content


def write_json(prediction: Prediction, path: Path) -> None:
    """Raises ValueError for a figure that is not finite: it would not be JSON."""
    path.write_text(json.dumps(as_json(prediction), indent=2, allow_nan=False) + "\n", encoding="utf-8")


@cache
def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what `write_json` writes."""
    text = files("maya.report").joinpath("prediction.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]
