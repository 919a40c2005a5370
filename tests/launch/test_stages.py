"""What stages of a pipeline do that did not run."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maya.launch.layout import RAW_RECORD, RecordKind
from maya.launch.stages import Blocks, blocks_of, hashes_in_line, loops, records_in_line

START, RECEIVE, FORWARD, SEND, EXCHANGE, BACKWARD, STEP = range(7)


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> tuple[int, ...]:
    """The blocks of a stage in between, as Megatron's schedule has them."""
    warm_up = stages - stage - 1
    blocks = [START] + [RECEIVE, FORWARD, SEND] * warm_up + [RECEIVE]
    blocks += [FORWARD, EXCHANGE, BACKWARD, EXCHANGE] * (micro_batches - warm_up - 1)
    blocks += [FORWARD, EXCHANGE, BACKWARD, SEND] + [RECEIVE, BACKWARD, SEND] * warm_up
    return (*blocks, STEP)


@given(st.lists(st.integers(0, 3), max_size=60).map(tuple))
def test_loops_are_the_blocks(blocks: tuple[int, ...]) -> None:
    found = loops(blocks)
    assert tuple(block for loop in found for block in loop.body * loop.turns) == blocks
    assert [loop.first for loop in found] == list(
        np.cumsum([0, *(len(loop.body) * loop.turns for loop in found)])[:-1]
    )


@given(stages=st.integers(8, 40), spare=st.integers(3, 60), data=st.data())
def test_a_stage_of_1f1b_lies_in_line(stages: int, spare: int, data: st.DataObject) -> None:
    micro_batches = stages + spare
    lower, upper = (one_f_one_b(stage, stages, micro_batches) for stage in (1, stages // 2))
    stage = data.draw(st.integers(2, stages - 2))
    share = Fraction(stage - 1, stages // 2 - 1)
    assert hashes_in_line(lower, upper, share) == one_f_one_b(stage, stages, micro_batches)


def test_stages_of_other_loops_tell_nothing() -> None:
    half = Fraction(1, 2)
    assert hashes_in_line((1, 2, 2, 3), (1, 4, 4, 3), half) is None
    assert hashes_in_line((1, 2, 2, 3), (1, 2, 2, 2, 3), half) is None  # two turns and a half
    assert hashes_in_line((1, 2, 2, 3), (1, 2, 2, 2, 3), Fraction(3)) == (1, 2, 2, 2, 2, 2, 3)
    assert hashes_in_line((1, 2, 2, 3), (1, 2, 2, 2, 3), Fraction(-3)) is None


def test_blocks_are_told_by_what_is_called_wherever_the_peer() -> None:
    def rank(place: int, sent: int) -> Blocks:
        records = np.zeros(6, RAW_RECORD)
        records["kind"] = [RecordKind.KERNEL, RecordKind.COLLECTIVE, RecordKind.KERNEL] * 2
        records["op"] = [7, 8, 9, 7, 8, 9]
        records["peer"] = np.where(records["kind"] == RecordKind.COLLECTIVE, place + 1, -1)
        records["size"] = [0, sent, 0, 0, sent, 0]
        lines = {7: {"op": 7, "kernel": "a"}, 8: {"op": 8, "collective": "send"}, 9: {"op": 9, "kernel": "b"}}
        return blocks_of(records, lines, {}, {0: place})

    one = rank(3, 100)
    assert one.bounds.tolist() == [0, 1, 2, 4, 5, 6]
    assert one.hashes[1] == one.hashes[3] and one.hashes[0] != one.hashes[4]
    assert rank(5, 100).hashes == one.hashes
    assert rank(5, 200).hashes[1] != one.hashes[1]


def test_turns_beyond_those_recorded_are_groups_of_their_own() -> None:
    records = np.zeros(5, RAW_RECORD)
    records["size"], records["group"] = [0, 1, 2, 3, 4], [0, 1, 2, 3, 0]
    lower = Blocks((9, 5, 5, 5, 8), np.arange(6))
    upper = Blocks((9, 5, 5, 5, 5, 8), np.arange(7))
    more = records_in_line(lower, upper, Fraction(2), records)
    assert more is not None
    assert more["size"].tolist() == [0, 1, 2, 3, 3, 3, 4]
    assert len(set(more["group"].tolist())) == 6  # none, and each turn's
    fewer = records_in_line(lower, upper, Fraction(-2), records)
    assert fewer is not None and fewer["size"].tolist() == [0, 1, 4]
