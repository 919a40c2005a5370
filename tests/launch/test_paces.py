"""Which measurements of the machine's speed count."""

from hypothesis import given
from hypothesis import strategies as st

from maya.launch.paces import ENOUGH, WINDOW_SECONDS, Pace, beside, recent

PACES = st.builds(
    Pace,
    st.floats(0, 10**6),
    st.integers(1, 2 * ENOUGH),
    st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)),
)


def taking(at: float, ns: int, iterations: int = ENOUGH) -> Pace:
    return Pace(at, iterations, (ns,))


def test_nothing_measured_is_nothing_known() -> None:
    assert beside([], 0.0) is None


def test_a_piece_that_was_disturbed_counts_as_it_was_when_it_was_not() -> None:
    assert Pace(1.0, 10, (100, 390)).and_(Pace(2.0, 10, (210, 200))) == Pace(2.0, 20, (100, 200))


def test_of_a_long_job_nothing_before_it_counts() -> None:
    found = beside([taking(1.0, 100), taking(40.0, 200), taking(41.0, 220)], since=39.0)
    assert found is not None and found.ns == 200


def test_short_jobs_are_measured_together_with_the_time_before_them() -> None:
    few = ENOUGH // 2
    found = beside([taking(1.0, 90), taking(2.0, 100), taking(4.0, 200, few)], since=3.0)
    assert found is not None and found.ns == 100


def test_what_was_measured_long_ago_does_not_count() -> None:
    now = taking(WINDOW_SECONDS + 1, 200, 1)
    assert recent([taking(0.5, 100), now], now.at) == [now]


@given(PACES, PACES, PACES)
def test_the_order_of_measurements_does_not_matter(one: Pace, two: Pace, three: Pace) -> None:
    assert one.and_(two).and_(three) == three.and_(one.and_(two))


@given(st.lists(PACES))
def test_paces_are_read_as_they_were_written(paces: list[Pace]) -> None:
    written = "".join(pace.written() + "\n" for pace in paces)
    assert Pace.read(written) == paces
    assert Pace.read(written + "[17.0, 3") == paces
