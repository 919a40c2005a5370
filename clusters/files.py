"""Reading cluster files: a shipped name or a path, one clear line for whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from maya.clusters.types import Cluster, Device, Link, Node
from maya.errors import MayaError
from maya.yaml_fault import yaml_fault

SHIPPED = Path(__file__).parent
_KEPT = "cluster.json"


class ClusterError(MayaError, ValueError):
    """A cluster that cannot be used. The message names the file, the key and what is allowed."""


def names() -> tuple[str, ...]:
    """The clusters that ship with Maya."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def load(name_or_path: str | Path) -> Cluster:
    """The cluster of that shipped name, or of the YAML file at that path.

    A file that says `extends: NAME` gives only what differs from that cluster, key by key.
    Raises ClusterError when there is no such cluster or the file does not describe one.
    """
    path = _find(name_or_path)
    try:
        return Cluster.model_validate(_read(path, ()))
    except ValidationError as error:
        raise ClusterError(_one_line(path, error)) from error


def keep(cluster: Cluster, directory: Path) -> None:
    """Writes it down beside what is recorded on it."""
    (directory / _KEPT).write_text(cluster.model_dump_json(indent=1), encoding="utf-8")


def kept(directory: Path) -> Cluster:
    """The cluster that `keep` left there. Raises ClusterError."""
    path = directory / _KEPT
    try:
        return Cluster.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ClusterError(
            f"{path}: not there, so which cluster was it recorded on? Give --cluster"
        ) from None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ClusterError(f"{path}: damaged: {' '.join(str(error).split())}; give --cluster") from None


def _find(name_or_path: str | Path) -> Path:
    if str(name_or_path) in names():
        return SHIPPED / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if not path.is_file():
        raise ClusterError(f"no cluster '{name_or_path}': give a YAML file or one of {', '.join(names())}")
    return path


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ClusterError(f"{path}: extends: a cluster cannot extend itself")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}{yaml_fault(error)}") from error
    if not isinstance(content, dict):
        raise ClusterError(f"{path}: a mapping with the keys {_allowed(Cluster)} is needed")
    base = content.pop("extends", None)
    numbered: dict[str, Any] = _floats(content)
    if base is None:
        return numbered
    return _merge(_read(_base(path, base), (*seen, path.resolve())), numbered)


def _base(path: Path, base: object) -> Path:
    beside = path.parent / str(base)
    if str(base) not in names() and beside.is_file():
        return beside
    try:
        return _find(str(base))
    except ClusterError as error:
        raise ClusterError(f"{path}: extends: {error}") from error


def _floats(value: Any) -> Any:
    """YAML 1.1 reads `1e9` (no dot, no sign) as a string; people mean a number."""
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    if isinstance(value, str) and value[:1].isdigit():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _one_line(path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "(file)"
    known = {"missing": "is needed", "extra_forbidden": f"unknown key; allowed: {_allowed_at(first['loc'])}"}
    if first["type"] == "value_error":  # Maya's own words, which say what was there
        said = first["msg"].removeprefix("Value error, ")
    else:
        said = known.get(first["type"]) or f"{first['msg'].lower()}, got {first['input']!r}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{path}: {key}: {said}{more}"


_MODELS: dict[str, type[BaseModel]] = {
    "device": Device,
    "node": Node,
    "link": Link,
    "pair_link": Link,
    "nic": Link,
}


def _allowed_at(location: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = Cluster
    for part in location[:-1]:
        model = _MODELS.get(str(part), model)
    return _allowed(model)


def _allowed(model: type[BaseModel]) -> str:
    return ", ".join((*(("extends",) if model is Cluster else ()), *model.model_fields))
