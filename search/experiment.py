"""What a search is about, as its journal's header keeps it, and whether a resumed one is still about that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maya import __version__
from maya.clusters import load as load_cluster
from maya.clusters.types import Cluster
from maya.errors import MayaError
from maya.estimate import Reuse, read_lookups
from maya.report.labels import counted
from maya.search.algorithms.grid import require_walkable
from maya.search.expression import Value
from maya.search.objective import Objective
from maya.search.space import Space, parse_space

_FORMAT = 1
_MAY_CHANGE = ("search.max_trials", "stop.")  # how long to search; what is known stays true


@dataclass(frozen=True)
class Plan:
    """A script, the space it is searched in and the cluster it is predicted on."""

    space_text: str
    space_source: str
    overrides: Mapping[str, Any]
    cluster: Cluster
    script: str
    module: bool
    script_digest: str  # SHA-256 of the script's file; empty for a module
    # Of each embedding table that the lookups file tells of: rows, width, histogram.
    lookups: tuple[tuple[int, int, tuple[float, ...]], ...] = ()
    warm_start: tuple[dict[str, Value], ...] = ()  # configurations to begin with, from an earlier search
    directory: str = ""  # that the script runs in
    timeout_s: float = 600.0  # that a trial may take
    cache: bool = True  # whether trials use what was recorded before

    def space(self) -> Space:
        """Raises SpaceError."""
        return parse_space(self.space_text, self.space_source, self.overrides)

    def reuse(self) -> Reuse:
        return {(rows, width): tuple(histogram) for rows, width, histogram in self.lookups}

    def header(self) -> dict[str, Any]:
        content = asdict(self)
        content["cluster"] = self.cluster.model_dump(mode="json")
        return {"format": _FORMAT, "version": __version__, **content}

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> Plan:
        if header.get("format") != _FORMAT:
            raise MayaError(f"the journal's format is {header.get('format')}, this Maya's is {_FORMAT}")
        fields = {name: header[name] for name in cls.__dataclass_fields__ if name in header}
        return cls(**{**fields, "cluster": Cluster.model_validate(header["cluster"])})


def make_plan(text: str, source: str, overrides: Mapping[str, Any], script: str, module: bool) -> Plan:
    """Raises MayaError for a space that cannot be searched, an unknown cluster, bad lookups, a missing script."""
    space = parse_space(text, source, overrides)
    if space.file.search.algorithm == "grid":
        require_walkable(space)
    name = space.file.cluster
    if name is None:
        raise MayaError(f"{source}: cluster: is missing; give it here or with --cluster")
    beside = Path(source).parent / name  # a space may name a cluster file that lies beside it
    cluster = load_cluster(str(beside) if "cluster" not in overrides and beside.is_file() else name)
    Objective(space, cluster.price_per_gpu_hour)  # raises for a cost without a price
    _require_whole_nodes(space, cluster.node.gpus)
    told = read_lookups(Path(source).parent / space.file.lookups if space.file.lookups else None)
    lookups = tuple((rows, width, histogram) for (rows, width), histogram in sorted(told.items()))
    digest = _digest(script, module)
    return Plan(text, source, overrides, cluster, script, module, digest, lookups, directory=str(Path.cwd()))


def _require_whole_nodes(space: Space, gpus: int) -> None:
    """`torchrun` starts as many ranks on each node."""
    knob = space.file.knobs.get("gpus")
    key = "knobs.gpus.values" if knob else "gpus"
    worlds: list[int] = list(knob.values) if knob else [space.file.gpus or 0]
    for world in worlds:
        if world > gpus and world % gpus:
            less = world - world % gpus
            parts = f"{counted(world // gpus, 'node')} of {gpus} + {world % gpus}"
            raise space.fail(key, f"{world} = {parts}; {less} and {less + gpus} are whole")


def _digest(script: str, module: bool) -> str:
    if module:
        return ""
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError:
        raise MayaError(f"{script}: no such script (started in {Path.cwd()})") from None


def changes(before: Plan, now: Plan) -> list[str]:
    """What differs and may not, one line each: `knobs.tp.values: [1, 2] -> [1, 2, 4]`."""
    old, new = _facts(before), _facts(now)
    return [
        f"{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith(_MAY_CHANGE)
    ]


def _facts(plan: Plan) -> dict[str, str]:
    facts = _flatten(plan.space().file.model_dump(), "")
    facts |= _flatten(plan.cluster.model_dump(exclude={"sources"}), "cluster.")
    facts |= {f"lookups.{rows}x{width}": repr(list(of)) for rows, width, of in plan.lookups}
    facts["script"] = f"{'-m ' if plan.module else ''}{plan.script}"
    facts["script's content"] = plan.script_digest[:12]
    return facts


def _flatten(content: Mapping[str, Any], prefix: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            facts |= _flatten(value, f"{prefix}{key}.")
        else:
            facts[f"{prefix}{key}"] = repr(value)
    # What a point means hangs on the order of knobs and of their values.
    if prefix.count(".") == 1 or prefix.endswith(".values."):
        facts[f"{prefix}order"] = repr(list(content))
    return facts
