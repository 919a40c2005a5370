"""torch.compile in a rank: what was compiled before changes no kernel that is recorded, and Volta has kernels too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from maya.clusters import load
from maya.launch import ForkServer, Job, Run
from maya.launch.layout import rank_path
from maya.trace import collate
from maya.trace.format import read_rank
from maya.trace.types import Kernel, RecordKind

COMPILED = """
import torch

@torch.compile
def normalised_gelu(bias, x):
    x = torch.nn.functional.gelu(x + bias)
    return torch.nn.functional.layer_norm(x + x.transpose(0, 1), (x.shape[-1],))

x = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
bias = torch.randn(1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
optimizer = torch.optim.SGD([x, bias], lr=0.1)
for _ in range(3):
    normalised_gelu(bias, x).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def caches(tmp_path: Path) -> dict[str, str]:
    """The environment that gives the compiler empty caches."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }


def test_a_compiler_with_an_empty_cache_launches_what_one_with_a_full_one_does(
    launch: Callable[..., Run], caches: dict[str, str]
) -> None:
    kernels = []
    for _ in range(2):
        run = launch(COMPILED, environment=caches)
        assert run.status == "traced", run.traceback
        kernels.append(_kernels(run))
    assert any(name.startswith("triton_per_fused") for name in kernels[0])  # of many candidates
    assert kernels[0] == kernels[1]


def test_a_reduction_over_rows_that_lie_apart_reads_side_by_side(
    launch: Callable[..., Run], caches: dict[str, str]
) -> None:
    """Of so many columns PyTorch's compiler does not split the reduction, and has its candidates timed; the first would
    read 32 bytes for each two."""
    run = launch(
        """
        import torch

        @torch.compile
        def masked(x, mask):
            y = x * mask * 1.25
            return y, y.sum(0)

        x = torch.randn(4096, 16384, device="cuda", dtype=torch.bfloat16)
        mask = torch.ones(4096, 16384, device="cuda", dtype=torch.bool)
        masked(x, mask)
        """,
        environment=caches,
    )
    assert run.status == "traced", run.traceback
    (reduction,) = (op for op in collate(run).operations if isinstance(op, Kernel) and "_red_" in op.name)
    assert reduction.work is not None and reduction.bytes is not None
    assert 128 * reduction.work.lines < 8 * reduction.bytes  # the first candidate asks for 77 times its bytes


def test_products_are_left_to_the_library_whatever_is_tuned(
    launch: Callable[..., Run], caches: dict[str, str]
) -> None:
    run = launch(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).cuda().bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
        for _ in range(3):
            compiled(torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
        """,
        environment=caches,
    )
    assert run.status == "traced", run.traceback
    kernels = _kernels(run)
    assert any("fused" in name for name in kernels)
    assert not any(name.startswith("triton_tem") for name in kernels)


def test_the_neighbours_of_a_candidate_are_not_tried(
    launch: Callable[..., Run], caches: dict[str, str]
) -> None:
    compiled = []
    for tuned in (False, True):
        options = f"@torch.compile(options={{'coordinate_descent_tuning': {tuned}}})"
        caches["TRITON_CACHE_DIR"] += str(tuned)
        run = launch(COMPILED.replace("@torch.compile", options), environment=caches)
        assert run.status == "traced", run.traceback
        compiled.append(len(list(Path(caches["TRITON_CACHE_DIR"]).rglob("*.cubin"))))
    assert 0 < compiled[0] == compiled[1]


def test_a_device_that_the_toolkit_of_pytorch_has_dropped_is_compiled_for_and_noted(
    tmp_path: Path, caches: dict[str, str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMPILED.replace("bfloat16", "float16"))
    with ForkServer(load("dgx-v100")) as server:
        run = server.run(Job(str(script), environment=caches, timeout_s=120), tmp_path / "run")
    assert run.status == "traced", run.traceback
    assert any(name.startswith("triton_per_fused") for name in _kernels(run))
    # Assembled for the device itself, so that the registers are its own.
    sources = [path.read_text() for path in (tmp_path / "triton").rglob("*.ptx")]
    assert sources and all(".target sm_70" in source for source in sources)
    assert any("compute capability 7.0" in note for note in run.notes)


def _kernels(run: Run) -> list[str]:
    raw = read_rank(rank_path(run.directory, 0))
    launched = raw.records["op"][raw.records["kind"] == RecordKind.KERNEL].tolist()
    return [raw.operations[op].get("kernel", "a product") for op in launched]


def test_ranks_compile_a_kernel_once_for_all(
    launch: Callable[..., Run], caches: dict[str, str], tmp_path: Path
) -> None:
    """As PyTorch has it, where nobody names Triton's cache, each device's index has one of its own."""
    inductor = {"TORCHINDUCTOR_CACHE_DIR": caches["TORCHINDUCTOR_CACHE_DIR"]}
    run = launch(
        "import os, torch; torch.cuda.set_device(int(os.environ['LOCAL_RANK']))" + COMPILED,
        world=2,
        environment=inductor,
        ranks="all",
    )
    assert run.status == "traced", run.traceback
    compiled = [path.parent.name for path in (tmp_path / "inductor" / "triton").rglob("*.cubin")]
    assert compiled and len(compiled) == len(set(compiled))


def test_a_kernel_that_another_rank_compiles_is_waited_for(
    launch: Callable[..., Run], caches: dict[str, str], tmp_path: Path
) -> None:
    run = launch(
        """
        import sys, time, torch, triton, triton.language as tl
        from triton.backends.nvidia.compiler import CUDABackend

        @triton.jit
        def double(x, n: tl.constexpr):
            at = tl.arange(0, n)
            tl.store(x + at, 2 * tl.load(x + at))

        def slowly(self, *arguments):
            with open(sys.argv[1] + "/compiled", "a") as log:
                log.write("once\\n")
            time.sleep(2)
            return make_ptx(self, *arguments)

        make_ptx, CUDABackend.make_ptx = CUDABackend.make_ptx, slowly
        double[(1,)](torch.ones(64, device="cuda"), 64)
        """,
        world=2,
        environment=caches,
        ranks="all",
    )
    assert run.status == "traced", run.traceback
    assert (tmp_path / "results" / "compiled").read_text() == "once\n"
