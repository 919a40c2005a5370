"""Which measurements of the machine's speed count."""

from hypothesis import given
from hypothesis import strategies as st

from maya.launch.paces import ENOUGH, WINDOW_SECONDS, Pace, Paces

PACES = st.builds(Pace, st.integers(1, 2 * ENOUGH), st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)))


def latest(*measured: tuple[float, Pace]) -> Pace:
    made = Paces()
    for when, pace in measured:
        made.add(when, pace)
    return made.latest(measured[-1][0] if measured else 0.0)


def test_nothing_measured_is_nothing_known() -> None:
    assert latest().ns is None and latest((0.0, Pace())).ns is None


def test_a_piece_that_was_disturbed_counts_as_it_was_when_it_was_not() -> None:
    assert Pace(10, (100, 390)).and_(Pace(10, (210, 200))) == Pace(20, (100, 200))


def test_of_a_long_job_nothing_before_it_counts() -> None:
    assert latest((0.0, Pace(ENOUGH, (100,))), (40.0, Pace(ENOUGH, (200,)))).ns == 200


def test_short_jobs_are_measured_together_with_those_before_them() -> None:
    assert latest((0.0, Pace(ENOUGH, (100,))), (4.0, Pace(ENOUGH // 2, (200,)))).ns == 100


def test_what_was_measured_long_ago_does_not_count() -> None:
    assert latest((0.0, Pace(ENOUGH, (100,))), (WINDOW_SECONDS + 1, Pace(1, (200,)))).ns == 200


@given(PACES, PACES, PACES)
def test_the_order_of_measurements_does_not_matter(one: Pace, two: Pace, three: Pace) -> None:
    assert one.and_(two).and_(three) == three.and_(one.and_(two))
    assert one.and_(Pace()) == Pace().and_(one) == one


@given(PACES)
def test_a_pace_is_read_as_it_was_written(pace: Pace) -> None:
    assert Pace.read(pace.written()) == pace
