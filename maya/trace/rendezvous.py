"""Joins the records of a job that meet: all parties of a collective, both sides of a transfer.

A class stands for all its ranks, so a send to one of them is matched in this order with
1. the receive at the very place in the communicator that it names (the representatives' own),
2. a receive of the peer's class from the sender's class at the same distance (a ring folded on itself),
3. nothing: a transfer to a rank whose class is represented by another one; it then waits for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# One row per collective record of the whole job.
PARTY = np.dtype(
    [
        ("class", np.int32),
        ("row", np.int32),
        ("communicator", np.int32),
        ("sequence", np.int32),
        ("place", np.int32),  # own rank in the communicator
        ("peer", np.int32),  # p2p: rank of the other side in the communicator; -1
        ("peer_class", np.int32),
        ("size", np.int32),  # of the communicator
        ("sends", np.bool_),  # p2p: the sending side
    ]
)


def join(parties: NDArray[np.void]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """([parties] number of the rendezvous, [parties] whether a transfer found its other side).

    Numbers are dense from 0, collectives first. `parties` has dtype PARTY.
    """
    number = np.full(len(parties), -1, np.int32)
    p2p = parties["peer"] >= 0
    collectives = np.flatnonzero(~p2p)
    groups = _group(parties, collectives, ("communicator", "sequence"))
    number[collectives] = groups
    following = int(groups.max()) + 1 if len(groups) else 0

    sends = parties["sends"]
    ends = {
        "source": np.where(sends, parties["place"], parties["peer"]),
        "target": np.where(sends, parties["peer"], parties["place"]),
        "source_class": np.where(sends, parties["class"], parties["peer_class"]),
        "target_class": np.where(sends, parties["peer_class"], parties["class"]),
    }
    distance = (ends["target"] - ends["source"]) % np.maximum(parties["size"], 1)
    common = [parties["communicator"], parties["sequence"]]
    for key in (
        [*common, ends["source"], ends["target"]],
        [*common, ends["source_class"], ends["target_class"], distance],
    ):
        open_rows = np.flatnonzero(p2p & (number < 0))
        matched, groups = _pairs(open_rows, sends[open_rows], [column[open_rows] for column in key])
        number[matched] = following + groups
        following += len(matched) // 2
    found = number >= 0
    alone = np.flatnonzero(~found)
    number[alone] = following + np.arange(len(alone))
    return number, found


def _group(parties: NDArray[np.void], rows: NDArray[np.intp], names: Sequence[str]) -> NDArray[np.int64]:
    return _dense([parties[name][rows] for name in names])


def _dense(columns: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    """[rows] Equal rows get equal dense numbers, in the rows' lexicographic order."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    _, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


def _pairs(
    rows: NDArray[np.intp], sends: NDArray[np.bool_], key: Sequence[NDArray[np.int32]]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """The rows whose key is shared by exactly one send and one receive, and their pairs' numbers."""
    groups = _dense(key)
    if not len(groups):
        return rows, groups
    good = (np.bincount(groups, sends) == 1) & (np.bincount(groups, ~sends) == 1)
    chosen = good[groups]
    return rows[chosen], (np.cumsum(good) - 1)[groups[chosen]]


def count_within(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """[rows] How many earlier rows have the same key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    count = np.empty(len(keys), np.int32)
    count[order] = np.arange(len(keys)) - starts
    return count
