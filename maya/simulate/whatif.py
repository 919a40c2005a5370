"""What if: the same trace with other durations, another link, a slow device, without running the script again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from maya.clusters.types import Cluster, Link
from maya.errors import MayaError
from maya.simulate import kinds
from maya.trace.split import single_out
from maya.trace.types import JobTrace

K = TypeVar("K")
V = TypeVar("V")
_HOST: Final = "host"
_LINK: Final = re.compile(r"(?P<number>[0-9.eE+-]+?)\s*(?P<unit>x|[KMGT]?B/s|[KMGT]?b/s)")
_PREFIX: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class WhatIfError(MayaError):
    """A question that cannot be asked of this job or this cluster."""


@dataclass(frozen=True)
class WhatIf:
    """Changes to a job and its cluster; none of them by default.

    `scale` multiplies durations by kind (of kinds.KINDS, kinds.GROUPS, or "host"), `links` replaces
    bandwidths by kind of link, `slow_ranks` multiplies the durations of all that a rank computes and copies.
    """

    scale: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, Callable[[float], float]] = field(default_factory=dict)  # B/s before -> B/s after
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # the questions, for whoever reads the answer

    @staticmethod
    def parse(scale: Iterable[str] = (), links: Iterable[str] = (), slow_ranks: Iterable[str] = ()) -> WhatIf:
        """From `gemm=0.5`, `nvlink=2x` or `nic=100GB/s`, `17=1.2`. Raises WhatIfError."""
        asked = {"--scale": tuple(scale), "--link": tuple(links), "--slow-rank": tuple(slow_ranks)}
        return WhatIf(
            _once("--scale", map(_scale, asked["--scale"])),
            _once("--link", map(_link, asked["--link"])),
            _once("--slow-rank", map(_slow_rank, asked["--slow-rank"])),
            tuple(f"what if: {option} {text}" for option, texts in asked.items() for text in texts),
        )

    def cluster(self, cluster: Cluster) -> Cluster:
        """The cluster with other links and another host."""
        for name, change in self.links.items():
            cluster = _with_link(cluster, name, change)
        return cluster.model_copy(update={"host_speed": cluster.host_speed / self.scale.get(_HOST, 1.0)})

    def without_link(self, name: str) -> WhatIf:
        """All other questions."""
        return replace(self, links={other: change for other, change in self.links.items() if other != name})

    def apart(self, trace: JobTrace) -> JobTrace:
        """The job with slow ranks, and whom they meet, in classes of their own. Raises WhatIfError."""
        beyond = [rank for rank in self.slow_ranks if not 0 <= rank < trace.world]
        if beyond:
            raise WhatIfError(f"--slow-rank {beyond[0]}: the job has ranks 0 to {trace.world - 1}")
        return single_out(trace, self.slow_ranks) if self.slow_ranks else trace

    def slowed(self, trace: JobTrace) -> JobTrace:
        """Of a trace made by `apart`: a slow rank's work gets operations of its own, behind the job's others, for
        `durations` to tell apart.
        """
        for rank in self.slow_ranks:
            trace = _own_operations(trace, rank)
        return trace

    def durations(self, trace: JobTrace, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """[operations] Of a trace made by `slowed`."""
        found = np.array(kinds.kinds_of(trace.operations))
        changed = seconds.copy()
        for name, factor in self.scale.items():
            meant = np.isin(found, kinds.members(name))
            if name != _HOST and not meant.any():
                there = ", ".join(np.unique(found).tolist())
                raise WhatIfError(f"--scale {name}: this job has no such operation, only {there}")
            changed[meant] *= factor
        for rank, factor in self.slow_ranks.items():
            changed[_own_computation(trace, rank)] *= factor
        return changed


def _once(option: str, pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    asked: dict[K, V] = {}
    for name, change in pairs:
        if name in asked:
            raise WhatIfError(f"{option} {name}: is asked twice")
        asked[name] = change
    return asked


def _scale(text: str) -> tuple[str, float]:
    name, factor = _pair("--scale", text, "gemm=0.5")
    if name != _HOST and not kinds.members(name):
        known = ", ".join([_HOST, *kinds.GROUPS, *kinds.KINDS])
        raise WhatIfError(f"--scale {text}: no kind of operation is called '{name}'; there are {known}")
    return name, _positive("--scale", text, factor)


def _slow_rank(text: str) -> tuple[int, float]:
    name, factor = _pair("--slow-rank", text, "17=1.2")
    if not name.isdigit():
        raise WhatIfError(f"--slow-rank {text}: '{name}' is no rank; write it like 17=1.2")
    return int(name), _positive("--slow-rank", text, factor)


def _link(text: str) -> tuple[str, Callable[[float], float]]:
    name, value = _pair("--link", text, "nvlink=2x or nic=100GB/s")
    match = _LINK.fullmatch(value)
    if match is None:
        raise WhatIfError(f"--link {text}: '{value}' is neither a factor (2x) nor a rate (100GB/s, 400Gb/s)")
    number, unit = _positive("--link", text, match["number"]), match["unit"]
    if unit == "x":
        return name, lambda before: before * number
    rate = number * _PREFIX[unit[:-3]] / (8 if unit.endswith("b/s") else 1)
    return name, lambda before: rate


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise WhatIfError(f"{option} {text}: write it like {example}")
    return name.strip(), value.strip()


def _positive(option: str, text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise WhatIfError(f"{option} {text}: '{number}' is no number above zero")
    return value


def _with_link(cluster: Cluster, name: str, change: Callable[[float], float]) -> Cluster:
    """`name` is a link of the node (link, pair_link, nic) or its kind; nvlink means one behind a switch too."""
    node, changed = cluster.node, dict[str, Any]()
    for place in ("link", "pair_link", "nic"):
        link: Link | None = getattr(node, place)
        if link is None:
            continue
        meant = (place, link.kind, *(("nvlink",) if link.kind == "nvswitch" else ()))
        if name in meant:
            changed[place] = link.model_copy(update={"bandwidth": change(link.bandwidth)})
    if "link" in changed:
        changed["collectives"] = {}  # were timed over the link that was
    if not changed:
        kinds_there = [link.kind for link in (node.link, node.pair_link, node.nic) if link is not None]
        raise WhatIfError(
            f"--link {name}: {cluster.name} has {', '.join(kinds_there)} (link, pair_link, nic)"
        )
    return cluster.model_copy(update={"node": node.model_copy(update=changed)})


def _own_operations(trace: JobTrace, rank: int) -> JobTrace:
    number = int(trace.class_of_rank[rank])
    used = _own_computation(trace, rank)
    renamed = np.arange(len(trace.operations) + 1, dtype=np.int32)  # the last stands for none: index -1
    renamed[-1] = -1
    renamed[used] = len(trace.operations) + np.arange(len(used))
    records = trace.ranks[number].records.copy()
    records["operation"] = renamed[records["operation"]]
    ranks = list(trace.ranks)
    ranks[number] = replace(ranks[number], records=records)
    own = tuple(trace.operations[index] for index in used.tolist())
    return replace(trace, ranks=tuple(ranks), operations=trace.operations + own)


def _own_computation(trace: JobTrace, rank: int) -> NDArray[np.int64]:
    """The operations of a rank that no other has a part in."""
    operations = np.unique(trace.ranks[int(trace.class_of_rank[rank])].records["operation"])
    communicates = np.isin(np.array(kinds.kinds_of(trace.operations)), kinds.GROUPS["communication"])
    own = operations[operations >= 0].astype(np.int64)
    return own[~communicates[own]]
