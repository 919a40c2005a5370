"""Joins communicators by id over ranks, and folds those that identical ranks see alike into one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from maya.trace.format import LocalCommunicator, TraceError
from maya.trace.types import Communicator

Announced = dict[int, dict[int, LocalCommunicator]]  # rank -> local index -> communicator


@dataclass
class Instance:
    """One real communicator: its members' global ranks (-1: unknown) and the local index each gave it."""

    id: str
    members: list[int]
    local_index: dict[int, int] = field(default_factory=dict)  # by rank
    told: bool = False  # one member knew them all

    @property
    def size(self) -> int:
        return len(self.members)


def join_instances(announced: Announced, world: int) -> dict[str, Instance]:
    """The communicators of the job by id. Members that never announced themselves are inferred where the
    known ones tell: they are the whole world, or evenly spaced, as are those of the same local index."""
    instances: dict[str, Instance] = {}
    for rank in sorted(announced):
        for index, local in announced[rank].items():
            instance = instances.get(local.id)
            if instance is None:  # not setdefault: a list as long as the world for every rank of a world
                instance = instances[local.id] = Instance(local.id, [-1] * local.size)
            if local.members and not instance.told:
                instance.members, instance.told = list(local.members), True
            if local.size != instance.size or instance.members[local.rank] not in (-1, rank):
                raise TraceError(
                    f"communicator {local.id}: rank {rank} says it is {local.rank} of {local.size}, but its "
                    f"{instance.size} members are {instance.members}"
                )
            instance.members[local.rank] = rank
            instance.local_index[rank] = index
    _infer_members(list(instances.values()), world)
    return instances


def _infer_members(instances: list[Instance], world: int) -> None:
    strides: dict[tuple[int, int], int] = {}
    for instance in instances:
        stride = _stride(instance, world)
        if stride is not None:
            for index in instance.local_index.values():
                strides.setdefault((index, instance.size), stride)
    for instance in instances:
        if -1 not in instance.members:
            continue
        keys = [(index, instance.size) for index in instance.local_index.values()]
        stride = _stride(instance, world) or next((strides[key] for key in keys if key in strides), None)
        if stride is not None:
            _fill(instance, stride, world)


def _stride(instance: Instance, world: int) -> int | None:
    """What lies between neighbours, when all known members agree on it."""
    if instance.size == world:
        return 1
    known = [(place, member) for place, member in enumerate(instance.members) if member >= 0]
    steps = {(b - a) / (q - p) for (p, a), (q, b) in pairwise(known)}
    if len(steps) != 1:
        return None
    step = steps.pop()
    return int(step) if step > 0 and step == int(step) else None


def _fill(instance: Instance, stride: int, world: int) -> None:
    place, member = next((p, m) for p, m in enumerate(instance.members) if m >= 0)
    guess = [member + (q - place) * stride for q in range(instance.size)]
    fits = all(0 <= g < world and m in (-1, g) for g, m in zip(guess, instance.members, strict=True))
    if fits:
        instance.members = guess


@dataclass
class _Fold:
    instance: Instance
    classes: tuple[int, ...]  # of the members, sorted, -1 unknown
    local_index: dict[int, int]  # by class
    instances: list[tuple[int, ...]] = field(default_factory=list)  # members of each that it stands for

    def strangeness(self, other: _Fold) -> bool:
        """No class announced both: that they are one is then concluded from their members alone."""
        return self.local_index.keys().isdisjoint(other.local_index)


def fold(
    instances: dict[str, Instance], representatives: list[int], class_of_rank: NDArray[np.int32]
) -> tuple[list[Communicator], dict[tuple[int, int], int]]:
    """(merged communicators, (class, local index) -> merged communicator).

    Two instances are one when their members fall into the same classes and members of a class gave
    them the same local index: each member of the class then makes the same calls on its own instance.
    """
    folds: list[_Fold] = []
    by_shape: dict[tuple[int, ...], list[_Fold]] = {}
    own = set(representatives)
    # Instances of the representatives come first: they number the folds.
    for instance in sorted(instances.values(), key=lambda item: own.isdisjoint(item.local_index)):
        candidate = _as_fold(instance, class_of_rank)
        alike = by_shape.setdefault(candidate.classes, [])
        match = min(
            (other for other in alike if _compatible(other, candidate)),
            key=candidate.strangeness,
            default=None,
        )
        if match is None:
            match = candidate
            alike.append(match)
            folds.append(match)
        match.local_index |= candidate.local_index
        match.instances.append(tuple(instance.members))
    communicators = [_communicator(number, item) for number, item in enumerate(folds)]
    lookup = {
        (rank_class, index): n
        for n, item in enumerate(folds)
        for rank_class, index in item.local_index.items()
    }
    return communicators, lookup


def _as_fold(instance: Instance, class_of_rank: NDArray[np.int32]) -> _Fold:
    classes = tuple(sorted(int(class_of_rank[m]) if m >= 0 else -1 for m in instance.members))
    local = {
        int(class_of_rank[rank]): index for rank, index in sorted(instance.local_index.items(), reverse=True)
    }
    return _Fold(instance, classes, local)


def _compatible(one: _Fold, other: _Fold) -> bool:
    shared = one.local_index.keys() & other.local_index.keys()
    return all(one.local_index[key] == other.local_index[key] for key in shared)


def _communicator(number: int, item: _Fold) -> Communicator:
    classes = tuple(sorted(set(item.classes) - {-1}))
    return Communicator(
        number, tuple(item.instance.members), classes, len(item.instances), tuple(item.instances)
    )
