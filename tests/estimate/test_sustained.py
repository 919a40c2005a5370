"""Bursts are faster than long runs, the more so the nearer to the peak."""

from hypothesis import given
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate.sustained import sustained_seconds

H100 = load("dgx-h100").device
PEAK = H100.peak_flops["bf16"]


@given(st.floats(1e-6, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_product_nearer_to_the_peak_slows_down_more(burst_s, lower, higher):
    lower, higher = sorted((lower, higher))
    slowed = [sustained_seconds(burst_s, share * PEAK * burst_s, PEAK, H100) for share in (lower, higher)]
    assert burst_s <= slowed[0] <= slowed[1]


def test_work_without_products_keeps_its_time():
    assert sustained_seconds(1e-3, 0.0, PEAK, H100) == 1e-3
