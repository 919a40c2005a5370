"""One configuration, from script to prediction: launch, collate, estimate, simulate."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from maya import __version__
from maya.cache import Recorded, TraceCache
from maya.clusters.types import Cluster
from maya.estimate import UNIFORM, Estimator, Reuse
from maya.estimate.likely import likely_error
from maya.estimate.power import within_limit
from maya.estimate.profiles import Profiles
from maya.estimate.recordings import ScriptTimes, undisturbed_beside
from maya.estimate.types import Estimates
from maya.launch import ForkServer
from maya.launch.trust import Trust
from maya.launch.types import Job, OutOfMemory, Run
from maya.simulate import build_network, place, simulate, simulate_without_host, summarise
from maya.simulate.types import Prediction, Timeline, Verdict
from maya.simulate.whatif import WhatIf
from maya.trace import collate
from maya.trace.types import Collective, JobTrace, Memcpy

GIB = 1024.0**3


@dataclass(frozen=True)
class Judgement:
    """A prediction and what it stands on; the latter is None when nothing could be simulated."""

    prediction: Prediction
    trace: JobTrace | None = None
    estimates: Estimates | None = None
    timeline: Timeline | None = None
    cluster: Cluster | None = None


class Predictor:
    """Judges jobs on one cluster. Holds a fork server, so many predictions pay for one warm start.

    With a `trust`, what several jobs of one script had in common is taken to be so in those that follow: a search runs
    fewer iterations of fewer ranks. `reuse` is what `read_lookups` has of embedding tables.
    Raises `maya.errors.MayaError` for what the user must mend: a CPU-only torch, a missing script.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        cores: tuple[int, ...] | None = None,
        cache: TraceCache | None = None,
        trust: Trust | None = None,
        reuse: Reuse = UNIFORM,
    ) -> None:
        self.cluster = cluster
        self._cache = cache
        self._trust = trust
        self._reuse = reuse
        self._server = ForkServer(cluster, cores=cores)

    def pin(self, cores: tuple[int, ...]) -> None:
        """From the next job on, ranks run on these cores."""
        self._server.cores = cores

    def __enter__(self) -> Predictor:
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)

    def predict(self, job: Job, out: Path | None = None) -> Judgement:
        """Runs `job` and judges it; rank traces stay in `out`, or go when it is None.

        What the cache has recorded of the same work is judged instead, unless the rank traces are wanted.
        """
        started = time.perf_counter()
        if self._cache and out is None and (recorded := self._cache.find(job, self.cluster)):
            return self._judge_recorded(recorded, job, time.perf_counter() - started)
        return self._judge(*self.record(job, out), job)

    def record(self, job: Job, out: Path | None = None) -> tuple[Run, JobTrace | None]:
        """Runs `job`, which leaves no trace where it runs out of memory or fails; rank traces as for `predict`."""
        with _directory(out) as directory:
            run = (
                self._trust.run(self._server, job, directory)
                if self._trust
                else self._server.run(job, directory)
            )
            trace = None
            if run.status == "traced":
                started = time.perf_counter()
                trace = collate(run)
                run = run.with_seconds({**run.seconds, "collate": time.perf_counter() - started})
            if self._cache:
                self._cache.keep(job, self.cluster, run, trace)
        return run, trace

    def serves(self, cluster: Cluster) -> bool:
        """Whether jobs may `move` there: it has the same devices, and as many a node. Ranks see no more of it."""
        return (cluster.device, cluster.node.gpus) == (self.cluster.device, self.cluster.node.gpus)

    def move(self, cluster: Cluster) -> None:
        """From the next job on, jobs run on `cluster`. Raises ValueError where this does not serve it."""
        if not self.serves(cluster):
            raise ValueError(f"{cluster.name} has other nodes than {self.cluster.name}")
        self.cluster = self._server.cluster = cluster

    def _judge_recorded(self, recorded: Recorded, job: Job, seconds: float) -> Judgement:
        run = recorded.run.with_seconds({"cache": seconds})
        judgement = self._judge(run, recorded.trace, job)
        prediction = judgement.prediction
        prediction = dataclasses.replace(prediction, notes=(*prediction.notes, recorded.note))
        return dataclasses.replace(judgement, prediction=prediction)

    def _judge(self, run: Run, trace: JobTrace | None, job: Job) -> Judgement:
        if trace is None:
            return unsimulated(run, job, self.cluster)
        judgement = judge_trace(trace, self.cluster, run.seconds, reuse=self._reuse)
        return dataclasses.replace(
            judgement, prediction=dataclasses.replace(judgement.prediction, command=job.command)
        )


def unsimulated(run: Run, job: Job, cluster: Cluster) -> Judgement:
    """What can be said of a run that ended before a steady iteration: out of memory, or failed."""
    prediction = _out_of_memory(run) if run.status == "oom" else _failed(run)
    return Judgement(
        dataclasses.replace(prediction, version=__version__, command=job.command, cluster=cluster.name)
    )


def judge_trace(
    trace: JobTrace,
    cluster: Cluster,
    seconds: dict[str, float] | None = None,
    iterations: int = 3,
    what_if: WhatIf = WhatIf(),  # noqa: B008 (frozen)
    reuse: Reuse = UNIFORM,
    script: ScriptTimes | None = None,
    profiles: Profiles | None = None,
) -> Judgement:
    """Estimates and simulates a trace on `cluster`; `seconds` are those of the stages before, `script` what
    is known of the script by other recordings, `profiles` as for an Estimator."""
    started = time.perf_counter()
    without_effect = _links_without_effect(trace, cluster, what_if, reuse, profiles)
    cluster = what_if.cluster(cluster)
    recording = undisturbed_beside(trace, script)
    trace = what_if.slowed(place(what_if.apart(recording.trace), cluster))
    estimates = Estimator(cluster, reuse, profiles).estimate(trace.operations)
    estimates = within_limit(trace, estimates, cluster.device)
    estimates = dataclasses.replace(estimates, seconds=what_if.durations(trace, estimates.seconds))
    estimated = time.perf_counter()
    network = build_network(trace, estimates.use, cluster)
    seconds_of, demand = estimates.seconds, estimates.demand
    timeline = simulate(trace, seconds_of, cluster, iterations=iterations, network=network, demand=demand)
    without_host = simulate_without_host(trace, seconds_of, cluster, iterations, network, demand)
    simulated = time.perf_counter()
    prediction = summarise(trace, timeline, estimates, cluster, without_host)
    if not prediction.iteration_time_s:
        return idle(trace, cluster, seconds or {})
    incomplete = [*trace.unsupported, *estimates.unknown, *trace.uncovered]
    message = "; ".join((*_what_is_missing(trace, estimates), *_beyond_memory(trace, cluster)))
    verdict: Verdict = "INCOMPLETE" if message else "FITS"
    prediction = dataclasses.replace(
        prediction,
        verdict=verdict,
        unsupported=tuple(incomplete),
        message=message,
        likely_error=likely_error(cluster.device, prediction.provenance),
        notes=(
            *what_if.notes,
            *without_effect,
            *trace.notes,
            *recording.notes,
            *estimates.notes,
            *network.notes,
            *_waits_for_workers(trace, cluster, prediction.iteration_time_s),
            *prediction.notes,
        ),
        stages_s={
            **(seconds or {}),
            "estimate": estimated - started,
            "simulate": simulated - estimated,
        },
        version=__version__,
        cluster=cluster.name,
    )
    return Judgement(prediction, trace, estimates, timeline, cluster)


def idle(trace: JobTrace, cluster: Cluster, seconds: dict[str, float]) -> Judgement:
    """Of a script that ended without work for a device, as one does that prints its usage: 0 s would be no answer."""
    return Judgement(
        Prediction(
            verdict="FAILED",
            ranks=_ranks(trace),
            stages_s=seconds,
            message="the script ended without an error and without any work for a device",
            notes=trace.notes,
            version=__version__,
            cluster=cluster.name,
        )
    )


def _links_without_effect(
    trace: JobTrace, cluster: Cluster, what_if: WhatIf, reuse: Reuse, profiles: Profiles | None
) -> tuple[str, ...]:
    """Of the links that are asked about, those that nothing the job moves takes, as a NIC within one node."""

    def moved(asked: WhatIf) -> list[float]:
        estimates = Estimator(asked.cluster(cluster), reuse, profiles).estimate(transfers)
        return [
            *estimates.seconds.tolist(),
            *([] if estimates.use is None else estimates.use.ravel().tolist()),
        ]

    transfers = [op for op in trace.operations if isinstance(op, Collective | Memcpy)]
    idle = [name for name in what_if.links if moved(what_if) == moved(what_if.without_link(name))]
    where = f"{trace.world:,} at {cluster.node.gpus} a node"
    return tuple(
        f"--link {name} makes no difference: nothing that this job's ranks ({where}) move takes it"
        for name in idle
    )


def _waits_for_workers(trace: JobTrace, cluster: Cluster, iteration_s: float) -> tuple[str, ...]:
    """Said of a script that waits for its data: that is not in the time."""
    needed = trace.loading_s / cluster.host_speed
    if needed <= iteration_s:
        return ()
    return (
        f"data-loader workers need {1e3 * needed:.3g} ms for an iteration's batches, each worker on a core of its own: "
        f"that the script waits for them is not in its time ({needed / iteration_s:.1f} times as many would keep up)",
    )


def _beyond_memory(trace: JobTrace, cluster: Cluster) -> list[str]:
    """What a rank took of a larger device than these, where the trace was recorded on such."""
    most = max(trace.ranks, key=lambda rank: rank.peak_reserved_bytes)
    there, here = most.peak_reserved_bytes, cluster.device.memory_bytes
    if there <= here:
        return []
    return [
        f"rank {most.rank} took {there / GIB:.2f} GiB of the {most.capacity_bytes / GIB:.2f} GiB that it was recorded "
        f"with, {(there - here) / GIB:.2f} GiB more than the {here / GIB:.2f} GiB of {cluster.device.name}: whether "
        f"it fits there tells only a recording for it (--cluster {cluster.name})"
    ]


def _what_is_missing(trace: JobTrace, estimates: Estimates) -> list[str]:
    parts = []
    if trace.unsupported:
        parts.append(
            f"{len(trace.unsupported)} device calls were refused: {', '.join(trace.unsupported[:5])}"
        )
    if trace.uncovered:
        parts.append(f"recorded with less than their effect: {', '.join(trace.uncovered[:5])}")
    if estimates.unknown:
        parts.append(f"no duration is known for {len(estimates.unknown)}: {', '.join(estimates.unknown[:5])}")
    return parts


def _out_of_memory(run: Run) -> Prediction:
    oom = run.out_of_memory
    assert oom is not None
    message = (
        f"rank {oom.rank}: an allocation of {oom.requested_bytes / GIB:.2f} GiB found "
        f"{oom.free_bytes / GIB:.2f} GiB free of {oom.capacity_bytes / GIB:.2f} GiB: "
        f"{oom.shortfall_bytes / GIB:.2f} GiB short. {_what_was_said(oom)}"
    )
    return Prediction(
        verdict="OOM",
        peak_memory_bytes={
            "max": oom.capacity_bytes - oom.free_bytes,
            "by_class": {},
            "capacity": oom.capacity_bytes,
        },
        ranks=_ranks(run),
        stages_s=dict(run.seconds),
        message=message,
        shortfall_bytes=oom.shortfall_bytes,
        notes=run.notes,
    )


_ALLOCATOR = re.compile(
    r"^(?P<error>\S+: ).*Of the allocated memory (?P<use>.*?(?P<idle>[\d.]+) (?P<unit>\w+) is reserved by PyTorch but "
    r"unallocated)\..*?(?P<setting>PYTORCH_\w+=expandable_segments:True)?(?: to avoid|$)"
)
_UNITS = {
    "bytes": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}  # of PyTorch's c10/util/StringUtil.h: format_size


def _what_was_said(oom: OutOfMemory) -> str:
    """In one line: NCCL's errors take several, the last of which tells least. Of PyTorch's own what the arithmetic does
    not have: what its allocator held, and its advice, where that may be of help."""
    said = " ".join(oom.message.split())
    allocator = _ALLOCATOR.match(said)
    if allocator is None:
        return said
    idle = float(allocator["idle"]) * _UNITS.get(allocator["unit"], 0)
    helps = idle >= oom.shortfall_bytes and allocator["setting"]
    advice = f", which {allocator['setting']} may make use of" if helps else ""
    return f"{allocator['error']}{allocator['use']}{advice}"


def _failed(run: Run) -> Prediction:
    where = "" if run.failed_rank is None else f"rank {run.failed_rank}: "
    return Prediction(
        verdict="FAILED",
        ranks=_ranks(run),
        stages_s=dict(run.seconds),
        message=f"{where}{run.traceback.rstrip()}{_refused(run.refused)}",
        unsupported=run.refused,
        by_chance=run.by_chance,
        notes=run.notes,
    )


def _refused(calls: tuple[str, ...]) -> str:
    """What PyTorch makes of a refusal ("cuFFT error", "non-contiguous input") does not say whose doing it is."""
    if not calls:
        return ""
    return f" (Maya does not emulate what was called before: {', '.join(calls[:5])}. That may be why)"


def _ranks(of: Run | JobTrace) -> dict[str, int]:
    """Where it does not matter which of them are alike."""
    return {"world": of.world, "launched": of.launched}


@contextmanager
def _directory(out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="maya-") as temporary:
        yield Path(temporary)
