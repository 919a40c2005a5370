"""Watches a running job: starts its ranks, merges those of equal work, sees iterations repeat, tells how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from maya.launch import stacks
from maya.launch.connection import Connection
from maya.launch.control import SEGMENT_RING, Control, RankState
from maya.launch.crew import Crew
from maya.launch.graphs import GRAPH_STEPS, replayed, speaks_of_graphs
from maya.launch.layout import HEADER, rank_path
from maya.launch.machine import (
    cpu_ticks,
    cpu_ticks_of_started,
    disk_bytes,
    how_it_ended,
    memory_is_short,
    require_room,
    rests,
    was_killed,
    who_holds_memory,
)
from maya.launch.observed import Observed, observe, told_before_the_end
from maya.launch.output import Output
from maya.launch.plan import Plan
from maya.launch.stages import Between, hashes_in_line, telling
from maya.launch.steady import (
    classes,
    longest_period,
    repetitions,
    seen_at_most,
    steady_period,
    steady_steps,
    whole_iterations,
)
from maya.launch.types import Job, OutOfMemory, Run

# Looks at what ranks share: so far apart, or a hundredth of what the ranks have worked since they last rested. Every
# 2 ms a watch takes 6 % of a core from them.
POLL_SECONDS, POLL_SHARE, LONGEST_POLL_SECONDS = 0.002, 0.01, 0.1
LOOK_SECONDS = 0.5  # between looks at whether ranks still work
HANG_SECONDS = 20.0  # no rank makes progress or uses its core for so long: they wait for each other
# A waiting rank looks for its message 20 times a second (emulator/nccl/exchange.cpp), and rests in between. In the
# second half of that time each has done so, but on a machine so crowded that a message may lie there unseen; there
# they have so many times as long.
LOOKS, CROWDED = 5, 6
STEADY_ITERATIONS = 2
LONG_ITERATION = 50_000  # device calls, from which a rank takes many seconds for it
SHORT = (
    4  # times so many calls as a second iteration are in the first, at the most, where that stands for all
)
MERGED_AGAIN_AT = 2  # optimizer steps
# An interpreter's first iterations are slower than those of a job that runs for days, few calls tell little of what
# each costs undisturbed, and observing operators costs more than can be told apart: iterations that have come to repeat
# are repeated without, up to so many steps, for so long or until a rank has made so many device calls after its first.
WARM_STEPS = 9
WARM_SECONDS, MOST_WARM_SECONDS = 1.0, 10.0
WARM_CALLS = 30_000
ROLLOUT_SECONDS = 2.0  # from the first step, in which what came before it is waited for to come again
LAST_STEP = SEGMENT_RING - 1  # a script that has not repeated by then does not
SEVERAL_UNLIKE = 4  # steps of a script that ended and never repeated, of half of which the mean is taken


@dataclass
class _Progress:
    """When something last moved, for finding a hang. `activity` costs a file read a rank: it is seldom asked. `rested`:
    how often each waiting rank has."""

    activity: Callable[[], tuple[object, ...]]
    rested: Callable[[], tuple[int, ...]]
    since: float
    seen: tuple[object, ...] = ()
    looked: float = 0.0
    rested_before: tuple[int, ...] | None = None

    @property
    def stalled(self) -> bool:
        now = time.monotonic()
        if now - self.looked < LOOK_SECONDS:
            return False
        self.looked = now
        if (seen := self.activity()) != self.seen:
            self.seen, self.since, self.rested_before = seen, now, None
        still_for = now - self.since
        if still_for > HANG_SECONDS / 2 and self.rested_before is None:
            self.rested_before = self.rested()
        return still_for > CROWDED * HANG_SECONDS or (still_for > HANG_SECONDS and self._all_looked())

    def _all_looked(self) -> bool:
        before = self.rested_before or ()
        return all(now - then >= LOOKS for now, then in zip(self.rested(), before, strict=False))


class Watch:
    """One job from its first rank's start to its last rank's end."""

    def __init__(self, job: Job, crew: Crew, plan: Plan, directory: Path) -> None:
        self.job = job
        self.crew = crew
        self.plan = plan
        self.control: Control = crew.control
        self.connection: Connection = crew.connection
        self.directory = directory
        self.wanted = job.iterations or STEADY_ITERATIONS
        self.graphs = speaks_of_graphs(job)
        self.output = Output(directory)
        self.progress = _Progress(self._activity, self._rested, since=time.monotonic())
        self.ticks = (0, 0)
        self.control.step_limit = 1
        self.batches = plan.batches()
        self.planned = False  # every rank has its representative
        self.first_iteration_tells = False
        self.stepped_at: float | None = None  # time.monotonic(), of the first step
        self.rested_at = (0, time.monotonic())  # steps, and when
        self.resumed_at = time.monotonic()  # after whatever rest
        self.steady: tuple[tuple[int, int], int] | None = (
            None  # steps that repeat, their period: now in silence
        )

    def until_done(self, started: float) -> Run:
        launched = time.perf_counter()
        self.crew.enlist(next(self.batches))
        deadline = time.monotonic() + self.job.timeout_s
        while True:
            run = self._turn(deadline)
            if run is not None:
                seconds = {"launch": launched - started, "emulate": time.perf_counter() - launched}
                return run.with_seconds(seconds)

    def _turn(self, deadline: float) -> Run | None:
        for answer in self.connection.answers(self._poll_seconds()):
            if "ended" in answer and answer["ended"].startswith("rank ") and (run := self._left(answer)):
                return run
        if mismatch := self.control.mismatch:
            return self._failed(None, f"ranks do not agree on what they communicate:\n{mismatch}")
        self.crew.start_more()
        self.output.trim()
        if time.monotonic() > deadline:
            return self._stopped(f"no steady iteration within {self.job.timeout_s:.0f} s")
        if self.crew.all_paused:
            run = self._all_at_rest()
            self.resumed_at = time.monotonic()
            return run
        if self.progress.stalled:
            waited = any(self.control.state(rank) is RankState.WAITING for rank in self.crew.running)
            what = "the ranks have waited for each other" if waited else "no rank has used its core"
            return self._stopped(f"{what} for {HANG_SECONDS:.0f} s")
        return None

    def _stopped(self, what: str) -> Run:
        """What was seen before the silence is enough, whatever comes of that."""
        return self._silent_until(self.steady[0][1]) if self.steady else self._came_to_nothing(what)

    def _poll_seconds(self) -> float:
        worked = time.monotonic() - self.resumed_at
        return min(max(POLL_SECONDS, POLL_SHARE * worked), LONGEST_POLL_SECONDS)

    def _all_at_rest(self) -> Run | None:
        """Every rank waits at the same optimizer step, or has finished."""
        if not self.planned and not self._plan_on():
            return None
        return self._at_step() if self.crew.running else self._traced_to_the_end()

    def _plan_on(self) -> bool:
        """Starts the plan's next batch; True when there is none and redundant ranks have ended."""
        crew = self.crew
        if self._compared_later():
            return False
        for rank in sorted(crew.running | crew.finished):
            if rank not in self.plan.seen:
                self.plan.seen[rank] = self._observed(rank)
        batch = next(self.batches, None)
        if batch is not None:
            crew.enlist(batch)
            return False
        self.planned = True
        self.first_iteration_tells = self._first_iteration_tells()
        if self.plan.topology is not None or not crew.finished:
            crew.merge(self.plan.representative_of())
        return True

    def _compared_later(self) -> bool:
        """Whether ranks go on to a later iteration to be compared by, which the first ranks to rest decide for all."""
        if self.control.step_limit >= self.plan.compared_at or not self.crew.running:
            return False
        seen = [self._observed(rank) for rank in sorted(self.crew.running | self.crew.finished)]
        if len({each.hash for each in seen}) == 1 and seen[0].calls >= LONG_ITERATION:
            self.plan.compared_at = 1
            return False
        self.control.step_limit = self.plan.compared_at
        return True

    def _observed(self, rank: int) -> Observed:
        hashes = self.control.segment_hashes(rank)
        return observe(self.directory, rank, hashes[-1] if hashes else None)

    def _first_iteration_tells(self) -> bool:
        """Whether the ranks now running were alike in their first iteration if and only if they are in their last,
        and all as inferred."""
        hashes = [self.control.segment_hashes(rank) for rank in sorted(self.crew.running)]
        if not all(hashes) or self.plan.contradicting:
            return False
        return classes([h[0] for h in hashes]) == classes([h[-1] for h in hashes])

    def _at_step(self) -> Run | None:
        """Every running rank waits at the same optimizer step."""
        steps = self.control.step_limit
        if self.steady is not None:
            return self._silent_until(steps)
        self.stepped_at = self.stepped_at or time.monotonic()
        if steps == MERGED_AGAIN_AT and self.plan.merges:
            self._merge_again()
        hashes = [self.control.segment_hashes(rank) for rank in sorted(self.crew.running)]
        if steps >= 2 and not self._stages_in_line():
            self.planned = False
            self.crew.enlist(self.plan.start_inferred())
            return None
        if steps == 2 and (calls := self._calls_if_long()):
            note = f"an iteration makes {calls:,} device calls: the second is taken as steady without a third"
            return self._enough((1, 2), 1, f"{note}; --iterations 2 runs that")
        if self._awaits_graph(steps):
            self.control.step_limit = steps + 1
            return None
        period = 1 if steps == 2 and self._second_tells() else steady_period(hashes, max(self.wanted, 2))
        silence = period is not None and self._may_be_silent()
        if period is not None and (silence or steps + period > WARM_STEPS or self._warm(steps)):
            period = self._with_rollout(hashes, period)
            if period is not None:
                steady = steady_steps(hashes, period)
                return self._go_on_in_silence(steady, period) if silence else self._enough(steady, period)
        if steps >= LAST_STEP:
            return self._at_last_step(hashes)
        self.control.step_limit = steps + (self._steps_on(steps, period, counted=steps) if period else 1)
        self.rested_at = (steps, time.monotonic())
        return None

    def _may_be_silent(self) -> bool:
        """Steps are told where nobody observes operators, as far as optimizers are known."""
        return all(self._observed(rank).named for rank in self.crew.running)

    def _go_on_in_silence(self, steady: tuple[int, int], period: int) -> Run | None:
        """Repeats what repeats, without observing operators: what that costs is then in no call's host time. Where it
        would take too long what was seen is enough."""
        steps = steady[1]
        on = self._steps_on(steps, period, counted=1)
        if self._passed + self._a_step(steps) * period > MOST_WARM_SECONDS or steps + on > LAST_STEP:
            return self._enough(steady, period)
        self.steady = steady, period
        self.control.observe_no_more(steps)
        self.control.step_limit = steps + on
        return None

    def _silent_until(self, steps: int) -> Run:
        """`steps`: those of the ranks that still run."""
        assert self.steady is not None
        (_, last), period = self.steady
        made = min([steps, *(self.control.steps(rank) for rank in self.crew.finished)])
        until = last + (made - last) // period * period
        return replace(self._enough(*self.steady), silent=(last, until))

    def _at_last_step(self, hashes: Sequence[Sequence[int]]) -> Run:
        """As many iterations as were alike, if fewer than were asked for; the last if no two were."""
        steps = len(hashes[0])
        seen = seen_at_most(hashes, self.wanted)
        if seen is None or seen[1] < 2:
            return replace(self._enough((steps - 1, steps), 1), alike=False)
        period = seen[0]
        steady = steady_steps(hashes, period)
        note = f"of {self.wanted} iterations asked for {steady[1] - steady[0]} were seen in {steps} optimizer steps"
        return self._enough(steady, period, note)

    def _awaits_graph(self, steps: int) -> bool:
        return (
            self.graphs is not None
            and steps < GRAPH_STEPS
            and not replayed(self.directory, self.crew.running)
        )

    def _enough(self, steady: tuple[int, int], period: int, note: str = "") -> Run:
        """The script is ended here; without the graph that it speaks of, perhaps."""
        run = self._traced(steady, period, note)
        if self.graphs is None or replayed(self.directory, self.crew.running):
            return run
        return run.with_note(
            f"the script speaks of CUDA graphs (its {self.graphs}) but replayed none in its first "
            f"{steady[1]} optimizer steps: it is predicted without"
        )

    def _with_rollout(self, hashes: Sequence[Sequence[int]], period: int) -> int | None:
        """`period`, or the longer one of a rollout like that before the first step; None while one may come again."""
        steps = len(hashes[0])
        if self.job.iterations is not None or not self._rolls_out:
            return period
        longest = longest_period(hashes) or period
        if longest > 1 and longest * (repetitions(hashes, longest) + 1) >= steps:  # all of them but the first
            return longest
        late = self._passed > ROLLOUT_SECONDS
        return period if late or steps >= LAST_STEP else None

    @cached_property
    def _rolls_out(self) -> bool:
        return any(self._observed(rank).rolls_out() for rank in self.crew.running)

    @property
    def _passed(self) -> float:
        """Seconds since the first step."""
        assert self.stepped_at is not None
        return time.monotonic() - self.stepped_at

    def _warm(self, steps: int) -> bool:
        passed = self._passed
        enough = passed >= WARM_SECONDS and steps >= self._steps_of_enough_calls()
        return enough or passed >= MOST_WARM_SECONDS

    def _steps_on(self, steps: int, period: int, counted: int) -> int:
        """Optimizer steps to run without a rest, after which caches are cold; `counted` of those before need not come
        again for their calls to be enough."""
        passed, a_step = self._passed, self._a_step(steps)
        least, most = (int((seconds - passed) / a_step) for seconds in (WARM_SECONDS, MOST_WARM_SECONDS))
        on = max(least, min(self._steps_of_enough_calls() - counted, most))
        return whole_iterations(min(on, WARM_STEPS - steps), period)

    def _a_step(self, steps: int) -> float:
        """Seconds of one since the last rest."""
        before, since = self.rested_at
        return (time.monotonic() - since) / (steps - before)

    def _steps_of_enough_calls(self) -> int:
        calls = max(self._observed(rank).calls for rank in self.crew.running)
        return 1 + -(-WARM_CALLS // max(calls, 1))

    def _stages_in_line(self) -> bool:
        """Whether what was inferred of stages that did not run holds for the iteration that has just ended."""
        lines = self._inferred().values()
        blocks = {rank: self._observed(rank).blocks() for rank in telling(lines)}
        return all(hashes_in_line(blocks[line.lower], blocks[line.upper], line.share) for line in lines)

    def _second_tells(self) -> bool:
        """Whether the second iteration is taken as steady without a third. One that is short beside the first may be of
        an optimizer more than the script's jobs had before."""
        if self.wanted > 1:
            return False
        seen = (self._observed(rank) for rank in self.crew.running)
        return all(SHORT * each.calls >= each.before for each in seen)

    def _calls_if_long(self) -> int:
        """Device calls of the last iteration, of the rank that makes most; 0 where a third is worth its time."""
        if self.job.iterations is not None:
            return 0
        calls = max(self._observed(rank).calls for rank in self.crew.running)
        return calls if calls >= LONG_ITERATION else 0

    def _merge_again(self) -> None:
        """Ranks whose first iterations differed only by what was compiled, tuned or set up in them are alike now."""
        crew = self.crew
        running = sorted(crew.running)
        alike = classes([self.control.segment_hashes(rank)[-1] for rank in running])
        stands = {rank: running[place] for rank, place in zip(running, alike, strict=True)}
        if any(rank != other for rank, other in stands.items()):
            self.first_iteration_tells = False
        crew.merge(stands.get(other, other) for other in crew.representative)

    def _left(self, answer: dict[str, Any]) -> Run | None:
        """A rank's process is gone: by our hand, at its script's end, or by a failure."""
        rank = int(answer["ended"].removeprefix("rank "))
        if not self.crew.left(rank):
            return None
        path = rank_path(self.directory, rank).with_suffix(".outcome")
        if not path.exists():
            require_room(self.directory)
            ended = how_it_ended(answer["code"])
            if killed := was_killed(answer["code"]):
                ended = f"the process was killed, as Linux does where memory runs out ({self._memory()})"
            return self._failed(rank, f"{ended}\n{self._stderr(rank)}", host_memory_ran_out=killed)
        outcome = json.loads(path.read_text())
        if outcome["status"] == "oom":
            return self._out_of_memory(rank, outcome)
        if outcome["status"] == "raised":
            return self._failed(rank, outcome["traceback"] or f"{outcome['message']}\n{self._stderr(rank)}")
        self.crew.finished.add(rank)
        return None

    def _traced_to_the_end(self) -> Run:
        """The script ended by itself before its iterations repeated often enough."""
        survivors = sorted(self.crew.finished)
        steps = min(self.control.steps(rank) for rank in survivors)
        if steps == 0:
            return self._run(
                "traced", notes=("the script took no optimizer step, by which iterations are told apart",)
            )
        if self.steady is not None:
            return self._silent_until(steps)
        hashes = [self.control.segment_hashes(rank)[:steps] for rank in survivors]
        ended = f"the script ended after {steps} optimizer steps: its last iteration stands for all"
        if seen := seen_at_most(hashes, max(self.wanted, 2)):
            period, iterations = seen
            if iterations < 2 and steps >= SEVERAL_UNLIKE:
                return replace(self._traced((steps - 1, steps), 1), alike=False)
            return self._traced(
                steady_steps(hashes, period), period, ended if iterations < self.wanted else ""
            )
        note = "the script ended after one optimizer step, so its initialisation is part of the iteration"
        return self._traced((0, steps), steps, note)

    def _traced(self, steady: tuple[int, int], period: int, note: str = "") -> Run:
        return self._run("traced", steady=steady, period=period, notes=(note,) if note else ())

    def _came_to_nothing(self, what: str) -> Run:
        short = memory_is_short()
        said = f"this machine's memory ran out, and {what} ({self._memory()})" if short else what
        return self._failed(None, f"{said}\n{self._whereabouts()}", host_memory_ran_out=short)

    def _memory(self) -> str:
        fewest = self.job.launching == "representatives"
        advice = (
            "these are the fewest that run at once"
            if fewest
            else "--ranks representatives runs the fewest at once"
        )
        return f"{who_holds_memory(self.crew.pids.values())}; what ranks keep on the host is real: {advice}"

    def _failed(self, rank: int | None, traceback: str, **fields: Any) -> Run:
        refused, notes = ((), ()) if rank is None else told_before_the_end(self.directory, rank)
        checking = rank in self.plan.checked
        told = {"traceback": traceback, "refused": refused, "notes": notes, **fields}
        return self._run("failed", failed_rank=rank, check_failed=checking, **told)

    def _out_of_memory(self, rank: int, outcome: dict[str, Any]) -> Run:
        header = self._header(rank)
        oom = OutOfMemory(
            rank=rank,
            requested_bytes=int(header["oom_requested_bytes"]),
            free_bytes=int(header["oom_free_bytes"]),
            capacity_bytes=int(header["capacity_bytes"]),
            message=outcome["message"],
        )
        return self._run("oom", out_of_memory=oom, failed_rank=rank, traceback=outcome["traceback"])

    def _run(self, status: Any, notes: tuple[str, ...] = (), **fields: Any) -> Run:
        inferred = self._inferred()
        return Run(
            status=status,
            directory=self.directory,
            world=self.job.world,
            launched=len(self.crew.started),
            first_iteration_tells=self.first_iteration_tells,
            alike_along=self.plan.alike_along,
            checked=len(self.plan.checked),
            representative_of=tuple(self.crew.representative),
            topology=self.plan.topology,
            inferred=inferred,
            notes=(*self.plan.notes, *_said_of(inferred), *notes, *self.output.notes),
            **fields,
        )

    def _inferred(self) -> dict[int, Between]:
        """Ranks that did not run, by who runs in the place of those that tell of them. None before all are told."""
        if not self.planned:
            return {}
        stands = self.crew.representative
        return {
            rank: replace(line, lower=stands[line.lower], upper=stands[line.upper])
            for rank, line in self.plan.inferred.items()
        }

    def _header(self, rank: int) -> Any:
        return np.fromfile(rank_path(self.directory, rank), HEADER, 1)[0]

    def _stderr(self, rank: int) -> str:
        path = rank_path(self.directory, rank).with_suffix(".stderr")
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _whereabouts(self) -> str:
        lines = []
        places = stacks.ask(self.directory, self.crew.pids)
        for rank in sorted(self.crew.running):
            state = self.control.state(rank)
            site = f" for {self.control.wait_site(rank)}" if state is RankState.WAITING else ""
            place = f", at {places[rank]}" if rank in places else ""
            lines.append(
                f"  rank {rank}: {state.name.lower()}{site}, {self.control.steps(rank)} optimizer steps{place}"
            )
        return "\n".join(lines)

    def _activity(self) -> tuple[object, ...]:
        """Changes while any rank works: steps, what it waits for, or, while one does not wait for others, CPU time and
        what it has from disk: to load a library for the first time may take long without the former."""
        ranks = sorted(self.crew.running)
        states = [self.control.state(rank) for rank in ranks]
        places = tuple((self.control.steps(rank), self.control.wait_site(rank)) for rank in ranks)
        if all(state in (RankState.WAITING, RankState.PAUSED) for state in states):
            return (*states, *places)  # a waiting rank looks for its message now and then, at some CPU time
        return (*states, *places, *self._ticks(), sum(map(disk_bytes, self.crew.pids.values())))

    def _rested(self) -> tuple[int, ...]:
        state, pids = self.control.state, sorted(self.crew.pids.items())
        return tuple(rests(pid) for rank, pid in pids if state(rank) is RankState.WAITING)

    def _ticks(self) -> tuple[int, int]:
        """CPU time of the ranks, in tenths of seconds; where it stands still since the last look that of what they
        have started (a data loader's workers), which takes a look at all processes."""
        own, of_started = sum(map(cpu_ticks, self.crew.pids.values())) // 10, self.ticks[1]
        if own == self.ticks[0]:
            of_started = cpu_ticks_of_started(self.crew.pids.values()) // 10
        self.ticks = (own, of_started)
        return self.ticks


def _said_of(inferred: dict[int, Between]) -> list[str]:
    if not inferred:
        return []
    ranks = " and ".join(map(str, telling(inferred.values())))
    return [
        f"{len(inferred)} pipeline stages did not run: they go round the loops of ranks {ranks} as often as lies in "
        "line with these, which another stage confirms"
    ]
