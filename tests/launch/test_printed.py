"""What a script prints is not what it goes by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maya.launch import Run
from maya.trace import collate

BODY = """
    import torch
    layer = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    while True:
        loss = layer(torch.randn(4, 64, device="cuda")).square().sum()
        loss.backward()
        optimizer.step()
        {}
    """


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("print(bool(loss > 1))", True),
        ("print(loss, layer.weight[:4], torch.nested.nested_tensor([loss[None], layer.bias]))", False),
    ],
)
def test_a_printed_tensor_is_not_told_of(launch: Callable[..., Run], line: str, told: bool) -> None:
    run = launch(BODY.format(line))
    assert run.status == "traced", run.traceback
    assert any("that nobody compute" in note for note in collate(run).notes) == told
