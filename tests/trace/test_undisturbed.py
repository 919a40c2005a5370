"""The time of a call is what like calls take when nothing disturbs the host."""

import numpy as np

from maya.trace.host import undisturbed


def test_like_calls_share_the_time_of_the_least_disturbed():
    host = np.array([10, 100, 10, 400, 10, 120] * 10)
    operation = np.array([0, 1] * 30)
    alone = undisturbed(host, operation)
    assert set(alone[1::2]) == {100}
    assert set(alone[::2]) == {10}


def test_a_call_after_another_kind_of_call_is_a_kind_of_its_own():
    operation = np.array([0, 1, 2, 1] * 20)  # operation 1 after 0 is cheap, after 2 dear
    host = np.array([5, 10, 5, 50] * 20)
    assert list(undisturbed(host, operation)) == list(host)


def test_a_rare_call_keeps_its_own_time():
    host = np.array([7, 9000, 8])
    assert list(undisturbed(host, np.array([0, 1, 2]))) == [7, 9000, 8]
