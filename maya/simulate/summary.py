"""`summarise`: from a `Timeline` to the figures that a user reads."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maya.clusters.types import Cluster, Device
from maya.estimate.convolution import computed_in
from maya.estimate.types import Estimates, Provenance
from maya.simulate import results
from maya.simulate.types import Activity, Breakdown, Prediction, Timeline
from maya.trace.types import Convolution, Gemm, JobTrace, Kernel, Operation, Pass

_NANO: Final = 1e-9


def summarise(
    trace: JobTrace,
    timeline: Timeline,
    estimates: Estimates,
    cluster: Cluster,
    without_host: Timeline | None = None,
) -> Prediction:
    """The figures of the steady iterations: all but the first, which starts cold (the first if it is alone). Where a
    trace holds several iterations that differ they are the mean of these.

    `without_host` is the job with hosts that take no time: it tells a pipeline's bubble from waiting for
    slow hosts. The verdict is FITS; whoever knows what was not covered lowers it.
    """
    steady = _steady(timeline)
    iterations = timeline.iterations_ns[steady] * _NANO
    activity = timeline.activity_ns[steady].mean(axis=0) * _NANO  # [ranks, activities]
    sizes = np.bincount(trace.class_of_rank, minlength=len(trace.ranks)).astype(np.float64)
    mean = _mean_activity(timeline, sizes)
    iteration = float(iterations.mean())
    executions = _executions(trace, [rank.records["operation"] for rank in trace.ranks])
    hardware, model = _utilization(trace, executions, estimates, cluster.device, iteration)
    cycle = Prediction(
        verdict="FITS",
        iteration_time_s=iteration,
        iterations_s=tuple(iterations.tolist()),
        breakdown_s=_breakdown(mean),
        peak_memory_bytes=_peak_memory(trace, cluster.device),
        hardware_flops_utilization=hardware,
        model_flops_utilization=model,
        dollars_per_iteration=_dollars(cluster, trace.world, iteration),
        recording_host_speed=trace.host_speed,
        ranks={
            "world": trace.world,
            "launched": trace.launched,
            "checked": trace.checked,
            "unique": len(trace.ranks),
        },
        provenance=_provenance(executions, estimates, float(mean[Activity.IDLE]), iteration),
        pipeline_bubble=_pipeline_bubble(trace, without_host or timeline, sizes),
        waiting_s=float(mean[Activity.WAITING]),
        host_bound_s=None if without_host is None else max(0.0, iteration - _iteration_s(without_host)),
        critical_path_s=results.critical_path_s(trace, timeline),
        communication=results.communication(trace, timeline),
        sm_busy=results.mean_sm_busy(trace, timeline, cluster.device),
        memory_timeline={
            str(rank.rank): line for rank in trace.ranks if (line := results.memory_timeline(rank))
        },
        breakdown_by_rank_s={
            str(rank.rank): _breakdown(own) for rank, own in zip(trace.ranks, activity, strict=True)
        },
        notes=_notes(timeline),
    )
    return _of_one_iteration(cycle, trace.iterations_per_cycle)


def _of_one_iteration(cycle: Prediction, iterations: int) -> Prediction:
    """Sums over a cycle of so many iterations become means; shares and timelines stay the cycle's."""
    if iterations == 1:
        return cycle
    taken = cycle.iteration_time_s
    note = f"figures are the mean of {iterations} iterations, which together take {taken:.4g} s"
    return replace(
        cycle,
        iteration_time_s=_part(cycle.iteration_time_s, iterations),
        iterations_s=tuple(seconds / iterations for seconds in cycle.iterations_s),
        breakdown_s=cycle.breakdown_s and _breakdown_part(cycle.breakdown_s, iterations),
        dollars_per_iteration=_part(cycle.dollars_per_iteration, iterations),
        waiting_s=_part(cycle.waiting_s, iterations),
        host_bound_s=_part(cycle.host_bound_s, iterations),
        critical_path_s={kind: seconds / iterations for kind, seconds in cycle.critical_path_s.items()},
        communication=tuple(
            replace(
                total,
                calls=total.calls / iterations,
                bytes=total.bytes / iterations,
                seconds=total.seconds / iterations,
                waiting_s=total.waiting_s / iterations,
            )
            for total in cycle.communication
        ),
        breakdown_by_rank_s={
            rank: _breakdown_part(own, iterations) for rank, own in cycle.breakdown_by_rank_s.items()
        },
        notes=(*cycle.notes, note),
    )


def _part(value: float | None, iterations: int) -> float | None:
    return None if value is None else value / iterations


def _breakdown_part(breakdown: Breakdown, iterations: int) -> Breakdown:
    return Breakdown(**{name: seconds / iterations for name, seconds in asdict(breakdown).items()})


def _steady(timeline: Timeline) -> slice:
    return slice(1, None) if len(timeline.iteration_end_ns) > 1 else slice(None)


def _iteration_s(timeline: Timeline) -> float:
    return float(timeline.iterations_ns[_steady(timeline)].mean()) * _NANO


def _mean_activity(timeline: Timeline, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """[activities] Seconds of an iteration, mean over ranks."""
    activity = timeline.activity_ns[_steady(timeline)].mean(axis=0) * _NANO  # [ranks, activities]
    return np.asarray(np.average(activity, axis=0, weights=sizes), np.float64)


def _breakdown(activity: NDArray[np.float64]) -> Breakdown:
    return Breakdown(
        exposed_compute=float(activity[Activity.COMPUTE]),
        exposed_communication=float(activity[Activity.MOVING] + activity[Activity.WAITING]),
        overlapped=float(activity[Activity.OVERLAPPED]),
        idle=float(activity[Activity.IDLE]),
    )


def _notes(timeline: Timeline) -> tuple[str, ...]:
    if len(timeline.iteration_end_ns) > 1:
        return ()
    return ("one iteration was simulated: its time includes the cold start",)


def _peak_memory(trace: JobTrace, device: Device) -> dict[str, Any]:
    by_class = {str(rank.rank): rank.peak_reserved_bytes for rank in trace.ranks}
    return {"max": max(by_class.values()), "by_class": by_class, "capacity": device.memory_bytes}


def _utilization(
    trace: JobTrace,
    executions: NDArray[np.float64],
    estimates: Estimates,
    device: Device,
    iteration_s: float,
) -> tuple[float | None, float | None]:
    """(HFU, MFU): shares of the iteration that matrix products would take at the device's peak, averaged over ranks.

    HFU = sum(FLOP executed) / (iteration time x peak FLOP/s) (Korthikanti et al. 2022, arXiv:2205.05198,
    section 6: recomputed operations count, unlike in MFU). Each product is set against the peak of its own dtype,
    so with several dtypes this is sum(FLOP / peak) / iteration time. None when no operation has any FLOP.

    MFU = 3 F / (iteration time x peak FLOP/s), F being the forward passes' FLOP, of which backward passes take
    twice as many (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). Where less than 3 F was executed besides what
    was recomputed and the optimizer's (parameters without gradients) it is that. None when no backward pass can be
    told from the forward ones.
    """
    if not estimates.flops.any() or iteration_s <= 0:
        return None, None
    peaks = np.array([_peak(operation, device, trace) for operation in trace.operations])
    at_peak_s = estimates.flops / peaks
    all_s = float((executions * at_peak_s).sum())
    forward_s, backward_s = (
        float((_executions(trace, _of_pass(trace, which)) * at_peak_s).sum())
        for which in (Pass.FORWARD, Pass.BACKWARD)
    )
    available_s = trace.world * iteration_s
    model_s = min(3 * forward_s, forward_s + backward_s) if forward_s > 0 < backward_s else None
    return all_s / available_s, None if model_s is None else model_s / available_s


def _of_pass(trace: JobTrace, which: Pass) -> list[NDArray[np.int32]]:
    """Each class's operations of that; none where it is not known what they are part of."""
    return [
        rank.records["operation"][rank.passes == which if rank.passes is not None else slice(0)]
        for rank in trace.ranks
    ]


def _dollars(cluster: Cluster, world: int, iteration_s: float) -> float | None:
    price = cluster.price_per_gpu_hour
    return None if price is None else price * world * iteration_s / 3600


def _executions(trace: JobTrace, operations: list[NDArray[np.int32]]) -> NDArray[np.float64]:
    """[operations] How often all ranks together execute each: `operations` are those of a rank of each class, or -1."""
    sizes = np.bincount(trace.class_of_rank, minlength=len(trace.ranks))
    total = np.zeros(len(trace.operations))
    for own, size in zip(operations, sizes, strict=True):
        total += size * np.bincount(own[own >= 0], minlength=len(trace.operations))
    return total


def _peak(operation: Operation, device: Device, trace: JobTrace) -> float:
    dtype = ""
    if isinstance(operation, Gemm):
        dtype = operation.compute if operation.compute == "tf32" else operation.dtype
    elif isinstance(operation, Convolution):
        dtype = computed_in(operation, device)
    elif isinstance(operation, Kernel):
        dtype = _kernel_dtype(operation, trace)
    dtype = "fp8" if dtype.startswith("fp8") else dtype
    return float(device.peak_flops.get(dtype, device.vector_flops))


def _kernel_dtype(kernel: Kernel, trace: JobTrace) -> str:
    """Fused attention's, from its name; the dtype of the job's largest product where the name is silent."""
    name = kernel.name.lower()
    for dtype, marks in {
        "bf16": ("bf16", "bfloat16"),
        "fp8": ("fp8", "e4m3"),
        "fp16": ("half", "fp16"),
    }.items():
        if any(mark in name for mark in marks):
            return dtype
    products = [operation for operation in trace.operations if isinstance(operation, Gemm)]
    largest = max(products, key=lambda gemm: gemm.m * gemm.n * gemm.k * gemm.batch, default=None)
    return largest.dtype if largest else "fp32"


def _provenance(
    executions: NDArray[np.float64], estimates: Estimates, idle_s: float, iteration_s: float
) -> dict[str, float]:
    """Shares of the iteration that sum to 1: idle time is the measured host's, the rest is divided by where
    the durations of the work came from."""
    names = {p: p.name.lower() for p in Provenance}
    work = executions * estimates.seconds
    by_source = np.bincount(estimates.provenance, work, minlength=len(Provenance))
    host = idle_s / iteration_s if iteration_s > 0 else 0.0
    total = float(by_source.sum())
    if total <= 0:
        host = 1.0
    shares = {names[p]: float((1 - host) * by_source[p] / total) if total > 0 else 0.0 for p in Provenance}
    if shares[names[Provenance.UNKNOWN]] == 0:
        del shares[names[Provenance.UNKNOWN]]
    return {**shares, "measured_host": host}


def _pipeline_bubble(trace: JobTrace, timeline: Timeline, sizes: NDArray[np.float64]) -> float | None:
    """Share of the iteration in which a rank has no work and moves no data, of jobs with point-to-point
    transfers between ranks that do unlike work (alike ones pass a ring around): idle, or in communication
    kernels that all wait for peers. Mean over ranks. Of a timeline without host time it counts nothing that
    waits for a host."""
    peers = [(rank.records["peer_class"], own) for own, rank in enumerate(trace.ranks)]
    iteration_s = _iteration_s(timeline)
    if not any(((peer >= 0) & (peer != own)).any() for peer, own in peers) or iteration_s <= 0:
        return None
    activity = _mean_activity(timeline, sizes)
    return float(activity[Activity.IDLE] + activity[Activity.WAITING]) / iteration_s
