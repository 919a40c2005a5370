"""A few ranks stand for a world: classes found by starting some, without knowing what the axes mean."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.launch.observed import Observed
from maya.launch.representatives import CHECKS, MANY, Representatives
from maya.launch.roles import Role
from maya.launch.topology import Topology, read_topology

Work = Callable[[int, int, int], object]  # of a rank at (data, pipeline, tensor) coordinates


class World:
    """Data x pipeline x tensor parallel ranks, tensor innermost; `work` says which ranks do the same."""

    def __init__(
        self, path: Path, shape: tuple[int, int, int], work: Work, *, talks_in_world: bool = False
    ) -> None:
        self.shape, self.work, self.path, self.talks_in_world = shape, work, path, talks_in_world
        self.size = int(np.prod(shape))
        mesh = np.arange(self.size).reshape(shape)
        groups = [group for axis in range(3) for group in np.moveaxis(mesh, axis, 2).reshape(-1, shape[axis])]
        groups += [mesh.reshape(-1)] if talks_in_world else []
        np.array([word for group in groups for word in (len(group), *group)], "<i4").tofile(path)
        self.place = np.stack(np.unravel_index(np.arange(self.size), shape), 1)

    def topology(self) -> Topology:
        return read_topology(self.path, self.size)

    def run(
        self,
        calls: Callable[..., int] = lambda *place: 1000,
        *,
        trusting: bool = False,
        alike: Set[Role] = frozenset(),
        blocks: Callable[..., tuple[int, ...]] = lambda *place: (),
    ) -> Representatives:
        plan = Representatives(self.size, self.topology, trusting=trusting, alike=alike)
        used = self.used()
        for batch in plan.batches():
            assert batch and not set(batch) & set(plan.seen)
            for rank in batch:
                place = self.place[rank].tolist()
                plan.seen[rank] = Observed(
                    hash(repr(self.work(*place))), calls(*place), self.transfers(rank), used,
                    partial(blocks, *place), partial(dict, {0: 980, calls(*place): calls(*place) - 980}),
                )  # fmt: skip
        return plan

    def used(self) -> frozenset[tuple[int, str]]:
        return frozenset((family, "all_reduce") for family in self.topology().families)

    def transfers(self, rank: int) -> frozenset[tuple[int, int]]:
        """Stages send to the ones beside them, in their pipeline's group or, with `talks_in_world`, in the world's."""
        if self.shape[1] == 1:
            return frozenset()
        first = [*range(self.size)] if self.talks_in_world else [0, self.shape[2]]
        families = self.topology().families.values()
        family = next(f for f in families if f.groups[0][: len(first)].tolist() == first)
        own, stage = family.group(rank), int(self.place[rank][1])
        assert own is not None
        beside = (rank + step * self.shape[2] for step in (-1, 1) if 0 <= stage + step < self.shape[1])
        return frozenset((family.id, own.tolist().index(peer)) for peer in beside)


def inferred_rightly(world: World, plan: Representatives) -> bool:
    stands = plan.representative_of()
    return all(world.work(*world.place[r]) == world.work(*world.place[s]) for r, s in enumerate(stands))


def test_equal_ranks_are_one_class_of_a_few_started(tmp_path: Path):
    world = World(tmp_path / "log", (64, 1, 1), lambda data, stage, tensor: 0)
    plan = world.run()
    assert set(plan.representative_of()) == {0}
    assert len(plan.seen) == 3 + CHECKS


def test_every_stage_of_a_pipeline_is_a_class(tmp_path: Path):
    world = World(tmp_path / "log", (256, 6, 8), lambda data, stage, tensor: (stage, tensor == 0))
    plan = world.run()
    assert inferred_rightly(world, plan)
    assert len(set(plan.representative_of())) == 12
    assert len(plan.seen) <= 20


@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4)).filter(lambda s: np.prod(s) > 1),
    changes=st.tuples(*(st.sets(st.integers(1, 5), max_size=2) for _ in range(3))),
)
def test_whatever_changes_along_short_axes_is_found_where_checks_can_see_it(tmp_path_factory, shape, changes):
    """Work that changes at some positions of each axis: every rank is either inferred rightly or unlike no check."""

    def work(*place: int) -> tuple[int, ...]:
        return tuple(sum(p >= c for c in at) for p, at in zip(place, changes, strict=True))

    world = World(tmp_path_factory.mktemp("world") / "log", shape, work)
    plan = world.run(lambda *place: 1000 + 100 * sum(place))  # far apart: nothing is merged for being alike
    assert inferred_rightly(world, plan)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)).filter(lambda s: np.prod(s) > 1),
    work=st.lists(st.integers(0, 4), min_size=48, max_size=48),
)
def test_who_stands_for_others_goes_on_itself(tmp_path_factory, shape, work):
    """Whatever ranks do, all nearly alike: one that equals another rank's copy is the same rank's copy."""
    world = World(tmp_path_factory.mktemp("world") / "log", shape, lambda d, p, t: work[(d * 3 + p) * 4 + t])
    plan = world.run(lambda *place: 1000 + work[(place[0] * 3 + place[1]) * 4 + place[2]])
    stands = plan.representative_of()
    assert all(stands[other] == other for other in stands)
    assert set(stands) <= set(plan.seen) | set(plan.inferred)


def test_a_rank_that_contradicts_is_found_by_a_check_and_mended(tmp_path: Path):
    odd = {}
    world = World(tmp_path / "log", (32, 1, 1), lambda data, stage, tensor: odd.get(data, 0))
    odd[world.run().checked[0]] = 1
    plan = world.run()
    assert "did other work than inferred" in plan.notes[0]
    assert not any(plan.alike_along.values())
    assert inferred_rightly(world, plan)


def test_ranks_that_all_differ_a_little_get_one_representative_and_a_note(tmp_path: Path):
    world = World(tmp_path / "log", (64, 1, 1), lambda data, stage, tensor: data)
    plan = world.run(lambda data, stage, tensor: 1000 + data % 7)
    assert set(plan.representative_of()) == {0}
    assert "differ a little" in plan.notes[0]


@pytest.mark.parametrize("talks_in_world", [False, True])
def test_stages_are_never_taken_for_one_another(tmp_path: Path, talks_in_world: bool):
    """They differ as little, but in an order that matters."""
    world = World(
        tmp_path / "log", (2, 16, 2), lambda data, stage, tensor: stage, talks_in_world=talks_in_world
    )
    plan = world.run(lambda data, stage, tensor: 1000 + stage)
    assert len(set(plan.representative_of())) == 16


def test_many_combinations_merge_what_is_nearly_equal(tmp_path: Path):
    world = World(tmp_path / "log", (256, 8, 8), lambda data, stage, tensor: (data == 0, stage, tensor == 0))
    plan = world.run(lambda data, stage, tensor: 1000 + (data == 0) + 10 * (tensor == 0))
    assert len(plan.seen) <= MANY + CHECKS
    assert len(set(plan.representative_of())) == 8  # the stages, and what is most alike along the other axes


def test_a_job_like_those_before_starts_fewer_ranks_and_compares_them_sooner(tmp_path: Path):
    world = World(tmp_path / "log", (16, 4, 8), lambda data, stage, tensor: (stage, tensor == 0))
    careful = world.run(lambda data, stage, tensor: 1000 + (tensor == 0))
    trusting = world.run(lambda data, stage, tensor: 1000 + (tensor == 0), trusting=True)
    assert (careful.compared_at, trusting.compared_at) == (2, 1)
    assert not trusting.checked and len(trusting.seen) < len(careful.seen)
    assert len(set(careful.representative_of())) == 8
    assert len(set(trusting.representative_of())) == 4  # tensor ranks are only a little apart
    assert "differ a little" in trusting.notes[0]


def test_axes_of_known_roles_start_only_their_first_rank(tmp_path: Path):
    """Whatever their size: only the stages of a pipeline are left to be told apart."""

    def calls(data: int, stage: int, tensor: int) -> int:
        return 1000 + (tensor == 0)

    before = World(tmp_path / "before", (2, 4, 2), lambda *place: (place[1], place[2] == 0)).run(calls)
    assert sorted(before.alike_along.values()) == [False, True, True]  # not along the pipeline
    alike = {role for role, alike in before.alike_along.items() if alike}
    world = World(tmp_path / "log", (16, 4, 8), lambda *place: (place[1], place[2] == 0))
    plan = world.run(calls, alike=alike)
    assert sorted(plan.seen) == [0, 8, 16, 24]
    assert set(plan.representative_of()) == set(plan.seen)
    assert "axes of 8 and 16 ranks stands for all" in plan.notes[0]
    assert all(world.place[r][1] == world.place[s][1] for r, s in enumerate(plan.representative_of()))


def test_an_axis_along_which_much_differs_is_not_alike(tmp_path: Path):
    plan = World(tmp_path / "log", (8, 1, 1), lambda *place: place[0]).run(lambda *place: 1500 + place[0])
    assert list(plan.alike_along.values()) == [False]


def test_absent_ranks_are_answered_for_by_the_nearest_started_one(tmp_path: Path):
    world = World(tmp_path / "log", (4, 2, 2), lambda data, stage, tensor: (stage, tensor))
    plan = world.run()
    nearest = plan.nearest([0, 1, 2, 3])
    assert nearest is not None
    assert [tuple(world.place[r][1:]) for r in nearest] == [tuple(p[1:]) for p in world.place]


def _turns(data: int, stage: int, tensor: int) -> tuple[int, ...]:
    """Blocks of a stage that goes round two loops, one more and the other less often than the stage before."""
    return (100, *([1, 2] * (20 - stage)), *([3, 4] * (10 + stage)), 101) if 0 < stage < 15 else (stage,)


def test_stages_between_others_that_tell_do_not_run(tmp_path: Path):
    world = World(tmp_path / "log", (4, 16, 2), lambda data, stage, tensor: stage)
    plan = world.run(blocks=_turns)
    stands = plan.representative_of()
    stages = {int(world.place[rank][1]) for rank in plan.seen}
    (check,) = stages - {0, 1, 8, 14, 15}
    assert check == world.place[plan.checked[-1]][1]
    assert not plan.contradicting
    assert {int(world.place[rank][1]) for rank in plan.inferred} == set(range(16)) - stages
    assert len(set(stands)) == 16
    assert all(world.work(*world.place[r]) == world.work(*world.place[s]) for r, s in enumerate(stands))
    for rank, line in plan.inferred.items():
        assert world.place[line.lower][1] == 1 and world.place[line.upper][1] == 8
        assert world.place[line.lower][2] == world.place[line.upper][2] == world.place[rank][2]
        assert 1 + 7 * line.share == world.place[rank][1]


def test_stages_of_every_class_of_tensor_ranks_are_told_by_their_own(tmp_path: Path):
    world = World(tmp_path / "log", (1, 16, 4), lambda data, stage, tensor: (stage, tensor == 0))
    plan = world.run(lambda data, stage, tensor: 2000 - 1000 * (tensor > 0), blocks=_turns)
    assert inferred_rightly(world, plan)
    assert len(set(plan.representative_of())) == 32
    assert len(plan.inferred) == 21  # eleven stages of two classes, one of which was checked
    for rank, line in plan.inferred.items():
        tensor = [int(world.place[each][2]) for each in (rank, line.lower, line.upper)]
        assert tensor in ([0, 0, 0], [1, 1, 1])


def test_only_ranks_along_a_pipeline_are_told_by_their_loops(tmp_path: Path):
    """Tensor ranks of a pipeline have loops, too, and hand nothing on to each other."""
    world = World(tmp_path / "log", (1, 2, 8), lambda data, stage, tensor: (stage, tensor == 0))
    plan = world.run(
        lambda data, stage, tensor: 2000 - 1000 * (tensor > 0), blocks=lambda *place: (1, 2, 2, 3)
    )
    assert not plan.inferred
    assert inferred_rightly(world, plan)


def test_what_was_inferred_of_stages_can_be_started_after_all(tmp_path: Path):
    world = World(tmp_path / "log", (1, 16, 2), lambda data, stage, tensor: stage)
    plan = world.run(blocks=_turns)
    started = plan.start_inferred()
    assert {int(world.place[rank][1]) for rank in started} | {
        int(world.place[rank][1]) for rank in plan.seen
    } == set(range(16))
    for rank in started:
        place = world.place[rank].tolist()
        plan.seen[rank] = Observed(hash(repr(world.work(*place))), 1000, world.transfers(rank))
    assert not plan.inferred
    assert inferred_rightly(world, plan)


def test_where_one_stage_is_out_of_line_all_run(tmp_path: Path):
    def blocks(data: int, stage: int, tensor: int) -> tuple[int, ...]:
        return (*_turns(data, stage, tensor), 7) if stage == 14 else _turns(data, stage, tensor)

    world = World(tmp_path / "log", (1, 16, 2), lambda data, stage, tensor: stage)
    plan = world.run(blocks=blocks)
    assert {int(world.place[rank][1]) for rank in plan.seen} == set(range(16))
    assert not plan.inferred


def test_a_stage_that_is_checked_and_out_of_line_has_all_run(tmp_path: Path):
    def blocks(data: int, stage: int, tensor: int) -> tuple[int, ...]:
        told = stage not in (0, 1, 8, 14, 15)  # as where stages in between have layers of another kind
        return (*_turns(data, stage, tensor), 7) if told else _turns(data, stage, tensor)

    world = World(tmp_path / "log", (1, 16, 2), lambda data, stage, tensor: stage)
    plan = world.run(blocks=blocks)
    assert {int(world.place[rank][1]) for rank in plan.seen} == set(range(16))
    assert not plan.inferred
    assert len(plan.contradicting) == 1
    assert inferred_rightly(world, plan)


@given(size=st.integers(8, 40), period=st.integers(2, 8))
def test_layers_of_several_kinds_in_turn_are_not_taken_for_one_kind(
    tmp_path_factory, size: int, period: int
) -> None:
    def blocks(data: int, stage: int, tensor: int) -> tuple[int, ...]:
        body = [1, 2 + stage % period]
        return (100, *(body * (2 * size - stage)), 101) if 0 < stage < size - 1 else (stage,)

    world = World(tmp_path_factory.mktemp("world") / "log", (1, size, 2), lambda data, stage, tensor: stage)
    assert not world.run(trusting=True, blocks=blocks).inferred
