"""Small tensors compute on the virtual device what they compute on the CPU; nothing reads stale."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (Path(__file__).parent / "values_program.py").read_text()


@pytest.mark.parametrize(
    "groups",
    [
        ["arithmetic", "comparison", "logical", "bitwise", "scalar"],
        ["unary", "cast", "creation"],
        ["reduction", "indexing", "foreach", "idiom"],
    ],
    ids=lambda groups: "-".join(groups),
)
def test_small_tensors_compute_as_on_the_cpu(emulate: Callable[..., Any], groups: list[str]) -> None:
    program = f"import values_program\nresult = values_program.failures({groups!r})"
    assert emulate(program, files={"values_program.py": PROGRAM}).result == {}


def test_uncomputed_results_read_as_zero_and_never_as_infinity(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.rand(64, 1024, device="cuda")      # nobody computes random numbers
        loss = -torch.log(torch.softmax(x @ x.t(), -1)).mean()
        inverse = 1 / loss
        result = [loss.item(), inverse.item(), torch.isnan(loss).item(), torch.isinf(inverse).any().item(),
                  torch.isfinite(loss).item(), torch.isfinite(x).all().item()]
        """
    )
    assert run.result == [0.0, 0.0, False, False, True, True]


def test_reused_memory_does_not_show_its_former_values(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        result = []
        for make in (
            lambda: torch.rand(128, device="cuda"),
            lambda: torch.nn.functional.dropout(torch.rand(128, device="cuda"), 0.5),
            lambda: torch.rand(128, 512, device="cuda").sum(1),
            lambda: torch.rand(8, 16, 64, device="cuda").norm(dim=-1).flatten(),
            lambda: torch.nn.functional.layer_norm(torch.rand(2, 64, device="cuda"), (64,)).flatten(),
            lambda: (torch.rand(128, 64, device="cuda") @ torch.rand(64, 1, device="cuda")).flatten(),
            lambda: torch.randperm(128, device="cuda").float(),
            lambda: torch.nn.functional.cross_entropy(
                torch.rand(128, 9, device="cuda"), torch.zeros(128).long().cuda(), reduction="none"),
        ):
            stale = [torch.full((n,), torch.nan, device="cuda") for n in (1, 128, 1, 128, 128, 1024, 1024)]
            del stale
            made = make()
            result.append(made.cpu().isfinite().all().item())
        """
    )
    assert run.result == [True] * 8


def test_large_tensors_are_recorded_only(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(1 << 20, device="cuda")
        result = [x.sum().item(), x[:16].sum().item(), (x[:16].fill_(2)).sum().item()]
        """
    )
    assert run.result == [0.0, 0.0, 32.0]


def test_copies_carry_what_is_known(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        source = torch.arange(1000, dtype=torch.int32).cuda()
        copied = torch.empty_like(source).copy_(source)
        pinned = copied[::2].contiguous().cpu()
        result = [int(copied[-1]), int(pinned[-1]), torch.zeros(4, dtype=torch.bool, device="cuda").any().item()]
        """
    )
    assert run.result == [999, 998, False]


def test_gradient_scaler_finds_no_infinity_in_uncomputed_gradients(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.rand(32, 64, device="cuda")).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        result = [scaler.get_scale(), loss.item()]
        """
    )
    assert run.result == [65536.0, 0.0]


def test_triton_kernel_overwrites_what_was_known(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch

        @torch.compile
        def fused(x, out):
            out.copy_(torch.nn.functional.gelu(x * 2 + 1))

        counter = torch.full((128,), 7, device="cuda")
        out = torch.full((128,), float("nan"), device="cuda")
        neighbour = torch.full((128,), 3.0, device="cuda")
        fused(torch.rand(128, device="cuda"), out)
        finite = [out.isfinite().all().item(), out.cpu().isfinite().all().item()]
        result = [*finite, int(counter.sum()), neighbour.sum().item()]
        """,
        variables={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    assert run.result == [True, True, 7 * 128, 384.0]
