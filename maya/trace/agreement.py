"""Joins the ranks' tables: numbers what they do together, and checks that they agree on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maya.trace.format import TraceError
from maya.trace.rendezvous import join
from maya.trace.types import Collective, Communicator, Operation


def join_ranks(
    tables: list[NDArray[np.void]],
    parties: list[NDArray[np.void]],
    communicators: tuple[Communicator, ...],
    operations: tuple[Operation, ...],
    class_of_rank: NDArray[np.int32],
    representatives: list[int],
    notes: list[str],
) -> None:
    """Numbers the rendezvous in `tables`, having checked that the parties agree on them."""
    party = np.concatenate(parties)
    _check_counts(party, communicators, representatives)
    number, found = join(party)
    for rank_class, records in enumerate(tables):
        own = party["class"] == rank_class
        records["rendezvous"][party["row"][own]] = number[own]
    _check_kinds(tables, party, number, operations, representatives)
    _check_transfers(party[~found], class_of_rank, representatives, notes)


def _check_counts(
    party: NDArray[np.void], communicators: tuple[Communicator, ...], representatives: list[int]
) -> None:
    for communicator in communicators:
        own = party[(party["communicator"] == communicator.id) & (party["peer"] < 0)]
        if not len(own):
            continue
        calls = {c: int((own["class"] == c).sum()) for c in communicator.classes}
        if len(set(calls.values())) > 1:
            listed = ", ".join(f"rank {representatives[c]}: {n}" for c, n in calls.items())
            raise TraceError(
                f"communicator {communicator.id} (ranks {_listed(communicator.members)}): its members "
                f"disagree on how many collectives an iteration has ({listed})"
            )


def _check_kinds(
    tables: list[NDArray[np.void]],
    party: NDArray[np.void],
    number: NDArray[np.int32],
    operations: tuple[Operation, ...],
    representatives: list[int],
) -> None:
    names = np.array([op.collective if isinstance(op, Collective) else "" for op in operations] or [""])
    _, code_of_operation = np.unique(names, return_inverse=True)
    operation = np.empty(len(party), np.int64)
    for rank_class, records in enumerate(tables):
        own = party["class"] == rank_class
        operation[own] = records["operation"][party["row"][own]]
    code = code_of_operation.reshape(-1)[operation] if len(party) else np.empty(0, np.int64)
    first = np.full(int(number.max(initial=-1)) + 1, -1)
    first[number[::-1]] = np.arange(len(number))[::-1]
    for row in np.flatnonzero((code != code[first[number]]) & (party["peer"] < 0)):
        other = first[number[row]]
        raise TraceError(
            f"communicator {party['communicator'][row]}, collective {party['sequence'][row]} of the "
            f"iteration: rank {representatives[party['class'][other]]} calls {names[operation[other]]}, "
            f"rank {representatives[party['class'][row]]} calls {names[operation[row]]}"
        )


def _check_transfers(
    alone: NDArray[np.void], class_of_rank: NDArray[np.int32], representatives: list[int], notes: list[str]
) -> None:
    """A transfer without other side is an error between single ranks; else its peer is not simulated."""
    sizes = np.bincount(class_of_rank, minlength=len(representatives))
    for side in alone:
        own, peer = int(side["class"]), int(side["peer_class"])
        if peer >= 0 and sizes[own] == 1 and sizes[peer] == 1:
            here, there = representatives[own], representatives[peer]
            verb, back = ("sends to", "receives") if side["sends"] else ("receives from", "sends")
            raise TraceError(
                f"communicator {side['communicator']}: rank {here} {verb} rank {there} "
                f"{side['sequence'] + 1} times an iteration, rank {there} {back} {side['sequence']}"
            )
    if len(alone):
        notes.append(f"{len(alone)} transfers go to ranks that are not simulated; they wait for nobody")


def _listed(members: tuple[int, ...]) -> str:
    shown = ", ".join("?" if m < 0 else str(m) for m in members[:8])
    return shown + (", ..." if len(members) > 8 else "")
