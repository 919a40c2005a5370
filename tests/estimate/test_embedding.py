"""Rows that a batch looks up again are found in L2; the others come from memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate import Estimator, Provenance
from maya.estimate.embedding import Lookup, estimate_lookup
from maya.trace.types import Kernel, Operator

A100 = load("dgx-a100").device


def seconds(lookup: Lookup) -> float:
    return estimate_lookup(lookup, A100)[0]


def test_rows_looked_up_once_are_as_many_as_lookups():
    assert Lookup(10**6, 64, 4096, 128, 4, reuse=(1.0,)).distinct == 4096


def test_a_reuse_factor_of_two_or_three_leaves_two_rows_for_five_lookups():
    assert Lookup(10**6, 64, 4096, 128, 4, reuse=(0.0, 1.0)).distinct == pytest.approx(4096 / 2.5)


def test_uniform_lookups_of_a_small_table_touch_all_of_it():
    assert Lookup(100, 64, 10**6, 128, 4).distinct == pytest.approx(100)


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_no_more_rows_are_touched_than_there_are_or_than_are_looked_up(rows, lookups):
    distinct = Lookup(rows, 64, lookups, 1, 4).distinct
    assert 0 < distinct <= min(rows, lookups) * (1 + 1e-6)


def test_reuse_saves_time():
    once = Lookup(10**7, 128, 10**6, 10**4, 4, reuse=(1.0,))
    often = Lookup(10**7, 128, 10**6, 10**4, 4, reuse=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    assert seconds(often) < 0.8 * seconds(once)


def test_a_larger_pooling_factor_writes_fewer_bags():
    assert seconds(Lookup(10**7, 128, 10**6, 10**4, 4)) < seconds(Lookup(10**7, 128, 10**6, 10**6, 4))


def test_the_estimator_takes_a_tables_histogram():
    name = "void at::native::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long*, long*, float*)"
    operator = Operator("aten::_embedding_bag", ((10**7, 128), (10**6,), (10**4,)))
    bag = Kernel(name, (1024, 1, 1), (32, 8, 1), operator=operator)
    told = Estimator(load("dgx-a100"), reuse={(10**7, 128): (0.0,) * 8 + (1.0,)}).estimate([bag])
    untold = Estimator(load("dgx-a100")).estimate([bag])
    assert told.seconds[0] < untold.seconds[0]
    assert untold.provenance[0] == Provenance.ROOFLINE
