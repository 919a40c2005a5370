"""Splits classes of ranks that make the same calls but meet different classes.

Equal hashes say that ranks make equal calls, with peers at equal distances. That does not yet make them
equal in time: the middle stages of a pipeline that runs all forward passes first make the same calls, but
each waits for the one before it. Classes are therefore refined until all ranks of a class meet the same
classes (colour refinement: Cardon, Crochemore 1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from maya.trace.communicators import Announced, Instance
from maya.trace.format import LocalCommunicator, RawRank
from maya.trace.types import RecordKind

Lane = tuple[int, int]  # local communicator, distance of the peer on it (0: a collective)


def refine(
    representative_of: Sequence[int],
    lanes: dict[int, list[Lane]],
    announced: Announced,
    instances: dict[str, Instance],
) -> NDArray[np.int64]:
    """[world] Class of each rank, numbered by its lowest rank.

    `lanes` are what each representative calls in its iteration. A rank stays with its representative as
    far as the members of its own communicators or its representative's are not all known.
    """
    whole = {name for name, instance in instances.items() if -1 not in instance.members}
    lanes = {
        rank: [(k, distance) for k, distance in own if announced[rank][k].id in whole]
        for rank, own in lanes.items()
    }
    lanes_of = [lanes[representative] for representative in representative_of]
    locals_of = [
        _locals(announced, whole, rank, representative, lanes[representative])
        for rank, representative in enumerate(representative_of)
    ]
    colour = _dense(list(representative_of))
    while True:
        members = _members(instances, colour)
        seen: list[object] = []
        for rank, local in enumerate(locals_of):
            signature = tuple(_meets(local[k], d, members, instances, colour) for k, d in lanes_of[rank])
            seen.append((int(colour[rank]), signature))
        finer = _dense(seen)
        if finer.max() == colour.max():
            return finer
        colour = finer


def lanes_of(records: NDArray[np.void], communicators: dict[int, LocalCommunicator]) -> list[Lane]:
    """The communicators that a rank's records use, and at which distances its peers on them are."""
    calls = records[records["kind"] == RecordKind.COLLECTIVE]
    pairs = sorted({(int(k), int(peer)) for k, peer in zip(calls["arg"], calls["peer"], strict=True)})
    return [
        (k, 0 if peer < 0 else _distance(communicators[k], peer))
        for k, peer in pairs
        if peer != communicators[k].rank
    ]


def as_rank(
    raw: RawRank, records: NDArray[np.void], rank: int, announced: Announced
) -> tuple[RawRank, NDArray[np.void]]:
    """What `rank` would have recorded, had it run on: its representative's records among its own peers."""
    own = {**raw.communicators, **announced.get(rank, {})}
    records = records.copy()
    p2p = (records["kind"] == RecordKind.COLLECTIVE) & (records["peer"] >= 0)
    for index in np.unique(records["arg"][p2p]):
        chosen = p2p & (records["arg"] == index)
        shift = own[int(index)].rank - raw.communicators[int(index)].rank
        records["peer"][chosen] = (records["peer"][chosen] + shift) % own[int(index)].size
    return replace(raw, rank=rank, communicators=own), records


def _distance(local: LocalCommunicator, peer: int) -> int:
    return (peer - local.rank) % local.size


def _locals(
    announced: Announced, whole: set[str], rank: int, representative: int, lanes: list[Lane]
) -> dict[int, LocalCommunicator]:
    """The rank's own communicators when it announced all that count, else its representative's."""
    own, other = announced.get(rank, {}), announced[representative]
    known = all(k in own and own[k].size == other[k].size and own[k].id in whole for k, _ in lanes)
    return own if known else other


def _members(instances: dict[str, Instance], colour: NDArray[np.int64]) -> dict[str, int]:
    """Instances whose members have the same colours get the same number."""
    number: dict[bytes, int] = {}
    result = {}
    for name, instance in instances.items():
        known = np.array([member for member in instance.members if member >= 0], np.intp)
        colours = np.sort(colour[known]).tobytes()
        result[name] = number.setdefault(colours, len(number))
    return result


def _meets(
    local: LocalCommunicator,
    distance: int,
    members: dict[str, int],
    instances: dict[str, Instance],
    colour: NDArray[np.int64],
) -> object:
    if distance == 0:
        return members[local.id]
    return int(colour[instances[local.id].members[(local.rank + distance) % local.size]])


def _dense(values: Sequence[object]) -> NDArray[np.int64]:
    """[values] Equal values get equal numbers, in the order in which they first occur."""
    number: dict[object, int] = {}
    return np.array([number.setdefault(value, len(number)) for value in values], np.int64)
