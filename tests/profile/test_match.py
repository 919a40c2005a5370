"""Matching what a GPU did with what the virtual device recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maya.errors import MayaError
from maya.profile.kineto import read_activities
from maya.profile.match import match
from maya.profile.types import Activity
from maya.trace.types import Collective, Gemm, Kernel, Memcpy, Memset, Operator

ADD = Operator("aten::add_", ((4, 8), (4, 8), ()))
ADDMM = Operator("aten::addmm", ((8,), (4, 8), (8, 8)))
ADD_KERNEL = Kernel("add<float>(int)", (2, 1, 1), (128, 1, 1), elements=32, operator=ADD)
PRODUCT = Gemm(m=8, n=4, k=8, operator=ADDMM)


def kernel(name: str, seconds: float, operator: Operator, call: int, **launch: Any) -> Activity:
    shape = {"grid": (2, 1, 1), "block": (128, 1, 1), **launch}
    return Activity("kernel", name, seconds, operator, call, **shape)


def test_own_kernel_is_known_by_its_launch() -> None:
    measured = [kernel("add< float >(int)", 2e-6, ADD, 1), kernel("add<float>(int)", 3e-6, ADD, 2)]
    matched = match({ADD_KERNEL: 1}, measured, iterations=2)
    assert matched.samples == {ADD_KERNEL: [2e-6, 3e-6]}
    assert matched.share == 1.0


def test_kernel_of_another_grid_is_another() -> None:
    wider = Kernel("add<float>(int)", (3, 1, 1), (128, 1, 1), operator=ADD)
    matched = match({ADD_KERNEL: 1, wider: 1}, [kernel("add<float>(int)", 2e-6, ADD, 1, grid=(3, 1, 1))], 1)
    assert matched.samples == {wider: [2e-6]}
    assert matched.unmeasured == (ADD_KERNEL,)


def test_library_call_takes_all_kernels_of_its_operator() -> None:
    measured = [
        kernel("cutlass_gemm", 4e-6, ADDMM, 7),
        kernel("splitKreduce", 1e-6, ADDMM, 7),
        kernel("cutlass_gemm", 6e-6, ADDMM, 9),
        kernel("splitKreduce", 1e-6, ADDMM, 9),
    ]
    assert match({PRODUCT: 1}, measured, iterations=2).samples[PRODUCT] == pytest.approx([5e-6, 7e-6])


def test_two_library_calls_of_one_operator_share_its_time() -> None:
    measured = [kernel("cutlass_gemm", 3e-6, ADDMM, 7), kernel("cutlass_gemm", 5e-6, ADDMM, 7)]
    assert match({PRODUCT: 2}, measured, iterations=1).samples[PRODUCT] == pytest.approx([4e-6, 4e-6])


def test_different_library_calls_of_one_operator_cannot_be_told_apart() -> None:
    other = Gemm(m=16, n=4, k=8, operator=ADDMM)
    measured = [kernel("cutlass_gemm", 3e-6, ADDMM, 7), kernel("cutlass_gemm", 5e-6, ADDMM, 7)]
    matched = match({PRODUCT: 1, other: 1}, measured, iterations=1)
    assert matched.samples == {}
    assert matched.unmatched == {"cutlass_gemm in aten::addmm": pytest.approx(8e-6)}
    assert set(matched.unmeasured) == {PRODUCT, other}


def test_operator_of_a_shortened_tensor_list_is_known_by_its_name() -> None:
    whole, shortened = (
        Operator("aten::_foreach_add_", ((4,),) * 40),
        Operator("aten::_foreach_add_", ((4,),) * 30),
    )
    update = Kernel("multi_tensor_apply", (2, 1, 1), (128, 1, 1), operator=whole)
    assert match({update: 1}, [kernel("multi_tensor_apply", 1e-6, shortened, 3)], 1).samples == {
        update: [1e-6]
    }


def test_copies_are_known_by_direction_size_and_pinning() -> None:
    copies = [
        Activity("memcpy", "Memcpy HtoD (Pinned -> Device)", 1e-6, bytes=64),
        Activity("memcpy", "Memcpy HtoD (Pageable -> Device)", 2e-6, bytes=64),
        Activity("memcpy", "Memcpy DtoD (Device -> Device)", 3e-6, bytes=64),
        Activity("memset", "Memset (Device)", 4e-6, bytes=64),
    ]
    pinned, pageable = Memcpy("h2d", 64), Memcpy("h2d", 64, pinned=False)
    matched = match({pinned: 1, pageable: 1, Memcpy("d2d", 64): 1, Memset(64): 1}, copies, 1)
    assert matched.samples == {
        pinned: [1e-6], pageable: [2e-6], Memcpy("d2d", 64): [3e-6], Memset(64): [4e-6],
    }  # fmt: skip


def test_collectives_are_not_measured_alone() -> None:
    reduce = Collective("all_reduce", "fp32", 64, (0, 1))
    assert match({reduce: 1}, [kernel("ncclDevKernel", 1e-6, Operator(), 0)], 1).unmeasured == (reduce,)


def kineto(events: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": [{"ph": "X", "ts": n, **event} for n, event in enumerate(events)]})
    )
    return path


def test_profilers_trace_names_the_operator_of_a_kernel(tmp_path: Path) -> None:
    operator = {"External id": 5, "Input Dims": [[[4], [4]], [8, 8], []]}
    launch = {"External id": 5, "grid": [2, 1, 1], "block": [128, 1, 1], "correlation": 9}
    path = kineto(
        [
            {"cat": "cpu_op", "name": "aten::cat", "dur": 9, "args": operator},
            {"cat": "kernel", "name": "cat_kernel(int)", "dur": 1.5, "args": launch},
            {"cat": "gpu_memset", "name": "Memset (Device)", "dur": 2, "args": {"bytes": 16}},
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 3, "args": {}},
        ],
        tmp_path,
    )
    operator_of_it = Operator("aten::cat", ((4,), (4,), (8, 8), ()))
    assert read_activities(path) == [
        Activity("kernel", "cat_kernel(int)", 1.5e-6, operator_of_it, 5, (2, 1, 1), (128, 1, 1)),
        Activity("memset", "Memset (Device)", 2e-6, bytes=16),
    ]


def test_trace_without_device_activity_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(MayaError, match="CUPTI"):
        read_activities(kineto([{"cat": "cpu_op", "name": "aten::cat", "dur": 9}], tmp_path))
