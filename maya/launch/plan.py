"""Which ranks of a job are started, and which of them stand for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from maya.launch.observed import Observed
from maya.launch.roles import Role
from maya.launch.stages import Between
from maya.launch.steady import classes
from maya.launch.topology import Topology


class Plan(Protocol):
    """`seen` holds what all ranks of a batch did when the next batch is asked for."""

    compared_at: int  # optimizer steps after which ranks are compared by the iteration that has just ended
    merges: bool  # whether ranks of equal work end
    seen: dict[int, Observed]
    checked: list[int]  # ranks that were started only to compare them with what was inferred
    contradicting: list[int]  # those of them that did other work
    notes: list[str]
    alike_along: Mapping[Role, bool]  # axes along which ranks were compared: whether all did nearly the same
    topology: Topology | None  # known when not every rank is started

    @property
    def inferred(self) -> dict[int, Between]:
        """Those that stand for others without having been started, and whose calls theirs lie between."""

    def start_inferred(self) -> list[int]:
        """Those again, from now on to be started."""

    def batches(self) -> Iterator[list[int]]:
        """Ranks to start together. Ends when every rank has a representative among those started."""

    def nearest(self, started: list[int]) -> NDArray[np.int64] | None:
        """[world] Who answers for ranks that are not started; None: everybody is."""

    def representative_of(self) -> tuple[int, ...]:
        """[world] A started rank for each."""


class EveryRank:
    """All ranks at once; those of equal first iterations are one class, if they are to be merged."""

    compared_at = 1

    def __init__(self, world: int, merge: bool) -> None:
        self.world = world
        self.merges = merge
        self.seen: dict[int, Observed] = {}
        self.checked: list[int] = []
        self.contradicting: list[int] = []
        self.notes: list[str] = []
        self.alike_along: Mapping[Role, bool] = {}
        self.topology: Topology | None = None

        self.inferred: dict[int, Between] = {}

    def start_inferred(self) -> list[int]:
        return []

    def batches(self) -> Iterator[list[int]]:
        yield list(range(self.world))

    def nearest(self, started: list[int]) -> None:
        return None

    def representative_of(self) -> tuple[int, ...]:
        if not self.merges:
            return tuple(range(self.world))
        return tuple(classes([self.seen[rank].hash for rank in range(self.world)]))
