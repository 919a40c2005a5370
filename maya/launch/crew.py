"""The ranks of one running job: which are started, run, have finished, or were ended for one of equal work."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from maya.launch.connection import Connection
from maya.launch.control import Control, RankState
from maya.launch.placement import Placement
from maya.launch.plan import Plan

AT_ONCE = 3  # ranks a core that work at a time, of those that may run apart


class Crew:
    """`start(rank, core)` asks the fork server for a rank."""

    def __init__(
        self,
        world: int,
        control: Control,
        connection: Connection,
        plan: Plan,
        start: Callable[[int, int], None],
        cores: tuple[int, ...],
    ) -> None:
        self.world = world
        self.control = control
        self.connection = connection
        self.plan = plan
        self.started: list[int] = []
        self.running: set[int] = set()  # started, neither ended by us nor by themselves
        self.finished: set[int] = set()
        self.representative = list(range(world))
        self._start = start
        self._at_once = AT_ONCE * len(cores)
        self._placement = Placement(cores)
        self._queue: list[int] = []

    def enlist(self, ranks: list[int]) -> None:
        self._queue += ranks
        self.start_more()

    def start_more(self) -> None:
        """Starts what waits for its turn, as ranks before it pause or end."""
        while self._queue:
            working = self._working()
            if self.plan.topology is not None and len(working) >= self._at_once:
                return
            rank = self._queue.pop(0)
            core = self._placement.place(rank, working)
            self.started.append(rank)
            self.running.add(rank)
            if (nearest := self.plan.nearest(self.started)) is not None:
                self.control.answer_for_absent(nearest)
            self.control.start(rank)
            self._start(rank, core)

    def _working(self) -> list[int]:
        return [rank for rank in self.running if self.control.state(rank) is not RankState.PAUSED]

    @property
    def pids(self) -> dict[int, int]:
        """Of the running ranks whose processes live, by rank."""
        living = self.connection.living
        return {rank: living[name] for rank in self.running if (name := f"rank {rank}") in living}

    @property
    def all_paused(self) -> bool:
        """Every rank that was asked for waits at the step limit."""
        return not self._queue and all(
            self.control.state(rank) is RankState.PAUSED
            and self.control.steps(rank) >= self.control.step_limit
            for rank in self.running
        )

    def end(self, ranks: Iterable[int]) -> None:
        """Ends ranks; their representatives answer for them from now on, and have the cores for themselves."""
        ended = sorted(set(ranks) & (self.running | self.finished))
        for rank in ended:
            self.control.end(rank, self.representative[rank])
        self.running -= set(ended)
        self.finished -= set(ended)
        self.connection.kill([f"rank {rank}" for rank in ended])
        self._placement.spread(self.pids)

    def merge(self, representative_of: Iterable[int]) -> None:
        """Ends all but the ranks that stand for others; who ended before has its new representative's answers."""
        self.representative = list(representative_of)
        redundant = [rank for rank, other in enumerate(self.representative) if rank != other]
        for rank in redundant:
            if self.control.state(rank) is RankState.ENDED:
                self.control.end(rank, self.representative[rank])
        self.end(redundant)

    def left(self, rank: int) -> bool:
        """A rank's process is gone. False when that was expected."""
        if rank not in self.running:
            return False
        self.running.discard(rank)
        self.control.exited(rank)
        return True
