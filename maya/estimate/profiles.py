"""The profile database: durations of single operations as `maya profile` measured them on a device."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from maya.errors import MayaError
from maya.trace.types import Operation, Operator

VARIABLE = "MAYA_PROFILES"  # names the database that estimates consult first
KEPT = 256  # samples of an operation, the newest

SCHEMA = pa.schema(
    [
        ("device", pa.string()),  # what cudaGetDeviceProperties reports
        ("operation", pa.string()),  # identity()
        ("versions", pa.string()),  # "torch 2.11.0, cuda 13.0, cudnn 9.19, driver 580.65"
        ("seconds", pa.list_(pa.float64())),  # each measurement, oldest first
        ("count", pa.int64()),  # how many there have been, kept or not
        ("median_s", pa.float64()),
        ("spread_s", pa.float64()),  # median absolute deviation from the median
    ]
)


class ProfileError(MayaError):
    """A profile database that cannot be read or written."""


@dataclass(frozen=True)
class Entry:
    """One operation on one device under one set of libraries."""

    seconds: tuple[float, ...]
    count: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The median absolute deviation."""
        return statistics.median(abs(second - self.median) for second in self.seconds)

    def with_samples(self, samples: Sequence[float]) -> Entry:
        return Entry((*self.seconds, *samples)[-KEPT:], self.count + len(samples))


Key = tuple[str, str, str]  # device, operation, versions


def identity(operation: Operation) -> str:
    """What decides an operation's duration, as text. Matrix products, convolutions and factorisations are the same in
    whatever operator they are called; what a kernel's instructions do goes with its name and its launch."""
    fields: dict[str, Any] = {"kind": type(operation).__name__.lower(), **asdict(operation)}
    if fields["kind"] in ("gemm", "convolution", "lapack"):
        del fields["operator"]
    fields.pop("work", None)
    if not fields.get("multiprocessors"):
        fields.pop("multiprocessors", None)
    return json.dumps(fields, sort_keys=True)


KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Operation)}


def operation_of(text: str) -> Operation:
    """The operation that has this identity, without the operator that those of libraries leave out."""
    fields = json.loads(text)
    operator = fields.pop("operator", {"name": "", "sizes": []})
    kind = KINDS[fields.pop("kind")]
    for name, value in fields.items():
        fields[name] = tuple(value) if isinstance(value, list) else value
    if "operator" in kind.__dataclass_fields__:
        fields["operator"] = Operator(operator["name"], tuple(tuple(size) for size in operator["sizes"]))
    operation: Operation = kind(**fields)
    return operation


class Profiles:
    """The entries of a database, in the order in which they were last measured."""

    def __init__(self, entries: Mapping[Key, Entry] | None = None) -> None:
        self.entries: dict[Key, Entry] = dict(entries or {})

    @classmethod
    def read(cls, path: Path) -> Profiles:
        """Raises ProfileError when there is no database at `path` that this version reads."""
        try:
            rows = parquet.read_table(path, schema=SCHEMA).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise ProfileError(f"{path}: not a profile database: {error}") from error
        return cls(
            {
                (row["device"], row["operation"], row["versions"]): Entry(tuple(row["seconds"]), row["count"])
                for row in rows
            }
        )

    @classmethod
    def from_environment(cls) -> Profiles:
        """The database that MAYA_PROFILES names; empty when it is not set."""
        path = os.environ.get(VARIABLE)
        return cls.read(Path(path)) if path else cls()

    def write(self, path: Path) -> None:
        """Replaces the database at `path` whole: a reader sees the old one or the new one."""
        rows = [
            {
                "device": device, "operation": operation, "versions": versions,
                "seconds": list(entry.seconds), "count": entry.count,
                "median_s": entry.median, "spread_s": entry.spread,
            }
            for (device, operation, versions), entry in self.entries.items()
        ]  # fmt: skip
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), partial)
            partial.replace(path)
        except OSError as error:
            raise ProfileError(f"{path}: cannot be written: {error}") from error

    def add(self, device: str, versions: str, samples: Mapping[Operation, Sequence[float]]) -> None:
        """Adds measurements, in seconds, to those there are; what was measured last comes last."""
        for operation, seconds in samples.items():
            key = (device, identity(operation), versions)
            entry = self.entries.pop(key, Entry((), 0))
            self.entries[key] = entry.with_samples(seconds)

    def on(self, device: str) -> dict[str, float]:
        """Median seconds by identity on that device; of several sets of libraries, the one measured last."""
        return {
            operation: entry.median
            for (where, operation, _), entry in self.entries.items()
            if where == device
        }
