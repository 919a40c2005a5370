"""What an axis of a world is to the script, so that it is known again in another job, whatever its size there.

Scripts make their groups in one order. An axis is told by which of them have its coordinate, and by what the first
rank does on these: tensor ranks that sum are others than those that gather and scatter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from maya.launch.topology import Axis, Topology


@dataclass(frozen=True)
class Role:
    families: tuple[int, ...]  # with the axis' coordinate: ordinals among those that the script makes
    made: int  # families that the script makes
    collectives: frozenset[str]  # of the first rank on those with the axis' coordinate


def role_of(axis: Axis, topology: Topology, used: Iterable[tuple[int, str]]) -> Role:
    """`used`: families and collectives of the first rank."""
    families = tuple(at for at, family in enumerate(topology.families) if family in axis.families)
    there = frozenset(collective for family, collective in used if family in axis.families)
    return Role(families, len(topology.families), there)
