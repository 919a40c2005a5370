"""The time of a call is what like calls take when nothing disturbs the host."""

import numpy as np
import pytest

from maya.trace.host import UndisturbedTimes, calls_alike


def alone(host, operation, *others):
    kinds = calls_alike(np.zeros_like(operation), operation)
    samples = [(kinds, host), *((calls_alike(np.zeros_like(o), o), h) for h, o in others)]
    return UndisturbedTimes.of(samples).applied(kinds, host)


def test_like_calls_share_the_time_of_the_least_disturbed():
    times = alone(np.array([10, 100, 10, 400, 10, 120] * 10), np.array([0, 1] * 30))
    assert set(times[1::2]) == {100}
    assert set(times[2::2]) == {10}


def test_other_ranks_and_iterations_tell_what_a_disturbed_one_would_have_taken():
    operation = np.array([0, 1] * 10)
    disturbed, quiet = np.full(20, 30), np.full(20, 10)
    assert set(alone(disturbed, operation, (quiet, operation))[1:]) == {10}


def test_a_call_after_another_kind_of_call_is_a_kind_of_its_own():
    operation = np.array([0, 1, 2, 1] * 20)  # operation 1 after 0 is cheap, after 2 dear
    host = np.array([5, 10, 5, 50] * 20)
    assert list(alone(host, operation)) == list(host)


def test_the_same_operation_of_another_kind_is_not_alike():
    operation = np.zeros(2, np.int64)
    assert (
        len(set(calls_alike(np.array([0, 2]), operation)[1:]) & set(calls_alike(operation, operation))) == 0
    )


def test_a_rare_call_keeps_its_own_time():
    assert list(alone(np.array([7, 9000, 8]), np.array([0, 1, 2]))) == [7, 9000, 8]


def test_a_rare_call_is_as_disturbed_as_frequent_ones_are():
    operation = np.array([0, *([1] * 600)])
    host = np.array([900, *([10, 30, 30] * 200)])  # most take three times what they cost alone
    times = alone(host, operation)
    assert times[0] == 300
    assert set(times[2:]) == {10}


def test_the_least_of_few_lies_above_the_least_of_many():
    operation = np.array([0, *([1] * 900), *([2] * 9)])
    seldom = [10] * 45 + [20] * 855  # of nine, the least is expected to be 20
    times = alone(np.array([0, *seldom, *([40] * 9)]), operation)
    assert set(times[2:901]) == {10}
    assert set(times[903:]) == {20}


def test_recording_for_longer_does_not_make_a_call_cheaper():
    distribution = np.random.default_rng(7).gamma(4.0, 100.0, 256 * 64)
    told = [alone(distribution[:count], np.zeros(count, np.int64))[-1] for count in (256 * 8, 256 * 64)]
    assert told[1] == pytest.approx(told[0], rel=0.1)
    assert distribution.min() < 0.8 * told[1]


def test_kinds_of_which_there_are_not_many_tell_it_as_far_as_they_go():
    operation = np.array([0, *([1] * 65)])  # after the first, 64 alike
    times = alone(np.array([900, 7, *([10, 30, 30, 30] * 16)]), operation)
    assert times[0] == 300
    assert set(times[2:]) == {10}


def test_no_call_at_all():
    nothing = np.empty(0, np.int64)
    assert len(alone(nothing, nothing)) == 0
