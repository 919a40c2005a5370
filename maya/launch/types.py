"""What is launched, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from maya.launch.roles import Role
from maya.launch.stages import Between
from maya.launch.topology import Topology

Ranks = Literal["auto", "all", "dedup", "representatives"]
# Worlds up to this size are started whole: comparing ranks that all run costs little more than inferring.
SMALL_WORLD = 16
# An exception of these is the script's own doing; others (a full disk, a lost connection, a module that is installed
# next) may not come again.
_DETERMINISTIC = re.compile(
    r"^(AssertionError|AttributeError|IndexError|KeyError|NameError"
    r"|NotImplementedError|RuntimeError|SyntaxError|TypeError|ValueError|ZeroDivisionError)(:|$)"
)


@dataclass(frozen=True)
class Job:
    """A script and the world it runs in. `argv` is what follows the script's name."""

    script: str  # a path, or with `module` a module name
    argv: tuple[str, ...] = ()
    world: int = 1
    module: bool = False  # python -m
    environment: dict[str, str] = field(default_factory=dict)  # added to the user's own
    iterations: int | None = None  # steady iterations to see at the least; None: found
    # all: every rank runs to the end; dedup: ranks of equal work are merged after their first iteration;
    # representatives: only the ranks whose work stands for that of all are started.
    ranks: Ranks = "auto"
    timeout_s: float = 600.0

    @property
    def command(self) -> tuple[str, ...]:
        """What Python runs."""
        return (*(("-m",) if self.module else ()), self.script, *self.argv)

    @property
    def launching(self) -> Ranks:
        """`ranks`, with "auto" resolved by the size of the world."""
        if self.ranks == "representatives" and self.world == 1:
            return "dedup"  # nobody to stand for
        if self.ranks != "auto":
            return self.ranks
        return "representatives" if self.world > SMALL_WORLD else "dedup"

    def launching_more(self) -> Job | None:
        """The same job with the next larger choice of ranks; None when it starts all, or they would be too many."""
        larger: dict[Ranks, Ranks] = {"representatives": "dedup", "dedup": "all"}
        ranks = larger.get(self.launching)
        return replace(self, ranks=ranks) if ranks and self.world <= 4 * SMALL_WORLD else None


@dataclass(frozen=True)
class Known:
    """What earlier jobs of the same script told."""

    first_iteration_tells: bool = False  # which ranks work alike, and checks agreed
    alike_along: Set[Role] = frozenset()  # axes along which all ranks do
    checks_fail: bool = False  # ranks that are started only to be compared fail for want of their neighbours


@dataclass(frozen=True)
class OutOfMemory:
    rank: int
    requested_bytes: int
    free_bytes: int
    capacity_bytes: int
    message: str  # PyTorch's own, or NCCL's

    @property
    def shortfall_bytes(self) -> int:
        return self.requested_bytes - self.free_bytes


@dataclass(frozen=True)
class Run:
    """The outcome of one launch: rank traces in `directory` (docs/trace-format.md) and how it ended."""

    status: Literal["traced", "oom", "failed"]
    directory: Path
    world: int
    launched: int
    representative_of: tuple[int, ...]  # [world]: the rank whose trace stands for each rank
    steady: tuple[int, int] = (0, 0)  # step ordinals (first, last] of the steady iterations, on all ranks
    period: int = 1  # steps per iteration
    silent: tuple[int, int] = (0, 0)  # likewise of those after them in which operators were not observed
    alike: bool = True  # the steady ones; False: no two were, in as many as were run
    out_of_memory: OutOfMemory | None = None
    traceback: str = ""  # the script's own, when failed
    failed_rank: int | None = None
    host_memory_ran_out: bool = False  # this machine's, not a device's: more ranks would take more still
    refused: tuple[str, ...] = ()  # of that rank, "library.function": what it called that is not emulated
    seconds: dict[str, float] = field(default_factory=dict)  # launch, emulate
    notes: tuple[str, ...] = ()
    first_iteration_tells: bool = False  # ranks were alike in it if and only if they were later on
    # Axes along which ranks were compared: whether all did nearly the same.
    alike_along: Mapping[Role, bool] = field(default_factory=dict)
    repeated: bool = False  # with more ranks, because the script failed without them
    checked: int = 0  # of those launched, ranks that were only compared with what had been inferred of them
    check_failed: bool = False  # `failed_rank` is one of them
    topology: Topology | None = None  # of the world, when not every rank was started
    pace_ns: int | None = None  # what maya/launch/pace.py measured on this machine meanwhile
    # Ranks in `representative_of` that were not started, and whose calls theirs lie between.
    inferred: dict[int, Between] = field(default_factory=dict)

    @property
    def by_chance(self) -> bool:
        """Whether it failed as another launch may not: a time limit, a killed process, a full disk."""
        own = self.failed_rank is not None and _DETERMINISTIC.match(self.error)
        return self.status == "failed" and not own

    @property
    def error(self) -> str:
        """The last line of the script's traceback, the first of what else ended it."""
        lines = self.traceback.strip().splitlines() or [""]
        return lines[-1 if any(line.startswith("Traceback (") for line in lines) else 0]

    @property
    def merged(self) -> bool:
        return len(set(self.representative_of)) < self.world

    def with_note(self, note: str) -> Run:
        return replace(self, notes=(*self.notes, note))

    def with_seconds(self, seconds: dict[str, float]) -> Run:
        return replace(self, seconds=seconds)
