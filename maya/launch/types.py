"""What is launched, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Job:
    """A script and the world it runs in. `argv` is what follows the script's name."""

    script: str  # a path, or with `module` a module name
    argv: tuple[str, ...] = ()
    world: int = 1
    module: bool = False  # python -m
    environment: dict[str, str] = field(default_factory=dict)  # added to the user's own
    iterations: int | None = None  # steady iterations to see; None: found
    deduplicate: bool = True
    timeout_s: float = 600.0

    def keeping_all_ranks(self) -> Job:
        return replace(self, deduplicate=False)


@dataclass(frozen=True)
class OutOfMemory:
    rank: int
    requested_bytes: int
    free_bytes: int
    capacity_bytes: int
    message: str  # PyTorch's own

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
    out_of_memory: OutOfMemory | None = None
    traceback: str = ""  # the script's own, when failed
    failed_rank: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # launch, emulate
    notes: tuple[str, ...] = ()

    @property
    def deduplicated(self) -> bool:
        return len(set(self.representative_of)) < self.world

    def with_note(self, note: str) -> Run:
        return replace(self, notes=(*self.notes, note))

    def with_seconds(self, seconds: dict[str, float]) -> Run:
        return replace(self, seconds=seconds)
