"""Collectives: measured curves within a node, rings and trees across nodes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate import Estimator, Provenance
from maya.estimate.collectives import Placement, modelled_cost, traffic_factor
from maya.estimate.tables import collective_table
from maya.trace.types import Collective

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
NODE = tuple(range(8))
RAIL = tuple(range(0, 64, 8))  # one device of each of eight nodes


def seconds(cluster: str, *collectives: Collective) -> list[float]:
    return list(Estimator(load(cluster)).estimate(collectives).seconds)


def test_alone_in_its_communicator_is_free() -> None:
    assert seconds("dgx-h100", Collective("all_reduce", "bf16", 1 << 30, (3,))) == [0.0]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_measured_size_gets_its_measured_duration(kind: str) -> None:
    sizes, measured = collective_table("h100_sxm")[kind, 8]
    answer = Estimator(load("dgx-h100")).estimate([Collective(kind, "bf16", int(sizes[9]), NODE)])
    assert answer.seconds[0] == pytest.approx(measured[9])
    assert answer.provenance[0] == Provenance.PROFILED


def with_timings(timings: dict[str, dict[int, tuple[tuple[float, float], ...]]]) -> Estimator:
    base = load("dgx-h100")
    return Estimator(base.model_copy(update={"node": base.node.model_copy(update={"collectives": timings})}))


def test_what_was_timed_on_the_cluster_comes_before_the_devices_tables() -> None:
    estimator = with_timings({"all_reduce": {8: ((2**20, 1e-3), (2**22, 4e-3))}})

    def timed(size: int, members: tuple[int, ...] = NODE, kind: str = "all_reduce") -> Collective:
        return Collective(kind, "bf16", size, members)

    exact, between, beyond = estimator.estimate([timed(2**20), timed(2**21), timed(2**23)]).seconds
    assert (exact, between, beyond) == pytest.approx((1e-3, 2e-3, 8e-3))
    kinds = estimator.estimate([timed(2**20), timed(2**21)]).provenance
    assert list(kinds) == [Provenance.PROFILED, Provenance.LEARNED]
    elsewhere = [timed(2**19), timed(2**21, NODE[:4]), timed(2**21, RAIL), timed(2**21, NODE, "all_gather")]
    assert list(estimator.estimate(elsewhere).seconds) == seconds("dgx-h100", *elsewhere)


def test_other_links_than_measured_are_modelled_from_the_measured_ones() -> None:
    base = load("dgx-h100")
    link = base.node.link.model_copy(update={"bandwidth": 2 * base.node.link.bandwidth})
    faster = base.model_copy(update={"node": base.node.model_copy(update={"link": link})})
    sizes, _ = collective_table("h100_sxm")["all_gather", 8]
    operations = [Collective("all_gather", "bf16", int(size), NODE) for size in sizes[[0, -1]]]
    before, after = (Estimator(cluster).estimate(operations) for cluster in (base, faster))
    assert after.seconds[0] == pytest.approx(before.seconds[0], rel=0.2)  # latency
    assert after.seconds[1] == pytest.approx(before.seconds[1] / 2, rel=0.1)
    assert Provenance.PROFILED not in after.provenance
    borrowed = Collective(
        "broadcast", "bf16", int(sizes[-1]), NODE
    )  # as gathering: no surer over other links
    assert Estimator(faster).estimate([borrowed]).provenance[0] == Provenance.ROOFLINE


@settings(max_examples=100)
@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 1 << 31),
    ranks=st.integers(2, 8),
    cluster=st.sampled_from(["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"]),
    factor=st.sampled_from([0.5, 0.8, 0.999, 1.001, 1.05, 2.0]),
)
def test_faster_links_never_take_longer(
    kind: str, size: int, ranks: int, cluster: str, factor: float
) -> None:
    base = load(cluster)
    link = base.node.link.model_copy(update={"bandwidth": factor * base.node.link.bandwidth})
    other = base.model_copy(update={"node": base.node.model_copy(update={"link": link})})
    operation = Collective(kind, "bf16", size, NODE[:ranks])
    before, after = (Estimator(it).estimate([operation]).seconds[0] for it in (base, other))
    slower, faster = sorted((before, after), key=lambda seconds: (seconds == after) == (factor > 1))
    assert faster <= slower * (1 + 1e-9) <= faster * max(factor, 1 / factor) * (1 + 1e-6)


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
def test_what_one_rank_gives_or_gets_takes_its_bytes_over_a_link(cluster: str) -> None:
    """As measured of those that move the same way: a broadcast of 1 GiB between two ranks as the gathering of two."""
    gib = 1 << 30
    for kind, alike in (("broadcast", "all_gather"), ("reduce", "reduce_scatter")):
        for ranks in (2, 8):
            one, all_ = seconds(cluster, *(Collective(it, "bf16", gib, NODE[:ranks]) for it in (kind, alike)))
            assert one == pytest.approx(all_ * ranks / (ranks - 1), rel=0.05)
            assert one > gib / load(cluster).node.link.bandwidth


def test_counts_of_ranks_between_measured_ones_lie_between() -> None:
    size = 100_000_000
    times = [
        modelled_cost("all_gather", size, Placement(ranks, 1, ranks), load("dgx-h100"))[0].seconds
        / traffic_factor("all_gather", ranks)
        for ranks in (4, 6, 8)
    ]
    assert min(times[0], times[2]) <= times[1] <= max(times[0], times[2])


def test_between_measured_sizes_is_learned_and_between_nodes_a_roofline() -> None:
    operations = [Collective("all_reduce", "bf16", 3_000_000, members) for members in (NODE, RAIL)]
    assert list(Estimator(load("dgx-h100")).estimate(operations).provenance) == [
        Provenance.LEARNED,
        Provenance.ROOFLINE,
    ]


def test_large_rings_between_nodes_move_at_the_nics_rate() -> None:
    size = 1 << 32
    (time,) = seconds("dgx-a100", Collective("all_gather", "bf16", size, RAIL))
    bus = size * traffic_factor("all_gather", 8) / time
    assert 0.8 * 25e9 < bus < 25e9


def test_a_whole_node_drives_all_its_nics() -> None:
    rail, all_devices = seconds(
        "dgx-a100",
        Collective("all_reduce", "bf16", 1 << 30, RAIL),
        Collective("all_reduce", "bf16", 1 << 30, tuple(range(64))),
    )
    assert all_devices < rail / 4


@pytest.mark.parametrize(("gigabits", "tree"), [(100, True), (200, False)])
def test_between_two_nodes_a_tree_is_taken_where_nccl_trusts_it(gigabits: int, tree: bool) -> None:
    """Two p4de (NICs of 100 Gb/s) were measured at more than a ring could carry; at 200 Gb/s NCCL's limit of a
    channel's tree, 23.6 GB/s, is below what it reckons with for a ring."""
    base = load("dgx-a100")
    nic = base.node.nic.model_copy(update={"bandwidth": gigabits * 1e9 / 8})
    cluster = base.model_copy(update={"node": base.node.model_copy(update={"nics": 4, "nic": nic})})
    size = float(1 << 30)
    cost, _ = modelled_cost("all_reduce", size, Placement(16, 2, 8, 4), cluster)
    sent = 1.0 if tree else traffic_factor("all_reduce", 16)  # by each node, of the buffer
    assert cost.nic_s == pytest.approx(sent * size / (4 * nic.bandwidth), rel=0.15)


def test_devices_that_share_a_nic_are_charged_for_it_once_they_send_at_the_same_time() -> None:
    """One ring over each of the eight devices' rails: alone each has its NIC; the network knows the rest."""
    node = load("dgx-h100").node
    two = load("dgx-h100").model_copy(update={"node": node.model_copy(update={"nics": 2})})
    rail, whole = (Collective("all_gather", "bf16", 1 << 30, members) for members in (RAIL, tuple(range(64))))
    few, many = (Estimator(cluster).estimate([rail, whole]) for cluster in (two, load("dgx-h100")))
    assert few.seconds[0] == many.seconds[0]
    assert few.seconds[1] > 3 * many.seconds[1]
    assert few.use is not None
    assert few.use[0, 1] == pytest.approx(1, rel=0.05)


def test_small_collectives_hardly_use_their_links() -> None:
    answer = Estimator(load("dgx-h100")).estimate([Collective("all_reduce", "bf16", 1 << 10, RAIL)])
    assert answer.use is not None
    assert (answer.use < 0.1).all()


def test_pairs_with_a_bridge_are_faster_than_the_bus() -> None:
    pair, four = seconds(
        "a40-8",
        Collective("all_reduce", "bf16", 1 << 28, (0, 1)),
        Collective("all_reduce", "bf16", 1 << 28, (0, 1, 2, 3)),
    )
    assert pair < four / 2


def test_a_measured_efficiency_replaces_that_of_the_kind() -> None:
    base = load("dgx-a100")
    slow = base.node.nic.model_copy(update={"efficiency": 0.1})
    cluster = base.model_copy(update={"node": base.node.model_copy(update={"nic": slow})})
    size = 1 << 32
    (time,) = Estimator(cluster).estimate([Collective("all_gather", "bf16", size, RAIL)]).seconds
    assert size * traffic_factor("all_gather", 8) / time == pytest.approx(0.1 * 25e9, rel=0.1)


def test_sending_within_a_node_is_faster_than_between_nodes() -> None:
    inside, between = seconds(
        "dgx-h100",
        Collective("send", "bf16", 1 << 26, (0, 1), peer=1),
        Collective("send", "bf16", 1 << 26, (0, 8), peer=8),
    )
    assert inside < between / 3


def test_a_transfer_says_which_two_devices_it_joins() -> None:
    """In a pipeline over two nodes, stages that share a node need no NIC."""
    stages = (0, 4, 8, 12)
    inside, between = seconds(
        "dgx-h100",
        Collective("send", "bf16", 1 << 26, stages, peer=4, rank=0),
        Collective("send", "bf16", 1 << 26, stages, peer=8, rank=4),
    )
    assert inside < between / 3


def test_two_devices_of_a_mesh_have_the_links_between_them() -> None:
    single, double, none = seconds(
        "dgx-v100",
        *(Collective("all_reduce", "bf16", 1 << 30, (0, peer)) for peer in (1, 3, 5)),
    )
    assert double == pytest.approx(single / 2, rel=0.05)
    assert none > 2 * single


def test_all_devices_of_a_mesh_have_all_of_its_links() -> None:
    eight = load("dgx-v100")
    joined = tuple((a, b, 2) for a in range(4) for b in range(a + 1, 4))
    four = eight.model_copy(update={"node": eight.node.model_copy(update={"gpus": 4, "mesh": joined})})
    reduced = Collective("all_reduce", "fp16", 4_000_000_000, (0, 1, 2, 3))
    whole, part = (Estimator(cluster).estimate([reduced]).seconds[0] for cluster in (four, eight))
    assert whole == pytest.approx(48.4e-3, rel=0.1)  # nodes of four at Jean Zay, by the BLOOM chronicles
    assert whole < 0.7 * part


def test_a_part_of_a_mesh_is_not_all_of_it() -> None:
    eight = load("dgx-v100")
    four = eight.model_copy(update={"node": eight.node.model_copy(update={"gpus": 4})})
    reduced = Collective("all_reduce", "fp16", 1 << 28, (0, 1, 2, 3))
    part, whole = (Estimator(cluster).estimate([reduced]).seconds[0] for cluster in (four, eight))
    assert part == pytest.approx(whole, rel=0.05)


def test_placement_counts_nodes_and_devices_on_each() -> None:
    assert Placement.of(tuple(range(16)), load("dgx-h100")) == Placement(16, 2, 8, 8)
    assert Placement.of(RAIL, load("dgx-h100")) == Placement(8, 8, 1, 1)


@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 1 << 32),
    more=st.integers(2, 32),
    ranks=st.integers(2, 64),
    stride=st.sampled_from([1, 8]),
    cluster=st.sampled_from(["dgx-a100", "dgx-v100", "a40-8"]),
)
def test_more_bytes_never_take_less_time(
    kind: str, size: int, more: int, ranks: int, stride: int, cluster: str
) -> None:
    members = tuple(range(0, ranks * stride, stride))
    small, large = seconds(
        cluster, Collective(kind, "bf16", size, members), Collective(kind, "bf16", size * more, members)
    )
    assert 0 < small <= large * (1 + 1e-9)
