"""Which measurements of the machine's speed count."""

from hypothesis import given
from hypothesis import strategies as st

from maya.launch.paces import EVERY_SECONDS, WINDOW_SECONDS, Paces


def paces(*measured: tuple[float, int]) -> Paces:
    made = Paces()
    for when, pace_ns in measured:
        made.add(when, pace_ns)
    return made


def test_nothing_measured_is_nothing_known():
    assert paces().fastest_ns is None and paces().due(0.0) and paces().too_few


def test_a_disturbed_measurement_does_not_count():
    assert paces((0.0, 2000), (40.0, 3900), (80.0, 2050)).fastest_ns == 2000


def test_a_machine_that_stays_slower_is_known_to_be_after_the_window():
    assert paces((0.0, 2000), (WINDOW_SECONDS, 4000)).fastest_ns == 2000
    assert paces((0.0, 2000), (WINDOW_SECONDS + 1, 4000)).fastest_ns == 4000


def test_it_is_measured_twice_at_first_and_seldom_then():
    one, two = paces((0.0, 2000)), paces((0.0, 2000), (1.0, 2000))
    assert one.too_few and not two.too_few
    assert not two.due(EVERY_SECONDS) and two.due(1.0 + EVERY_SECONDS)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 10**9)), min_size=1))
def test_the_fastest_is_one_of_those_within_the_window(steps):
    now, measured, made = 0.0, [], Paces()
    for after, pace_ns in steps:
        now += after
        measured.append((now, pace_ns))
        made.add(now, pace_ns)
    assert made.fastest_ns == min(pace for when, pace in measured if now - when <= WINDOW_SECONDS)
