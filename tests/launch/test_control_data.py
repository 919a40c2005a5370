"""Small payloads really arrive: what one rank sends by NCCL, the others read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Values = Callable[[str, int], list[Any]]


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float64", "float16", "bfloat16", "uint8"])
def test_all_reduce_sums_the_ranks_tensors(values: Values, dtype: str) -> None:
    body = f"""
    tensor = torch.tensor([rank + 1, 10 * (rank + 1)], dtype=torch.{dtype}).to(device)
    dist.all_reduce(tensor)
    answer = tensor.tolist()
    """
    assert values(body, 3) == [[6, 60]] * 3


def test_each_reduction_yields_its_result(values: Values) -> None:
    body = """
    answer = {}
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        tensor = torch.tensor([2.0, 8.0] if rank == 0 else [4.0, 2.0]).to(device)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        answer[name] = tensor.tolist()
    """
    expected = {"SUM": [6, 10], "PRODUCT": [8, 16], "MIN": [2, 2], "MAX": [4, 8], "AVG": [3, 5]}
    assert values(body, 2) == [expected] * 2


def test_gathers_scatters_and_exchanges_put_parts_in_rank_order(values: Values) -> None:
    body = """
    mine = torch.tensor([rank, rank + 10]).to(device)
    gathered = torch.zeros(2 * world, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(gathered, mine)
    part = torch.zeros(1, dtype=torch.int64, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(world).to(device) * (rank + 1))
    exchanged = torch.zeros(world, dtype=torch.int64, device=device)
    dist.all_to_all_single(exchanged, torch.tensor([10 * rank + peer for peer in range(world)]).to(device))
    answer = [gathered.tolist(), part.tolist(), exchanged.tolist()]
    """
    assert values(body, 3) == [
        [[0, 10, 1, 11, 2, 12], [6 * rank], [rank, 10 + rank, 20 + rank]] for rank in range(3)
    ]


def test_broadcast_delivers_the_roots_flags(values: Values) -> None:
    body = """
    flags = torch.tensor([1, 0, 1] if rank == 1 else [0, 0, 0]).to(device)
    dist.broadcast(flags, src=1)
    answer = flags.tolist()
    """
    assert values(body, 3) == [[1, 0, 1]] * 3


def test_objects_travel(values: Values) -> None:
    body = """
    everyone = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "padding": "x" * 100 * rank})
    said = [("hello", 42), None] if rank == 0 else [None, None]
    dist.broadcast_object_list(said, src=0)
    answer = [[entry["rank"] for entry in everyone], len(everyone[-1]["padding"]), said]
    """
    assert values(body, 4) == [[[0, 1, 2, 3], 300, [["hello", 42], None]]] * 4


def test_batched_sends_and_receives_pass_each_other(values: Values) -> None:
    body = """
    right, left = (rank + 1) % world, (rank - 1) % world
    sent, got = torch.tensor([rank]).to(device), torch.tensor([-1]).to(device)
    transfers = [dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, sent, right)]
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    answer = got.tolist()
    """
    assert values(body, 3) == [[2], [0], [1]]


def test_sends_arrive_in_order(values: Values) -> None:
    body = """
    answer = []
    for turn in range(200):
        tensor = torch.tensor([turn if rank == 0 else -1]).to(device)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        answer.append(tensor.item())
    """
    assert values(body, 2) == [list(range(200))] * 2


def test_groups_within_the_world_do_not_mix(values: Values) -> None:
    body = """
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    tensor = torch.tensor([rank]).to(device)
    dist.all_reduce(tensor, group=groups[rank // 2])
    answer = tensor.tolist()
    """
    assert values(body, 4) == [[1], [1], [5], [5]]


def test_groups_that_overlap_as_a_chains_links_do_not_mix(values: Values) -> None:
    body = """
    links = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    answer = []
    for turn in range(3):  # down the chain, and up again
        for root, link in [(0, 0), (1, 1), (2, 1), (1, 0)]:
            if rank in (link, link + 1):
                tensor = torch.tensor([10 * turn + root if rank == root else -1]).to(device)
                dist.broadcast(tensor, root, group=links[link])
                answer.append(tensor.item())
    """
    ends = [[0, 1, 10, 11, 20, 21], [1, 2, 11, 12, 21, 22]]
    assert values(body, 3) == [ends[0], [0, 1, 2, 1, 10, 11, 12, 11, 20, 21, 22, 21], ends[1]]


def test_large_tensors_are_recorded_and_read_zero(values: Values) -> None:
    body = """
    tensor = torch.ones(1 << 20, device=device)
    dist.all_reduce(tensor)
    answer = tensor[:2].tolist()
    """
    assert values(body, 2) == [[0, 0]] * 2


def test_a_long_job_of_small_uncomputed_sums_fits_the_jobs_store(values: Values) -> None:
    body = """
    loss = torch.randn(16_384, device=device)
    for step in range(9_000):  # 1.1 GiB
        dist.all_reduce(loss)
    counted = torch.tensor([rank]).to(device)
    dist.all_reduce(counted)
    answer = [loss[0].item(), counted.item()]
    """
    assert values(body, 2) == [[0, 1]] * 2


def test_ranks_that_call_different_collectives_are_both_named(launch: Callable[..., Any]) -> None:
    outcome = launch(
        """
        import os, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        tensor = torch.ones(4, device="cuda")
        dist.all_reduce(tensor) if rank else dist.broadcast(tensor, 0)
        dist.all_reduce(tensor)
        print(tensor.tolist())
        """,
        2,
    )
    assert outcome.status == "failed"
    assert "rank 0: broadcast of 4 fp32 with root 0" in outcome.traceback
    assert "rank 1: all_reduce of 4 fp32 (sum)" in outcome.traceback
