"""Events per second of the native simulator and of a straightforward heapq simulation in Python.

Both run the same synthetic trace (a 1F1B pipeline with overlapped gradient all-reduce), must agree to
the bit, and count the same events: calls issued, pieces of stream work ended, transfers ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import sys
import time

import numpy as np
from numpy.typing import NDArray

from maya.clusters import load
from maya.simulate import HostCosts, simulate
from maya.simulate.network import ONE, Network
from maya.simulate.reference import Reference
from maya.simulate.simulation import TRANSFER_CHANNELS, multiprocessors
from maya.trace.pipelines import Pipeline
from maya.trace.types import JobTrace

LAUNCH_NS = 2000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=32)
    parser.add_argument("--kernels", type=int, default=100, help="of a pass of one micro-batch")
    parser.add_argument("--host-ns", type=int, default=3000, help="host time before each kernel")
    parser.add_argument("--native-iterations", type=int, default=30)
    parser.add_argument("--copies", type=int, default=1, help="independent pipelines, for jobs of many ranks")
    parser.add_argument("--shared", action="store_true", help="each pipeline's transfers share one link")
    parser.add_argument("--native-only", action="store_true", help="leave the Python simulation out")
    options = parser.parse_args()

    job = Pipeline(
        options.stages,
        options.micro_batches,
        forward_ns=10_000 * options.kernels,
        backward_ns=20_000 * options.kernels,
        kernels=options.kernels,
        transfer_ns=50_000,
        gradient_ns=5_000 * options.kernels,
        host_ns=options.host_ns,
    ).job()
    trace = copied(job.build(), options.copies)
    network = shared_link(trace, options.copies) if options.shared else None
    return compare(trace, job.durations_s, network, options.native_iterations, options.native_only)


def shared_link(trace: JobTrace, copies: int) -> Network:
    """A link for each of the `copies` of a pipeline, three fifths of which any of its transfers takes."""
    transfers = 1 + max(int(rank.records["rendezvous"].max()) for rank in trace.ranks)
    use, links = np.full(copies, ONE * 3 // 5), np.arange(copies)
    return Network(
        flow_of=(np.arange(transfers) * copies // transfers).astype(np.int32),
        flow_peak=use,
        flow_begin=np.arange(copies + 1).astype(np.uint32),
        flow_link=links.astype(np.uint32),
        flow_use=use,
        flow_share=np.full(copies, ONE),
        draws=np.full(transfers, ONE // 8),
        links=copies,
    )


def copied(trace: JobTrace, copies: int) -> JobTrace:
    """The job `copies` times side by side, each with ranks and rendezvous of its own."""
    rendezvous = 1 + max(int(rank.records["rendezvous"].max()) for rank in trace.ranks)
    ranks = []
    for copy in range(copies):
        for rank in trace.ranks:
            records = rank.records.copy()
            records["rendezvous"][records["rendezvous"] >= 0] += copy * rendezvous
            ranks.append(dataclasses.replace(rank, rank=copy * trace.world + rank.rank, records=records))
    world = copies * trace.world
    classes = np.arange(world, dtype=np.int32)
    return dataclasses.replace(trace, world=world, ranks=tuple(ranks), class_of_rank=classes)


def compare(
    trace: JobTrace,
    durations: NDArray[np.float64],
    network: Network | None,
    native_iterations: int,
    native_only: bool,
) -> int:
    cluster = load("dgx-h100").model_copy(update={"host_speed": 1.0})  # the baseline knows of no other
    costs = HostCosts(launch_s=LAUNCH_NS * 1e-9)
    calls = sum(len(rank.records) for rank in trace.ranks)
    print(f"{len(trace.ranks)} ranks, {calls:,} calls an iteration")

    started = time.process_time()
    native = simulate(
        trace, durations, cluster, native_iterations, host=costs, network=network, keep_timeline=False
    )
    native_s = time.process_time() - started
    native_rate = native.events / native_s
    print(f"native: {native.events:>12,} events in {native_s:7.3f} s = {native_rate / 1e6:8.3f} million/s")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    if native_only:
        return 0

    check = simulate(trace, durations, cluster, 2, host=costs, network=network)
    started = time.process_time()
    reference = Reference(
        trace,
        np.rint(durations * 1e9).astype(np.int64),
        2,
        launch_call=LAUNCH_NS,
        launch_latency=round(cluster.device.launch_latency_s * 1e9),
        completion_latency=round(costs.completion_s * 1e9),
        network=network,
        collective_occupies=multiprocessors(cluster.device.nccl_channels, cluster.device),
        transfer_occupies=multiprocessors(TRANSFER_CHANNELS, cluster.device),
    ).run()
    reference_s = time.process_time() - started
    if not np.array_equal(check.iteration_end_ns, reference.iteration_end_ns):
        print(f"the two disagree: {check.iteration_end_ns} and {reference.iteration_end_ns}", file=sys.stderr)
        return 1

    reference_rate = check.events / reference_s
    print(
        f"heapq:  {check.events:>12,} events in {reference_s:7.3f} s = {reference_rate / 1e6:8.3f} million/s"
    )
    print(f"ratio:  {native_rate / reference_rate:.0f}x, equal to the bit on both iterations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
