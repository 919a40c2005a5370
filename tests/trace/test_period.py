"""The iteration is found in the calls themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from maya.trace import find_period, find_repetition


def stream(*parts: list[int]) -> NDArray[np.uint64]:
    return np.array([value for part in parts for value in part], np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_start_up_is_left_out() -> None:
    assert find_period(stream([7, 8, 9], [1, 2, 3] * 4)) == (3, 3)


def test_no_repetition_is_no_period() -> None:
    assert find_period(stream([1, 2, 3, 4])) is None
    assert find_period(stream([])) is None
    assert find_period(stream([1])) is None


def test_micro_batch_loop_is_not_taken_for_the_iteration() -> None:
    iteration = [1, 2, 3] * 8 + [9, 10]
    assert find_period(stream([0], iteration * 3)) == (1, 26)


def test_nor_is_it_when_the_run_stops_in_the_middle_of_one() -> None:
    iteration = [1, 2, 3] * 8 + [9, 10]
    found = find_period(stream([0], iteration * 3, [1, 2, 3] * 5))
    assert found is not None
    assert found[1] == 26


def brute_force(signatures: NDArray[np.uint64]) -> tuple[int, int] | None:
    reverse, covers = signatures[::-1].tolist(), {}
    for p in range(1, len(reverse) // 2 + 1):
        same = 0
        while p + same < len(reverse) and reverse[same] == reverse[p + same]:
            same += 1
        if same >= p:
            covers[p] = p + same
    wide = [p for p in covers if 2 * covers[p] > max(covers.values())]
    return (len(reverse) - covers[wide[0]], wide[0]) if wide else None


@settings(max_examples=300)
@given(
    prefix=st.lists(st.integers(0, 3), max_size=6),
    body=st.lists(st.integers(0, 3), max_size=8),
    times=st.integers(0, 5),
    cut=st.integers(0, 8),
)
def test_equals_the_definition(prefix: list[int], body: list[int], times: int, cut: int) -> None:
    signatures = stream(prefix, body * times, body[:cut])
    assert find_period(signatures) == brute_force(signatures)


def repetition(*parts: list[int], answer: int = 9) -> tuple[int, int, int] | None:
    signatures = stream(*parts)
    answered = signatures == stream([answer])[0]
    return find_repetition(signatures, answered, ~answered)


def test_a_loop_counts_before_what_little_repeats_after_it() -> None:
    batch = [1, 2, 3, 4, 5, 9]
    assert repetition([7, 8], batch * 6, [6, 9] * 3) == (2, 6, 38)
    assert repetition([7, 8], batch * 6, [10, 11, 12]) == (2, 6, 38)
    assert repetition([7, 8], batch * 6) == (2, 6, 38)


def test_what_repeats_at_the_tail_counts_before_a_loop_that_is_not_much_longer() -> None:
    assert repetition([1, 2, 3, 9] * 6, [9, 5, 6] * 5) == (24, 3, 39)


def test_layers_of_a_single_pass_are_no_iterations() -> None:
    assert repetition([7, 8], [1, 2, 3] * 32, [4, 9]) is None


def test_answers_alone_are_no_iteration() -> None:
    assert repetition([7, 8, 1, 2, 3], [9] * 4) is None
    assert repetition([1, 2, 9] * 4, [9] * 20) == (0, 3, 12)
