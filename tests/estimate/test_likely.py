"""How far off a prediction is likely to be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate.likely import FEWEST, likely_error, table

DEVICES = ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-v100", "a40-8"]


@given(st.sampled_from(DEVICES), st.floats(0, 1))
def test_every_share_of_host_time_has_figures(cluster, host):
    found = likely_error(load(cluster).device, {"measured_host": host, "learned": 1 - host})
    assert 0 <= found.median <= found.p90 and found.iterations >= FEWEST


def test_a_device_is_told_of_its_own_iterations_where_there_are_enough():
    device_bound = {"learned": 1.0}
    assert likely_error(load("dgx-a100").device, device_bound).own
    unmeasured = likely_error(load("dgx-b200").device, device_bound)
    assert (
        not unmeasured.own
        and unmeasured.iterations > likely_error(load("dgx-a100").device, device_bound).iterations
    )


def test_waiting_for_the_host_makes_a_prediction_less_sure():
    device = load("dgx-a100").device
    device_bound, host_bound = (likely_error(device, {"measured_host": host}) for host in (0.0, 0.6))
    assert device_bound.p90 < host_bound.p90


def test_nothing_is_said_of_what_has_no_durations():
    assert likely_error(load("dgx-a100").device, {}) is None


@pytest.mark.parametrize("device", sorted({entry["device"] for entry in table()}))
def test_a_device_s_entries_do_not_overlap(device):
    spans = sorted(entry["host"] for entry in table() if entry["device"] == device)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
