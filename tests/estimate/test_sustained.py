"""Bursts are faster than long runs, where they draw more than the power limit sustains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate.sustained import Shares, burst_seconds, sustained_seconds

PEAK = 1e15


@given(st.floats(1e-6, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_product_nearer_to_the_peak_slows_down_more(burst_s, lower, higher):
    lower, higher = sorted((lower, higher))
    slowed = [sustained_seconds(burst_s, share * PEAK * burst_s, PEAK, 0.5) for share in (lower, higher)]
    assert burst_s <= slowed[0] <= slowed[1]


def test_what_the_device_sustains_keeps_its_time():
    assert sustained_seconds(1e-3, 0.5 * PEAK * 1e-3, PEAK, 0.6) == 1e-3


def test_eight_times_the_sustainable_share_halves_the_clock():
    assert sustained_seconds(1e-3, 0.8 * PEAK * 1e-3, PEAK, 0.1) == 2e-3


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8_e4m3"])
def test_every_device_has_a_share_of_its_peak(dtype):
    assert 0 < Shares.of(load("dgx-h100").device).share(dtype) <= 1


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e5m2"])
def test_a_power_cap_sustains_less(dtype):
    device = load("dgx-h100").device
    capped = device.model_copy(update={"power_cap_w": device.power_w / 2})
    assert 0 < Shares.of(capped).share(dtype) < Shares.of(device).share(dtype) / 2
    assert Shares.of(device.model_copy(update={"power_cap_w": 2 * device.power_w})) == Shares.of(device)


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e5m2"])
def test_a_cluster_file_says_what_its_devices_sustain(dtype):
    device = load("dgx-h100").device.model_copy(update={"sustainable_share": 1.0})
    assert Shares.of(device).share(dtype) == 1.0
    capped = device.model_copy(update={"power_cap_w": device.power_w / 2})
    assert Shares.of(capped).share(dtype) < 1.0


@given(burst_s=st.floats(1e-6, 1.0), share=st.floats(0.001, 1.0), sustainable=st.floats(0.05, 1.0))
def test_a_burst_is_told_from_what_it_takes_under_load(burst_s, share, sustainable):
    flops = share * PEAK * burst_s
    assert burst_seconds(
        sustained_seconds(burst_s, flops, PEAK, sustainable), flops, PEAK, sustainable
    ) == pytest.approx(burst_s)
