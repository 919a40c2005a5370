"""Cores are shared evenly, and what a dead worker held comes back."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from maya.search.cores import CoreBroker


def test_holders_at_a_time_get_cores_of_their_own() -> None:
    broker = CoreBroker(tuple(range(8)), holders=4)
    granted = [core for holder in "abcd" for core in broker.grant(holder)]
    assert sorted(granted) == list(range(8))


def test_more_holders_than_cores_share_evenly_and_take_turns() -> None:
    broker = CoreBroker((0, 1), holders=4)
    held = Counter(core for holder in "abcd" for core in broker.grant(holder))
    assert held == {0: 2, 1: 2}
    broker.release("a")
    assert broker.grant("e") == (0,)


def test_a_holder_that_was_killed_gives_back_when_it_asks_again() -> None:
    broker = CoreBroker((0, 1), holders=2)
    first = broker.grant("a")
    assert broker.grant("a") != first  # round-robin
    assert broker.grant("b") == first


@given(
    cores=st.integers(1, 16),
    holders=st.integers(1, 8),
    asks=st.lists(st.tuples(st.booleans(), st.integers(0, 7))),
)
def test_no_core_is_shared_by_many_while_another_is_by_few(
    cores: int, holders: int, asks: list[tuple[bool, int]]
) -> None:
    broker = CoreBroker(tuple(range(cores)), holders)
    held: dict[int, tuple[int, ...]] = {}
    for grants, holder in asks:
        if grants:
            held[holder] = broker.grant(str(holder))
            load = Counter(dict.fromkeys(range(cores), 0))
            load.update(core for granted in held.values() for core in granted)
            most = max(load[core] for core in held[holder])
            outside = [load[core] for core in range(cores) if core not in held[holder]]
            assert not outside or most <= min(outside) + 1
        else:
            broker.release(str(holder))
            held.pop(holder, None)
