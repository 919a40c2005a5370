"""Watches a running job: merges ranks after their first iteration, sees iterations repeat, tells how it ended."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maya.launch.connection import Connection
from maya.launch.control import SEGMENT_RING, Control, RankState
from maya.launch.steady import classes, steady_period
from maya.launch.types import Job, OutOfMemory, Run

POLL_SECONDS = 0.002
HANG_SECONDS = 20.0  # no rank makes progress or uses its core for so long: they wait for each other
STEADY_ITERATIONS = 2
LAST_STEP = SEGMENT_RING - 1  # a script that has not repeated by then does not

# maya::TraceHeader (emulator/core/trace_format.h), as far as it is needed here.
TRACE_HEADER = np.dtype(
    [
        ("magic", "S8"), ("version", "<u4"), ("rank", "<u4"), ("world", "<u4"), ("local_rank", "<u4"),
        ("records", "<u8"), ("capacity", "<u8"), ("context", "<u8"), ("reserved", "<u8"), ("peak", "<u8"),
        ("oom_count", "<u8"), ("oom_requested", "<u8"), ("oom_free", "<u8"), ("steps", "<u8"), ("refused", "<u8"),
    ]
)  # fmt: skip


@dataclass
class _Progress:
    """When something last moved, for finding a hang."""

    seen: tuple[object, ...] = ()
    since: float = 0.0

    def stalled(self, now: tuple[object, ...]) -> bool:
        if now != self.seen:
            self.seen, self.since = now, time.monotonic()
        return time.monotonic() - self.since > HANG_SECONDS


class Watch:
    """One job from its first rank's start to its last rank's end."""

    def __init__(self, job: Job, control: Control, directory: Path, connection: Connection) -> None:
        self.job = job
        self.control = control
        self.directory = directory
        self.connection = connection
        self.representative = list(range(job.world))
        self.running = set(range(job.world))  # started, neither ended by us nor by themselves
        self.finished: set[int] = set()
        self.wanted = job.iterations or STEADY_ITERATIONS
        self.progress = _Progress(since=time.monotonic())
        control.step_limit = 1

    def until_done(self, started: float) -> Run:
        launched = time.perf_counter()
        deadline = time.monotonic() + self.job.timeout_s
        while True:
            run = self._turn(deadline)
            if run is not None:
                seconds = {"launch": launched - started, "emulate": time.perf_counter() - launched}
                return run.with_seconds(seconds)

    def _turn(self, deadline: float) -> Run | None:
        for answer in self.connection.answers(POLL_SECONDS):
            if "ended" in answer and answer["ended"].startswith("rank ") and (run := self._left(answer)):
                return run
        if mismatch := self.control.mismatch:
            return self._failed(None, f"ranks do not agree on what they communicate:\n{mismatch}")
        if not self.running:
            return self._traced_to_the_end()
        if time.monotonic() > deadline:
            return self._failed(
                None, f"no steady iteration within {self.job.timeout_s:.0f} s\n{self._whereabouts()}"
            )
        if self._all_paused():
            return self._at_step()
        if self.progress.stalled(self._activity()):
            return self._failed(
                None, f"the ranks have waited for each other for {HANG_SECONDS:.0f} s\n{self._whereabouts()}"
            )
        return None

    def _all_paused(self) -> bool:
        return all(
            self.control.state(rank) is RankState.PAUSED
            and self.control.steps(rank) >= self.control.step_limit
            for rank in self.running
        )

    def _at_step(self) -> Run | None:
        """Every running rank waits at the same optimizer step."""
        steps = self.control.step_limit
        if steps == 1 and self.job.deduplicate and not self.finished:
            self._deduplicate()
        hashes = [self.control.segment_hashes(rank) for rank in sorted(self.running)]
        period = steady_period(hashes, self.wanted)
        if period is not None:
            return self._traced((steps - period * self.wanted, steps), period)
        if steps >= LAST_STEP:
            note = f"no two iterations were alike in {steps} optimizer steps: the last one is taken for all"
            return self._traced((steps - 1, steps), 1, note)
        self.control.step_limit = steps + 1
        return None

    def _deduplicate(self) -> None:
        """Ends every rank whose first iteration was the same, device call for device call, as a lower one's."""
        first = [self.control.segment_hashes(rank)[0] for rank in range(self.job.world)]
        self.representative = classes(first)
        ended = [rank for rank, other in enumerate(self.representative) if rank != other]
        for rank in ended:
            self.control.end(rank, self.representative[rank])
        self.running -= set(ended)
        self.connection.kill([f"rank {rank}" for rank in ended])

    def _left(self, answer: dict[str, Any]) -> Run | None:
        """A rank's process is gone: by our hand, at its script's end, or by a failure."""
        rank = int(answer["ended"].removeprefix("rank "))
        if rank not in self.running:
            return None
        self.running.discard(rank)
        self.control.exited(rank)
        path = self.directory / f"rank-{rank:05d}.outcome"
        if not path.exists():
            return self._failed(rank, f"the process ended with status {answer['code']}\n{self._stderr(rank)}")
        outcome = json.loads(path.read_text())
        if outcome["status"] == "oom":
            return self._out_of_memory(rank, outcome)
        if outcome["status"] == "raised":
            return self._failed(rank, outcome["traceback"] or f"{outcome['message']}\n{self._stderr(rank)}")
        self.finished.add(rank)
        return None

    def _traced_to_the_end(self) -> Run:
        """The script ended by itself before its iterations repeated often enough."""
        survivors = sorted(self.finished)
        steps = min(self.control.steps(rank) for rank in survivors)
        if steps == 0:
            return self._run(
                "traced", notes=("the script took no optimizer step: its whole run is one iteration",)
            )
        hashes = [self.control.segment_hashes(rank)[:steps] for rank in survivors]
        for wanted in range(self.wanted - 1, 0, -1):
            if steps > 1 and (period := steady_period(hashes, wanted)) is not None:
                note = f"the script ended after {steps} optimizer steps: its last iteration stands for all"
                return self._traced((steps - period * wanted, steps), period, note)
        note = "the script ended after one optimizer step, so its initialisation is part of the iteration"
        return self._traced((0, steps), steps, note)

    def _traced(self, steady: tuple[int, int], period: int, note: str = "") -> Run:
        return self._run("traced", steady=steady, period=period, notes=(note,) if note else ())

    def _failed(self, rank: int | None, traceback: str) -> Run:
        return self._run("failed", failed_rank=rank, traceback=traceback)

    def _out_of_memory(self, rank: int, outcome: dict[str, Any]) -> Run:
        header = self._header(rank)
        oom = OutOfMemory(
            rank=rank,
            requested_bytes=int(header["oom_requested"]),
            free_bytes=int(header["oom_free"]),
            capacity_bytes=int(header["capacity"]),
            message=outcome["message"],
        )
        return self._run("oom", out_of_memory=oom, failed_rank=rank, traceback=outcome["traceback"])

    def _run(self, status: Any, **fields: Any) -> Run:
        return Run(
            status=status,
            directory=self.directory,
            world=self.job.world,
            launched=self.job.world,
            representative_of=tuple(self.representative),
            **fields,
        )

    def _header(self, rank: int) -> Any:
        return np.fromfile(self.directory / f"rank-{rank:05d}.trace", TRACE_HEADER, 1)[0]

    def _stderr(self, rank: int) -> str:
        path = self.directory / f"rank-{rank:05d}.stderr"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _whereabouts(self) -> str:
        lines = []
        for rank in sorted(self.running):
            state = self.control.state(rank)
            site = f" for {self.control.wait_site(rank)}" if state is RankState.WAITING else ""
            lines.append(
                f"  rank {rank}: {state.name.lower()}{site}, {self.control.steps(rank)} optimizer steps"
            )
        return "\n".join(lines)

    def _activity(self) -> tuple[object, ...]:
        """Changes while any rank works: steps, what it waits for, or CPU time while one does not wait."""
        ranks = sorted(self.running)
        states = [self.control.state(rank) for rank in ranks]
        places = tuple((self.control.steps(rank), self.control.wait_site(rank)) for rank in ranks)
        if all(state in (RankState.WAITING, RankState.PAUSED) for state in states):
            return (*states, *places)  # a waiting rank looks for its message now and then, at some CPU time
        ticks = sum(_cpu_ticks(pid) for name, pid in self.connection.living.items() if name != "store")
        return (*states, *places, ticks // 10)


def _cpu_ticks(pid: int) -> int:
    """User and system time of a process and its ended children, in clock ticks (proc(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15]) * 100 // os.sysconf("SC_CLK_TCK")
