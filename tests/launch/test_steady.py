"""When iterations repeat, and which ranks do the same work."""

from hypothesis import given
from hypothesis import strategies as st

from maya.launch.steady import (
    MAX_PERIOD,
    classes,
    longest_period,
    repetitions,
    seen_at_most,
    steady_period,
    whole_iterations,
)

HASHES = st.integers(0, 2**64 - 1)


def test_repetitions_are_counted_from_the_end_and_without_the_first_segment():
    assert repetitions([[7, 7, 7, 7]], 1) == 3
    assert repetitions([[1, 2, 7, 7], [3, 3, 3, 3]], 1) == 2
    assert repetitions([[0, 1, 2, 1, 2, 1, 2]], 2) == 3


def test_two_equal_segments_after_the_first_are_steady():
    assert steady_period([[1, 7, 7]], 2) == 1


def test_the_first_segment_holds_initialisation_and_never_counts():
    assert steady_period([[7, 7]], 2) is None


def test_every_rank_must_repeat():
    assert steady_period([[1, 7, 7], [1, 8, 9]], 2) is None


def test_iterations_of_unlike_batches_that_are_alike_by_chance_are_not_steady():
    assert steady_period([[0, 1, 2, 3, 3]], 2) == 1  # as a compiler's second try
    assert steady_period([[0, 1, 2, 3, 4, 4]], 2) is None
    assert steady_period([[0, 1, 2, 3, 4, 4, 4]], 2) == 1
    assert steady_period([[0, *range(1, 30), 7, 7]], 2) is None
    assert seen_at_most([[0, *range(1, 30), 7, 7]], 2) == (1, 1)
    assert steady_period([[0, *[1] * 9, 2, 3, 3, 3]], 2) == 1  # eager ones before a graph's


def test_the_longest_period_is_that_of_most_segments():
    stream = [[0], *([9] + [7] * 9 for _ in range(3))]
    hashes = [each for segment in stream for each in segment]
    assert longest_period([hashes]) == 10
    assert longest_period([hashes[:12]]) is None
    assert longest_period([hashes[:18]]) == 1
    assert longest_period([[0, 1, 2, 1, 2], [0, 5, 5, 5, 5]]) == 2


def test_two_optimizers_make_one_iteration_of_two_segments():
    assert steady_period([[0, 1, 2, 1, 2]], 2) == 2


def test_ranks_of_different_periods_share_the_longer():
    assert steady_period([[0, 1, 2, 1, 2], [0, 5, 5, 5, 5]], 2) == 2


def test_what_comes_every_ten_steps_is_found_where_twice_as_many_are_asked_for():
    stream = [[5], *([9] + [7] * 9 for _ in range(3))]
    hashes = [[each for segment in stream for each in segment]]
    assert steady_period(hashes, 2) == 1  # the nine that are alike
    assert steady_period(hashes, 20) == 10 and repetitions(hashes, 10) == 3
    assert steady_period([hashes[0][:15]], 20) is None
    assert steady_period([[1, *[7] * 20]], 20) == 1


def test_fewer_iterations_than_asked_for_are_those_that_were_seen():
    assert seen_at_most([[1, *[7] * 12]], 20) == (1, 12)
    assert seen_at_most([[1, 2, 3, 4]], 20) == (1, 1)
    assert seen_at_most([[1]], 20) is None


@given(st.lists(HASHES, min_size=1, max_size=MAX_PERIOD, unique=True), st.integers(2, 5), st.integers(1, 3))
def test_a_cycle_of_distinct_segments_is_found_whole(cycle, iterations, ranks):
    stream = [12345, *cycle * iterations]
    assert steady_period([stream] * ranks, iterations) == len(cycle)


@given(st.lists(HASHES, min_size=1, max_size=20))
def test_each_rank_is_represented_by_the_lowest_of_its_hash(first):
    representative = classes(first)
    for rank, other in enumerate(representative):
        assert other <= rank and first[other] == first[rank] and first.index(first[rank]) == other


@given(st.integers(-50, 50), st.integers(1, MAX_PERIOD))
def test_iterations_that_run_on_are_whole_and_at_least_one(steps, period):
    on = whole_iterations(steps, period)
    assert on % period == 0 and on >= period
    assert on - period < max(steps, 1)
