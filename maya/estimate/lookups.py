"""The lookups file: how often a batch looks the same row of an embedding table up, told table by table.

- table: [10000000, 128]           # rows, width
  reuse: [0.55, 0.25, 0.15, 0.05]  # share of lookups to rows that a batch looks up once, 2-3, 4-7, 8-15 times
- table: [4000000, 128]
  indices: day_0_table_1.npy       # one batch's indices, of any shape: the histogram is counted from them
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from maya.errors import MayaError
from maya.estimate.embedding import UNIFORM, Histogram, Reuse
from maya.yaml_fault import yaml_fault


class LookupsError(MayaError):
    """A lookups file that cannot be used. The message names the file, the entry and what is allowed."""


_Count = Annotated[int, Field(gt=0)]
_ROUNDED = 0.01  # what shares that are written with two decimals may add up to more or less than 1
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    table: tuple[_Count, _Count]
    reuse: list[_Share] | None = Field(default=None, min_length=1, max_length=63)
    indices: str | None = None


_FILE = TypeAdapter(Annotated[list[_Table], Field(min_length=1)])


def read_lookups(path: Path | None) -> Reuse:
    """(rows, width) of each table -> its histogram; without a file nothing is told. Raises LookupsError."""
    if path is None:
        return UNIFORM
    try:
        tables = _FILE.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise LookupsError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LookupsError(f"{path}{yaml_fault(error)}") from error
    except ValidationError as error:
        raise LookupsError(f"{path}: {_first(error)}") from error
    told: dict[tuple[int, int], Histogram] = {}
    for number, table in enumerate(tables):
        if table.table in told:
            raise LookupsError(f"{path}: entry {number}: table {list(table.table)} is there twice")
        try:
            told[table.table] = _histogram(table, path.parent)
        except (OSError, ValueError, MemoryError) as error:
            raise LookupsError(f"{path}: entry {number}: {' '.join(str(error).split())}") from error
    return told


def reuse_histogram(indices: ArrayLike) -> Histogram:
    """Share of lookups by reuse factor of one batch's `indices`, integers of any shape; see `embedding.Histogram`."""
    _, times = np.unique(np.asarray(indices), return_counts=True)
    lookups = np.bincount(np.frexp(times)[1] - 1, weights=times)  # 2^i <= times < 2^(i + 1)
    return tuple((lookups / lookups.sum()).tolist())


def _histogram(table: _Table, beside: Path) -> Histogram:
    """Raises OSError and ValueError for what is wrong with the entry, MemoryError for a damaged array."""
    if (table.reuse is None) == (table.indices is None):
        raise ValueError("needs either reuse (a histogram) or indices (a .npy file)")
    if table.reuse is not None:
        total = sum(table.reuse)
        if abs(total - 1) > _ROUNDED:
            raise ValueError(
                f"reuse: the shares add up to {total:.4g}; divide each by that, so that they are 1 in all"
            )
        return tuple(table.reuse)
    with (beside / str(table.indices)).open("rb") as file:
        indices = np.lib.format.read_array(file, allow_pickle=False)
    if not np.issubdtype(indices.dtype, np.integer) or not indices.size:
        raise ValueError(f"indices: {table.indices} holds no array of integers")
    rows = table.table[0]
    if indices.min() < 0 or indices.max() >= rows:
        raise ValueError(f"indices: {indices.min()} to {indices.max()}, of a table of {rows} rows")
    return reuse_histogram(indices)


def _first(error: ValidationError) -> str:
    first: Any = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    said = "unknown key; allowed: " + ", ".join(_Table.model_fields)
    said = said if first["type"] == "extra_forbidden" else first["msg"].lower()
    return f"entry {where}: {said}" if where else said
