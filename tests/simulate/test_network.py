"""Transfers that share links: hand-computed schedules, and what must hold for every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.clusters import Cluster, Link, load
from maya.simulate import INSTANT, build_network, place, simulate
from maya.simulate.network import Network
from maya.simulate.types import Timeline
from maya.simulate.whatif import WhatIf
from maya.trace.build import JobBuilder
from maya.trace.pipelines import Pipeline
from maya.trace.split import unfold
from maya.trace.types import Collective, JobTrace, RecordKind


@pytest.fixture(scope="module")
def small(ideal_cluster: Cluster) -> Cluster:
    """Nodes of four devices and two NICs: devices 0 and 1 share one, 2 and 3 the other."""
    return with_node(ideal_cluster, gpus=4, nics=2)


def with_node(cluster: Cluster, **node: Any) -> Cluster:
    return cluster.model_copy(update={"node": cluster.node.model_copy(update=node)})


def network_of(trace: JobTrace, cluster: Cluster, use: float = 1.0) -> Network:
    """Every collective fills its device's link and its NIC."""
    moves = [isinstance(operation, Collective) for operation in trace.operations]
    return build_network(trace, np.outer(moves, [use, use]), cluster)


def run(
    job: JobBuilder, cluster: Cluster, use: float = 1.0, *, apart: bool = False, iterations: int = 1
) -> Timeline:
    trace = job.build()
    trace = unfold(trace) if apart else place(trace, cluster)
    seconds = np.append(job.durations_s, [
        operation.bytes * 1e-9 for operation in trace.operations[len(job.durations_s):]  # type: ignore[union-attr]
    ])  # fmt: skip
    network = network_of(trace, cluster, use)
    return simulate(trace, seconds, cluster, iterations, host=INSTANT, network=network)


def rings(
    cluster: Cluster, *members: Sequence[int], after: Sequence[int] = (0, 0, 0), **kwargs: Any
) -> list[int]:
    """When all-reduces of 100 ns over `members` end that start `after` so many ns, each on its own stream."""
    job = JobBuilder(8)
    ends = []
    for stream, (own, wait) in enumerate(zip(members, after, strict=False)):
        communicator = job.communicator(own)
        for rank in own:
            job.ranks[rank].kernel(wait, stream)
            job.ranks[rank].collective(communicator, 100, stream)
    timeline = run(job, cluster, **kwargs)
    for stream, own in enumerate(members):
        records = job.build().ranks[own[0]].records
        row = int(
            np.flatnonzero((records["stream"] == stream) & (records["kind"] == RecordKind.COLLECTIVE))[0]
        )
        ends.append(int(timeline.ranks[own[0]].end[0, row]))
    return ends


def test_two_collectives_that_share_a_nic_take_twice_as_long(small: Cluster) -> None:
    assert rings(small, (0, 4), (1, 5)) == [200, 200]


def test_what_shares_only_for_a_while_is_slower_only_for_that_while(small: Cluster) -> None:
    # Alone to 50; both at half rate until the first has its other 50 at 150; the second's last 50 alone.
    assert rings(small, (0, 4), (1, 5), after=(0, 50)) == [150, 200]


def test_other_nics_are_not_shared(small: Cluster) -> None:
    assert rings(small, (0, 4), (2, 6)) == [100, 100]


def test_what_leaves_room_slows_nobody(small: Cluster) -> None:
    assert rings(small, (0, 4), (1, 5), use=0.5) == [100, 100]


def test_rates_are_max_min_fair(small: Cluster) -> None:
    """A over both NICs, B and C beside it on the first, D on the second. The first gives each a third; D then
    has the two thirds of the second that A cannot use: 100 ns at 2/3 is 150."""
    job = JobBuilder(16)
    wide, first, other = job.communicator((0, 2, 4, 6)), job.communicator((1, 5)), job.communicator((1, 5))
    second = job.communicator((3, 7))
    for rank in (0, 2, 4, 6):
        job.ranks[rank].collective(wide, 1000)
    for rank in (1, 5):
        job.ranks[rank].collective(first, 1000, stream=2)
        job.ranks[rank].collective(other, 1000, stream=3)
    for rank in (3, 7):
        job.ranks[rank].collective(second, 100)
    timeline = run(job, small)
    assert timeline.ranks[3].end[0, 0] == pytest.approx(150, abs=1)
    assert timeline.ranks[0].end[0, 0] == timeline.ranks[1].end[0, 0] == pytest.approx(3000, abs=1)


def test_a_merged_communicator_loads_the_links_of_all_its_instances(small: Cluster) -> None:
    job = JobBuilder(8, class_of_rank=[0] * 8)
    rails = job.communicator((0, 4), (1, 5), (2, 6), (3, 7))
    job.ranks[0].collective(rails, 100)
    assert run(job, small).ranks[0].end[0].tolist() == [200]


@pytest.mark.parametrize(
    ("fabric", "nodes_per_leaf", "ends"), [("rail", 1, 400), ("rail", 2, 100), ("fat-tree", 1, 200)]
)
def test_oversubscription_slows_what_crosses_the_spine(
    small: Cluster, fabric: str, nodes_per_leaf: int, ends: int
) -> None:
    """Four to one: a NIC alone has a quarter of its rate on its rail's uplink, half on those of a node's two."""
    change = {"oversubscription": 4.0, "fabric": fabric, "nodes_per_leaf": nodes_per_leaf}
    assert rings(small.model_copy(update=change), (0, 4)) == [ends]


@pytest.mark.parametrize(("name", "ends"), [("all_gather", 100), ("all_to_all", 134)])
def test_an_exchange_of_everybody_crosses_the_spine_more_than_a_ring(
    small: Cluster, name: str, ends: int
) -> None:
    """Four nodes on two leaves of two, two to one: all NICs of a ring's one node in two cross, and fill the
    uplink (2 x 1/2); of an exchange, two thirds of all do (2 x 2 x 2/3 / 2)."""
    cluster = small.model_copy(update={"oversubscription": 2.0, "nodes_per_leaf": 2})
    job = JobBuilder(16)
    one_each = job.communicator((0, 4, 8, 12))
    for rank in (0, 4, 8, 12):
        job.ranks[rank].collective(one_each, 100, name=name)
    assert run(job, cluster).ranks[0].end[0].tolist() == [ends]


def test_a_pair_with_a_bridge_does_not_share_the_bus(ideal_cluster: Cluster) -> None:
    bridge = Link(kind="nvlink", bandwidth=56e9, latency_s=1e-6)
    bridged = with_node(ideal_cluster, pair_link=bridge)
    assert rings(bridged, (0, 1), (0, 1, 2, 3)) == [100, 100]
    assert rings(ideal_cluster, (0, 1), (0, 1, 2, 3)) == [200, 200]


def test_neighbours_in_a_mesh_have_links_of_their_own(ideal_cluster: Cluster) -> None:
    cube = with_node(ideal_cluster, mesh=load("dgx-v100").node.mesh)
    assert rings(cube, (0, 1), (0, 3)) == [100, 100]


def test_sending_and_receiving_are_different_directions(small: Cluster) -> None:
    job = JobBuilder(8)
    pair = job.communicator((0, 4))
    job.ranks[0].send(pair, 4, 100)
    job.ranks[4].recv(pair, 0, 100)
    job.ranks[0].recv(pair, 4, 100, stream=3)
    job.ranks[4].send(pair, 0, 100, stream=3)
    assert [rank.end[0].tolist() for rank in run(job, small).ranks if rank.rank in (0, 4)] == [[100, 100]] * 2


def test_computation_has_what_communication_leaves_of_the_device(ideal_cluster: Cluster) -> None:
    """33 of 132 multiprocessors communicate for 600 ns: 450 of 1,000 ns of work are done by then."""
    device = ideal_cluster.device.model_copy(update={"nccl_channels": 33})
    job = JobBuilder(2)
    pair = job.communicator((0, 1))
    for rank in job.ranks:
        rank.gemm(1000, stream=1)
        rank.collective(pair, 600, stream=2)
    timeline = run(job, ideal_cluster.model_copy(update={"device": device}))
    assert timeline.ranks[0].end[0].tolist() == [600 + 550, 600]


def test_kernels_bound_by_memory_have_the_bandwidth_that_communication_leaves(ideal_cluster: Cluster) -> None:
    """An all-gather at 500 GB/s (port and NIC) reads and writes 1,000 of 4,000 GB/s for 600 ns: 450 of 1,000 ns
    are done by then."""
    device = ideal_cluster.device.model_copy(update={"memory_bandwidth": 4e12})
    job = JobBuilder(2)
    pair = job.communicator((0, 1))
    for rank in job.ranks:
        rank.kernel(1000, stream=1)
        rank.collective(pair, 600, stream=2, name="all_gather")
    timeline = run(job, ideal_cluster.model_copy(update={"device": device}))
    assert timeline.ranks[0].end[0].tolist() == [600 + 550, 600]


SHAPES = st.builds(
    Pipeline,
    stages=st.integers(1, 4),
    micro_batches=st.sampled_from([1, 2, 4]),
    forward_ns=st.integers(1, 50).map(lambda n: n * 4),
    backward_ns=st.integers(1, 50).map(lambda n: n * 4),
    kernels=st.sampled_from([1, 2]),
    transfer_ns=st.integers(0, 60),
    gradient_ns=st.integers(0, 60).map(lambda n: n * 4),
    replicas=st.integers(1, 4),
)
NODES = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 4]))


@settings(max_examples=150)
@given(
    shape=SHAPES,
    node=NODES,
    use=st.sampled_from([0.3, 0.7, 1.0]),
    fabric=st.sampled_from([{}, {"oversubscription": 2.0}, {"oversubscription": 3.0, "nodes_per_leaf": 2}]),
    channels=st.sampled_from([0, 16]),
)
def test_merged_ranks_load_the_network_as_they_do_apart(
    ideal_cluster: Cluster,
    shape: Pipeline,
    node: tuple[int, int],
    use: float,
    fabric: dict[str, Any],
    channels: int,
) -> None:
    device = ideal_cluster.device.model_copy(update={"nccl_channels": channels})
    cluster = with_node(ideal_cluster, gpus=node[0], nics=node[1]).model_copy(
        update={**fabric, "device": device}
    )
    job = shape.job()
    merged, apart = (run(job, cluster, use, apart=apart, iterations=3) for apart in (False, True))
    assert merged.iteration_end_ns.tolist() == apart.iteration_end_ns.tolist()
    class_of_rank = place(job.build(), cluster).class_of_rank
    assert (merged.activity_ns[:, class_of_rank] == apart.activity_ns).all()


@settings(max_examples=60)
@given(
    shape=SHAPES,
    node=NODES,
    use=st.sampled_from([0.7, 1.0]),
    slow=st.integers(0, 15),
    factor=st.sampled_from(["1.3", "2"]),
)
def test_a_slow_rank_takes_apart_those_that_share_its_links(
    ideal_cluster: Cluster, shape: Pipeline, node: tuple[int, int], use: float, slow: int, factor: str
) -> None:
    cluster = with_node(ideal_cluster, gpus=node[0], nics=node[1])
    what_if = WhatIf.parse(slow_ranks=[f"{slow % (shape.stages * shape.replicas)}={factor}"])
    job = shape.job()
    ends = []
    for trace in (job.build(), unfold(job.build())):
        trace = what_if.slowed(place(what_if.apart(trace), cluster))
        known = dict(zip(job.build().operations, job.durations_s, strict=True))
        seconds = np.array([known[op] if op in known else op.bytes * 1e-9 for op in trace.operations])  # type: ignore[union-attr]
        network, seconds = network_of(trace, cluster, use), what_if.durations(trace, seconds)
        ends.append(
            simulate(trace, seconds, cluster, 3, host=INSTANT, network=network).iteration_end_ns.tolist()
        )
    assert ends[0] == ends[1]


@settings(max_examples=60)
@given(shape=SHAPES, node=NODES, use=st.sampled_from([0.5, 0.9, 1.0]))
def test_twice_the_rates_take_half_the_time(
    ideal_cluster: Cluster, shape: Pipeline, node: tuple[int, int], use: float
) -> None:
    cluster = with_node(ideal_cluster, gpus=node[0], nics=node[1])
    times = ("forward_ns", "backward_ns", "transfer_ns", "gradient_ns")
    slow = replace(shape, **{name: 1000 * 2 * getattr(shape, name) for name in times})
    fast = replace(shape, **{name: 1000 * getattr(shape, name) for name in times})
    ends = [run(one.job(), cluster, use, iterations=2).iteration_end_ns for one in (slow, fast)]
    assert ends[0].tolist() == pytest.approx(
        (2 * ends[1]).tolist(), abs=200
    )  # a nanosecond for each rounding


@settings(max_examples=60)
@given(starts=st.lists(st.integers(0, 300), min_size=4, max_size=4), use=st.sampled_from([0.4, 0.8, 1.0]))
def test_sharing_never_makes_faster_and_wastes_nothing(
    ideal_cluster: Cluster, starts: list[int], use: float
) -> None:
    """Four rings over one NIC: none ends before its own 100 ns, the last when all bytes fit through."""
    one = with_node(ideal_cluster, gpus=4, nics=1)
    job = JobBuilder(8)
    communicators = [job.communicator((local, local + 4)) for local in range(4)]
    for rank in job.ranks:
        rank.kernel(starts[rank.rank % 4], stream=2)
        rank.collective(communicators[rank.rank % 4], 100)
    ends = [int(rank.end[0, 1]) for rank in run(job, one, use).ranks[:4]]
    assert all(end >= start + 100 for start, end in zip(starts, ends, strict=True))
    first = min(starts)
    assert max(ends) <= max(max(starts) + 100, first) + 4 * 100
    assert max(ends) - first >= 4 * 100 * use - 4


@settings(max_examples=40)
@given(works=st.lists(st.integers(0, 300), min_size=4, max_size=4), order=st.permutations(range(4)))
def test_which_device_of_a_node_does_what_changes_nothing(
    ideal_cluster: Cluster, works: list[int], order: list[int]
) -> None:
    """Four rings over two nodes whose devices share one NIC, and an all-reduce of everybody."""
    one = with_node(ideal_cluster, gpus=4, nics=1)

    def ends(place: Sequence[int]) -> dict[int, list[list[int]]]:
        job = JobBuilder(8)
        rails = [job.communicator((local, local + 4)) for local in range(4)]
        world = job.communicator(range(8))
        for rank in job.ranks:
            rank.kernel(works[place[rank.rank % 4]], stream=2)
            rank.collective(rails[rank.rank % 4], 100)
            rank.collective(world, 70, stream=3)
        timeline = run(job, one, iterations=2)
        return {place[local]: timeline.ranks[local].end.tolist() for local in range(4)}

    assert ends(order) == ends(range(4))
