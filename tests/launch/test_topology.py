"""Coordinates of ranks from the groups that a job makes, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.errors import MayaError
from maya.launch.topology import FamilyNumbers, Topology, read_topology

SHAPES = st.lists(st.integers(2, 5), min_size=1, max_size=3)


def groups_of(shape: list[int], kept: Iterable[int]) -> list[list[int]]:
    """Groups of the ranks that differ only in the kept coordinates of a mesh of that shape."""
    mesh = np.arange(np.prod(shape)).reshape(shape)
    kept = list(kept)
    size = int(np.prod([shape[axis] for axis in kept]))
    return np.moveaxis(mesh, kept, range(-len(kept), 0)).reshape(-1, size).tolist()


def topology(path: Path, world: int, groups: Iterable[list[int]]) -> Topology:
    words = [word for group in groups for word in (len(group), *group)]
    np.array(words, "<i4").tofile(path)
    return read_topology(path, world)


@given(SHAPES, st.randoms(use_true_random=False))
def test_a_mesh_yields_its_coordinates_in_whatever_order_its_groups_are_made(tmp_path_factory, shape, random):
    dimensions = range(len(shape))
    subsets = [kept for n in range(1, len(shape) + 1) for kept in itertools.combinations(dimensions, n)]
    random.shuffle(subsets)
    groups = [group for kept in subsets for group in groups_of(shape, kept)]
    world = int(np.prod(shape))
    axes = topology(tmp_path_factory.mktemp("groups") / "log", world, groups).axes()
    assert sorted(axis.size for axis in axes) == sorted(shape)
    assert len(set(zip(*(axis.position.tolist() for axis in axes), strict=True))) == world


def test_what_groups_leave_open_is_an_axis_of_its_own(tmp_path: Path):
    axes = topology(tmp_path / "log", 8, [[0, 1], [2, 3], [4, 5], [6, 7]]).axes()
    assert [axis.size for axis in axes] == [2, 4]
    assert axes[1].position.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_world_without_groups_has_one_axis(tmp_path: Path):
    axes = topology(tmp_path / "log", 6, [list(range(6))]).axes()
    assert [axis.position.tolist() for axis in axes] == [[0, 1, 2, 3, 4, 5]]


def test_groups_of_some_ranks_give_no_coordinate(tmp_path: Path):
    first_and_last = [[0, 6], [1, 7]]
    axes = topology(tmp_path / "log", 8, [*groups_of([4, 2], [0]), *first_and_last]).axes()
    assert sorted(axis.size for axis in axes) == [2, 4]


def test_equal_groups_made_twice_are_two_families(tmp_path: Path):
    found = topology(tmp_path / "log", 4, [[0, 1], [0, 1], [2, 3], [2, 3]])
    assert len(found.families) == 2
    assert all(family.covers_the_world for family in found.families.values())


def test_pairs_of_a_chain_are_families_that_all_members_number_alike(tmp_path: Path):
    pairs = [[rank, rank + 2] for rank in range(6)]
    families = topology(tmp_path / "log", 8, pairs).families.values()
    assert sorted(family.groups.tolist() for family in families) == [pairs[:2] + pairs[4:], pairs[2:4]]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), max_size=20))
def test_no_rank_is_in_two_groups_of_a_family(groups: list[list[int]]):
    numbers = FamilyNumbers()
    members: dict[int, list[int]] = {}
    for group in groups:
        members.setdefault(numbers.add(group), []).extend(group)
    assert all(len(ranks) == len(set(ranks)) for ranks in members.values())


def test_a_damaged_log_is_refused(tmp_path: Path):
    np.array([5, 0, 1], "<i4").tofile(tmp_path / "log")
    with pytest.raises(MayaError, match="a group of 5 ranks, of which 2 are there"):
        read_topology(tmp_path / "log", 8)
    np.array([2, 0, 8], "<i4").tofile(tmp_path / "log")
    with pytest.raises(MayaError, match="in a world of 8"):
        read_topology(tmp_path / "log", 8)
