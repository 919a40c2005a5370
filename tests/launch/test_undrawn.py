"""Large random tensors on the host take no memory, whatever the number of ranks that build a model there."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from maya.launch import Run
from maya.trace import collate

PSS = """
from pathlib import Path
def pss_mb():
    (line,) = [line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) * 1024 / 1e6
"""


def test_ranks_that_build_a_model_on_the_host_take_none_of_its_size(values: Callable[..., Any]) -> None:
    body = """
        before = pss_mb()
        with torch.no_grad():
            layers = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8)))  # 537 MB
            layers.append(torch.nn.Embedding(50_000, 1024))
        answer = [pss_mb() - before, float(layers[0].weight.abs().max()), float(layers[-1].weight.abs().max())]
        layers.to(device)
        """
    for taken, *largest in values(PSS + textwrap.dedent(body), 4):
        assert taken < 30
        assert largest == [0.0, 0.0]


def test_a_user_is_told_what_is_not_drawn(launch: Callable[..., Run]) -> None:
    body = """
        import torch
        {}
        layer = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        while True:
            layer(torch.randn(4, 64, device="cuda")).sum().backward()
            optimizer.step()
        """
    for drawn, told in (("torch.randn(1024)", False), ("torch.randn(1024, 1024)", True)):
        run = launch(body.format(drawn))
        assert run.status == "traced", run.traceback
        assert any("are not drawn" in note for note in collate(run).notes) == told


def test_what_is_small_or_shared_or_strided_is_drawn(values: Callable[..., Any]) -> None:
    body = """
        small = torch.randn(1024)
        shared = torch.ones(1024, 1024).share_memory_().normal_()
        strided = torch.ones(1024, 1024).t().uniform_(2, 3)
        own = torch.empty(4).uniform_(generator=torch.Generator().manual_seed(1))
        same = torch.empty(4).uniform_(generator=torch.Generator().manual_seed(1))
        on_device = torch.ones(1024, 1024, device=device).normal_()
        answer = [float(small.std()), float(shared.std()), float(strided.mean()), bool((own == same).all())]
        """
    ((small, shared, strided, same),) = values(body, 1)
    assert 0.8 < small < 1.2
    assert 0.99 < shared < 1.01
    assert 2.49 < strided < 2.51
    assert same


def test_gradients_flow_through_undrawn_weights_and_the_rest_of_their_pages_is_kept(
    values: Callable[..., Any],
) -> None:
    body = """
        room = torch.full((3 * 1024 * 1024,), 7.0)
        room[1000:2_000_001].normal_()
        layer = torch.nn.Linear(1024, 1024)
        layer(torch.ones(2, 1024)).sum().backward()
        answer = [
            room[:1000].unique().tolist(), room[1000:2_000_001].unique().tolist(), room[2_000_001:].unique().tolist(),
            float(layer.weight.grad.min()),
        ]
        """
    (answer,) = values(body, 1)
    assert answer == [[7.0], [0.0], [7.0], 2.0]
