from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.search.dominance import Dominance
from maya.search.space import Point, Space, parse_space
from maya.search.types import Outcome, Trial

BASE = {"tp": 2, "pp": 2, "micro_batches": 2, "virtual": 1}
BASE |= {"recompute": False, "sequence_parallel": False, "distributed_optimizer": False}


def trial(space: Space, verdict: str, **changes: object) -> Trial:
    configuration = {**BASE, **changes}
    return Trial(7, space.point(configuration), configuration, Outcome(verdict))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "seen", "about", "implies"),
    [
        ("OOM", {"recompute": True}, {"recompute": False}, "OOM"),
        ("OOM", {"sequence_parallel": True}, {"sequence_parallel": False}, "OOM"),
        ("OOM", {"recompute": True, "sequence_parallel": True}, {}, "OOM"),
        ("FITS", {"distributed_optimizer": False}, {"distributed_optimizer": True}, "FITS"),
        ("FITS", {"pp": 1, "micro_batches": 2}, {"pp": 1, "micro_batches": 8}, "FITS"),
        ("INCOMPLETE", {"pp": 1, "micro_batches": 1}, {"pp": 1, "distributed_optimizer": True}, "FITS"),
        ("OOM", {"distributed_optimizer": True}, {"distributed_optimizer": False}, "OOM"),
        ("OOM", {"micro_batches": 8}, {"micro_batches": 2}, "OOM"),
        ("OOM", {"virtual": 1}, {"virtual": 4}, "OOM"),
        ("FITS", {"recompute": False}, {"recompute": True}, "FITS"),
        # and what must not be concluded
        ("OOM", {"micro_batches": 2}, {"micro_batches": 8}, None),
        ("OOM", {"virtual": 4}, {"virtual": 1}, None),
        ("FITS", {"recompute": True}, {"recompute": False}, None),
        ("OOM", {"recompute": False}, {"recompute": True}, None),
        ("OOM", {"distributed_optimizer": False}, {"distributed_optimizer": True}, None),
        ("FITS", {"distributed_optimizer": True}, {"distributed_optimizer": False}, None),
        ("FITS", {"pp": 2, "micro_batches": 2}, {"pp": 2, "micro_batches": 8}, None),
        ("FITS", {"pp": 1, "micro_batches": 8}, {"pp": 1, "micro_batches": 2}, None),
        ("OOM", {"recompute": True, "tp": 4}, {"recompute": False, "tp": 2}, None),
        ("FAILED", {"recompute": True}, {"recompute": False}, None),
    ],
)
def test_megatrons_tactics(
    space: Space, known: str, seen: dict[str, object], about: dict[str, object], implies: str | None
) -> None:
    pruning = Dominance(space).pruning(space.point({**BASE, **about}), [trial(space, known, **seen)])
    assert (pruning.implies if pruning else None) == implies
    if pruning:
        assert pruning.by == 7 and pruning.rules


def test_parts_are_found_by_megatrons_flags_whatever_the_knobs_are_called() -> None:
    space = parse_space(
        """
gpus: 8
knobs:
  stages: {flag: --pipeline-model-parallel-size, values: [1, 2]}
  mbs: {flag: --micro-batch-size, values: [1, 2, 4]}
  r: {values: {none: [], all: [--recompute-granularity, full], some: [--recompute-activations]}}
dominance: megatron
""",
        "space.yaml",
    )
    dominance = Dominance(space)
    assert dominance.path((0, 2, 0), (0, 0, 0), "fits")  # larger micro-batches are fewer
    assert not dominance.path((1, 2, 0), (1, 0, 0), "fits")
    assert dominance.path((0, 0, 1), (0, 0, 0), "oom") and not dominance.path((0, 0, 1), (0, 0, 2), "oom")
    assert len(dominance.notes) == 3  # no sequence parallelism, distributed optimizer or virtual stages here


@pytest.mark.parametrize(
    ("knob", "plain"),
    [
        ("{values: {0: [], 1: [--num-layers-per-virtual-pipeline-stage, 1]}}", 0),
        ("{values: {2: [--num-layers-per-virtual-pipeline-stage, 2], none: []}}", 1),
        ("{flag: --num-layers-per-virtual-pipeline-stage, values: [1, 2]}", None),  # plain at layers / stages
        ("{flag: --num-virtual-stages-per-pipeline-rank, values: [2, 1]}", 1),
        ("{values: [2, 1]}", 1),
        ("{values: [2, 4]}", None),
    ],
)
def test_interleaving_is_told_by_what_the_flag_counts(knob: str, plain: int | None) -> None:
    space = parse_space(f"gpus: 8\nknobs: {{vpp: {knob}}}\ndominance: megatron\n", "space.yaml")
    dominance = Dominance(space)
    for known, other in ((0, 1), (1, 0)):
        assert (dominance.path((known,), (other,), "oom") is not None) == (known == plain)


WRITTEN_OUT = """
gpus: 8
knobs: {a: {values: [1, 2, 3]}, b: {values: [x, y, z]}, c: {values: [false, true]}, d: {values: [1, 2]}}
dominance:
  - {rule: more a, knob: a, order: [1, 2, 3], known: oom}
  - {rule: b falls, knob: b, order: [z, x], known: oom}
  - {rule: c for free, knob: c, order: [false, true], known: fits}
  - {rule: a for free, knob: a, order: [3, 1], known: fits, where: d == 1}
"""
RULED = parse_space(WRITTEN_OUT, "space.yaml")
POINTS = list(product(*map(range, RULED.cardinalities)))


@settings(max_examples=300)
@given(
    st.sampled_from(POINTS),
    st.sampled_from(POINTS),
    st.sampled_from(POINTS),
    st.sampled_from(["oom", "fits"]),
)
def test_the_order_is_transitive_and_antisymmetric(a: Point, b: Point, c: Point, known: str) -> None:
    dominance = Dominance(RULED)
    ab, bc, ac, ba = (
        dominance.path(*pair, known) is not None  # type: ignore[arg-type]
        for pair in ((a, b), (b, c), (a, c), (b, a))
    )
    assert ac or not (ab and bc)
    assert a == b or not (ab and ba)


@given(st.sampled_from(POINTS), st.sampled_from(POINTS))
def test_only_points_of_one_family_are_related(a: Point, b: Point) -> None:
    dominance = Dominance(RULED)
    assert dominance.family(a) == dominance.family(b) or not dominance.related(a, b)
