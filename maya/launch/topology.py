"""The process groups of a world, and the coordinates that they give each rank.

Groups that differ only by where they begin form a *family*: all tensor-parallel groups, all pipelines. A family that
covers the world tells ranks apart by their place in its groups; the fewest families that tell all ranks apart are the
world's *axes*. What they mean to the script does not matter.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from maya.errors import MayaError
from maya.launch.layout import rank_path

ABSENT = -1


@dataclass(frozen=True)
class Family:
    """Like groups of a world. `group_of` and `position` are [world], ABSENT for ranks that are in none."""

    id: int
    groups: NDArray[np.int32]  # [groups, size]: global ranks
    group_of: NDArray[np.int32]
    position: NDArray[np.int32]

    @property
    def size(self) -> int:
        return int(self.groups.shape[1])

    @property
    def covers_the_world(self) -> bool:
        return bool((self.position >= 0).all())

    def group(self, rank: int) -> NDArray[np.int32] | None:
        """[size] The group of the family that `rank` is in."""
        number = int(self.group_of[rank])
        return None if number < 0 else self.groups[number]


@dataclass(frozen=True)
class Axis:
    """One coordinate of every rank: `position` [world], from 0 to `size` - 1. `families` have this coordinate."""

    size: int
    position: NDArray[np.int32]
    families: frozenset[int]


@dataclass(frozen=True)
class Topology:
    world: int
    families: dict[int, Family]

    def axes(self) -> list[Axis]:
        """The fewest coordinates that tell all ranks apart, the smallest families first."""
        chosen = self._independent()
        axes = [Axis(family.size, family.position, self._with_position(family.position)) for family in chosen]
        rest = _ordinal([axis.position for axis in axes], self.world)
        if rest.max() > 0:
            axes.append(Axis(int(rest.max()) + 1, rest, self._with_position(rest)))
        return axes

    def peer(self, rank: int, family: int, place: int) -> int | None:
        """Who is at that place of the group of the family that `rank` is in."""
        group = self.families[family].group(rank) if family in self.families else None
        return None if group is None else int(group[place])

    def _independent(self) -> list[Family]:
        families = [f for f in self.families.values() if f.covers_the_world and 1 < f.size < self.world]
        families.sort(key=lambda family: family.size)
        for family in families[::-1]:  # the largest are those that others make up: data x tensor, and so on
            others = [other for other in families if other is not family]
            if _distinct(others, self.world) == _distinct(families, self.world):
                families = others
        return families

    def _with_position(self, position: NDArray[np.int32]) -> frozenset[int]:
        return frozenset(f.id for f in self.families.values() if np.array_equal(f.position, position))


class FamilyNumbers:
    """Numbers the families of a world's groups in the order in which they are made.

    A group is of the first family of its pattern that has none of its ranks yet. So all members, who hear of the same
    groups, number it alike, also where groups overlap: of a chain's pairs each second one is of the same family.
    """

    def __init__(self) -> None:
        self._ranks: dict[bytes, list[set[int]]] = {}  # of each family of a pattern

    def add(self, ranks: Sequence[int]) -> int:
        """The family of a group of these ranks that was made after all those that were added before."""
        own = np.asarray(ranks, "<i4")
        pattern = (own - own[0]).tobytes()  # what groups that differ only by where they begin have in common
        families = self._ranks.setdefault(pattern, [])
        place = next((n for n, taken in enumerate(families) if taken.isdisjoint(ranks)), len(families))
        if place == len(families):
            families.append(set())
        families[place].update(ranks)
        return zlib.crc32(pattern, place)


def groups_path(directory: Path, rank: int = 0) -> Path:
    """Where rank 0 of a run in `directory` writes down the groups of the world, and every rank of one whose others may
    be absent the first that it makes."""
    return rank_path(directory, rank).with_suffix(".groups")


def read_topology(path: Path, world: int) -> Topology:
    """The groups that one rank wrote down (absent.py). Raises MayaError when they are not groups of that world."""
    numbers = FamilyNumbers()
    members: dict[int, list[NDArray[np.int32]]] = {}
    for ranks in _read_groups(path):
        if len(ranks) == 0 or ranks.min() < 0 or ranks.max() >= world:
            raise MayaError(f"{path}: a group of ranks {ranks.tolist()} in a world of {world}")
        members.setdefault(numbers.add(ranks.tolist()), []).append(ranks)
    return Topology(world, {number: _family(number, groups, world) for number, groups in members.items()})


def _read_groups(path: Path) -> Iterator[NDArray[np.int32]]:
    words = np.fromfile(path, "<i4") if path.exists() else np.empty(0, np.int32)
    at = 0
    while at < len(words):
        size = int(words[at])
        if size < 0 or at + 1 + size > len(words):
            raise MayaError(f"{path}: a group of {size} ranks, of which {len(words) - at - 1} are there")
        yield words[at + 1 : at + 1 + size]
        at += 1 + size


def _family(number: int, groups: list[NDArray[np.int32]], world: int) -> Family:
    table = np.stack(groups)
    group_of = np.full(world, ABSENT, np.int32)
    position = np.full(world, ABSENT, np.int32)
    group_of[table] = np.arange(len(table), dtype=np.int32)[:, None]
    position[table] = np.arange(table.shape[1], dtype=np.int32)[None, :]
    return Family(number, table, group_of, position)


def _distinct(families: Sequence[Family], world: int) -> int:
    return int(_tuples([family.position for family in families], world).max()) + 1


def _tuples(columns: Sequence[NDArray[np.int32]], world: int) -> NDArray[np.int64]:
    """[world] Ranks with equal entries in all columns get equal numbers, dense from 0."""
    number = np.zeros(world, np.int64)
    for column in columns:
        number = np.unique(number * (int(column.max()) + 2) + column, return_inverse=True)[1].reshape(-1)
    return number


def _ordinal(columns: Sequence[NDArray[np.int32]], world: int) -> NDArray[np.int32]:
    """[world] How many lower ranks have the same entries in all columns."""
    number = _tuples(columns, world)
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    lengths = np.diff(np.append(starts, world))
    result = np.empty(world, np.int32)
    result[order] = np.arange(world) - np.repeat(starts, lengths)
    return result
