"""By a key of the rendezvous store the communicator is known whose id is exchanged there."""

from __future__ import annotations

import pytest

from maya.launch.absent import NO_PAIR, Exchange, Groups

RANKS = (2, 3, 6, 7)


def groups_of(rank: int, *made: tuple[str, tuple[int, ...]]) -> Groups:
    groups = Groups(rank)
    for name, ranks in made:
        groups.add(name, ranks)
    return groups


def exchange(key: str) -> Exchange | None:
    return groups_of(6, ("0", tuple(range(8))), ("5", RANKS)).exchange_at(key)


@pytest.mark.parametrize(
    ("key", "pair", "root", "number"),
    [
        ("default_pg/5//cuda//0", NO_PAIR, 0, 0),
        ("default_pg/5//cuda//1", NO_PAIR, 0, 1),
        ("default_pg/5//cuda//1:2", (1, 2), 0, 0),
        ("default_pg/5//cuda//UniqueNCCLID:3", NO_PAIR, 3, 0),
        # PyTorch 2.15
        ("default_pg/5//cuda//5/nccl_storekey_0", NO_PAIR, 0, 0),
        ("default_pg/5//cuda//5/nccl_storekey_1_2", NO_PAIR, 2, 1),
        ("default_pg/5//cuda//5/p2p-1-2-0/5/p2p-1-2-0/nccl_storekey_0", (1, 2), 0, 0),
    ],
)
def test_key_tells_members_and_which_id(key: str, pair: tuple[int, int], root: int, number: int) -> None:
    found = exchange(key)
    assert found is not None
    assert (found.pair, found.root, found.number) == (pair, root, number)
    assert found.ranks == (RANKS if pair == NO_PAIR else (3, 6))


@pytest.mark.parametrize(
    "key",
    [
        "default_pg/5//cuda//rank_0",
        "default_pg/4//cuda//0",
        "default_pg/5//cpu//0",
        "5/CUDASymmetricMemory/0/1",
    ],
)
def test_other_keys_are_of_no_communicator(key: str) -> None:
    assert exchange(key) is None


def test_members_agree_on_a_group_that_they_name_differently() -> None:
    """Who was not asked for a split of others has heard of fewer groups, and PyTorch counts them in names."""
    here = groups_of(2, ("1", (0, 2)), ("2", RANKS), ("3", RANKS))
    there = groups_of(7, ("1", RANKS), ("2", RANKS))
    found = [here.exchange_at(f"{n}//cuda//0") for n in (2, 3)] + [
        there.exchange_at(f"{n}//cuda//0") for n in (1, 2)
    ]
    first, second, theirs_first, theirs_second = [one and one.identity for one in found]
    assert (first, second) == (theirs_first, theirs_second) and first != second


def test_members_agree_on_the_families_of_a_chains_pairs() -> None:
    """A rank between two others is in two such groups, the second of one neighbour's and the first of the other's."""
    pairs = [(str(rank), (rank, rank + 2)) for rank in range(6)]
    of = {rank: groups_of(rank, *pairs) for rank in (2, 4)}
    exchanges = [of[rank].exchange_at("2//cuda//0") for rank in (2, 4)]
    assert exchanges[0] is not None and exchanges[0] == exchanges[1]
