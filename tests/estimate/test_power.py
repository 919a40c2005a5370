"""Products slow down where a job draws more on average than its devices sustain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.clusters import Device, load
from maya.estimate import Estimator
from maya.estimate.power import Draw, average, within_limit
from maya.estimate.profiles import Entry, Profiles, identity
from maya.estimate.types import Estimates, Power
from maya.trace.build import JobBuilder
from maya.trace.types import Collective, Gemm, JobTrace, Kernel, Memcpy

H100 = load("dgx-h100").device
DRAWS = st.floats(0.05, 1.5)
TIMES = st.integers(1, 10**7)


def job(products_ns: int, others_ns: int, draw: float) -> tuple[JobTrace, Estimates]:
    """A product that draws `draw`, and a kernel that draws what others do."""
    builder = JobBuilder(1)
    builder.ranks[0].gemm(products_ns)
    builder.ranks[0].kernel(others_ns)
    trace = builder.build()
    product = np.array([isinstance(each, Gemm) for each in trace.operations])
    zeros = np.zeros(len(product))
    others = Draw.of(H100).others
    return trace, Estimates(
        builder.durations_s,
        zeros.astype(np.uint8),
        zeros,
        power=Power(np.where(product, draw, others), clocked=product),
    )


def slowdown(trace: JobTrace, estimates: Estimates, device: Device = H100) -> float:
    """Of the products."""
    return float(
        (within_limit(trace, estimates, device).seconds / estimates.seconds)[estimates.power.clocked][0]
    )


@given(TIMES, TIMES, DRAWS)
def test_average_lies_between_what_products_and_others_draw(products_ns, others_ns, draw):
    trace, estimates = job(products_ns, others_ns, draw)
    others = Draw.of(H100).others
    found = average(trace, estimates.seconds, estimates.power)
    assert min(draw, others) * (1 - 1e-9) <= found <= max(draw, others) * (1 + 1e-9)


@given(TIMES, TIMES, DRAWS, DRAWS)
def test_what_draws_more_is_slowed_down_more(products_ns, others_ns, one, other):
    less, more = (slowdown(*job(products_ns, others_ns, draw)) for draw in sorted((one, other)))
    assert 1.0 <= less <= more


@given(TIMES, TIMES, DRAWS)
def test_only_what_the_clock_decides_is_slowed_down(products_ns, others_ns, draw):
    trace, estimates = job(products_ns, others_ns, draw)
    after = within_limit(trace, estimates, H100)
    assert (after.seconds[~estimates.power.clocked] == estimates.seconds[~estimates.power.clocked]).all()


def test_clock_goes_down_by_what_is_drawn_over_what_is_sustained():
    trace, estimates = job(10**6, 10**6, 1.0)
    drawn = (1.0 + Draw.of(H100).others) / 2
    assert slowdown(trace, estimates) == pytest.approx(drawn / Draw.of(H100).sustained)
    (note,) = within_limit(trace, estimates, H100).notes
    assert "19 % longer than at full clock" in note and H100.name in note


def test_what_the_device_sustains_keeps_its_time_and_says_nothing():
    trace, estimates = job(10**6, 10**9, 1.0)
    assert slowdown(trace, estimates) == 1.0
    assert within_limit(trace, estimates, H100).notes == ()


def test_a_cap_lowers_what_is_sustained_in_proportion():
    capped = H100.model_copy(update={"power_cap_w": H100.power_w / 2})
    assert Draw.of(capped).sustained == pytest.approx(Draw.of(H100).sustained / 2)
    assert Draw.of(H100.model_copy(update={"power_cap_w": 2 * H100.power_w})) == Draw.of(H100)


@pytest.mark.parametrize("name", ["dgx-v100", "dgx-a100", "a40-8", "dgx-h100", "dgx-h200", "dgx-b200"])
def test_every_device_sustains_something(name):
    assert 0.4 < Draw.of(load(name).device).sustained <= 1


def test_what_was_measured_takes_what_it_took():
    cluster = load("dgx-h100")
    product = Gemm(8192, 8192, 8192)
    profiles = Profiles({(cluster.device.name, identity(product), "v"): Entry((2e-3,), 1)})
    alone = Estimator(cluster, profiles=Profiles()).estimate([product])
    known = Estimator(cluster, profiles=profiles).estimate([product])
    assert alone.power.clocked.all() and not known.power.clocked.any()
    assert known.power.draw * known.seconds == pytest.approx(alone.power.draw * alone.seconds)


def test_collectives_and_copies_by_their_own_engines_draw_nothing():
    cluster = load("dgx-h100")
    reduce = Collective("all_reduce", "bf16", 1 << 20, tuple(range(8)))
    kernel = Kernel(
        "void at::native::vectorized_elementwise_kernel<4>", (1024, 1, 1), (128, 1, 1), bytes=1 << 26
    )
    operations = [reduce, Memcpy("h2d", 1 << 20), Memcpy("d2d", 1 << 20), kernel, Gemm(8192, 8192, 8192)]
    *others, product = Estimator(cluster, profiles=Profiles()).estimate(operations).power.draw
    assert others == [0, 0, Draw.of(H100).others, Draw.of(H100).others]
    assert Draw.of(H100).sustained < product < 1


def test_ranks_count_by_how_many_there_are():
    builder = JobBuilder(4, [0, 1, 1, 1])
    builder.ranks[0].gemm(1000)
    builder.ranks[1].kernel(1000)
    trace = builder.build()
    product = np.array([isinstance(each, Gemm) for each in trace.operations])
    power = Power(np.where(product, 1.0, 0.4), clocked=product)
    assert average(trace, builder.durations_s, power) == pytest.approx((1.0 + 3 * 0.4) / 4)
