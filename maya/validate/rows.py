"""Measured iterations as a table has them: one configuration and its time a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from maya.errors import MayaError

NUMBERS = (
    "gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "seq", "vocab", "tp", "pp", "dp", "cp", "ep",
    "vp", "mbs", "gbs", "ffn", "iter_time_s",
)  # fmt: skip
TEXTS = (
    "id", "gpu", "framework", "model", "precision", "recompute", "seq_parallel", "dist_opt", "sharding",
    "comm_overlap", "attention", "notes", "source_path",
)  # fmt: skip
NEEDED = ("id", "gpu", "gpus", "framework", "layers", "hidden", "heads", "seq", "mbs", "gbs", "iter_time_s")


class RowError(MayaError):
    """The file is no table of measured iterations."""


@dataclass(frozen=True)
class Row:
    """One measured iteration. Numbers that the source does not state are None, texts are empty."""

    source: str  # the id without its number
    measured_s: float
    values: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.values["id"])

    def text(self, name: str) -> str:
        return str(self.values[name])

    def number(self, name: str, default: int | None = None) -> int:
        """Raises KeyError with the column's name when the source does not state it."""
        value = self.values[name]
        if value is not None:
            return int(value)
        if default is None:
            raise KeyError(name)
        return default

    @property
    def date(self) -> str:
        """Month and day of the measurement, as "02-25"; empty when the notes do not state it."""
        stated = re.search(r"\bdate (\d\d-\d\d)\b", self.text("notes"))
        return stated.group(1) if stated else ""

    def stated(self, name: str) -> bool:
        return self.values[name] not in (None, "")


def read_rows(path: Path) -> list[Row]:
    """Raises RowError when the file or a column that every row needs is missing."""
    if not path.is_file():
        raise RowError(f"{path}: no such file")
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise RowError(f"{path}: not a CSV table: {error}") from error
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        raise RowError(f"{path}: columns are missing: {', '.join(missing)}")
    return [_row(path, at, record) for at, record in enumerate(table.to_dict("records"), start=2)]


def _row(path: Path, line: int, record: dict[Any, str]) -> Row:
    values: dict[str, Any] = {name: record.get(name, "") for name in TEXTS}
    for name in NUMBERS:
        values[name] = _number(record.get(name, ""))
    if not values["iter_time_s"] or values["iter_time_s"] <= 0:
        raise RowError(f"{path}:{line}: iter_time_s is {record.get('iter_time_s')!r}, not a positive time")
    return Row(values["id"].rpartition("-")[0] or values["id"], values["iter_time_s"], values)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # not stated, or a formula: the mapping decides whether it can do without
