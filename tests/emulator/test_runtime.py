"""The CUDA runtime, met through an unmodified PyTorch wheel."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from maya.launch.layout import HEADER, rank_path
from maya.trace.format import read_rank
from maya.trace.types import RecordKind

pytest.importorskip("torch")
Emulate = Callable[..., Any]

BLOCKING, GRAPH = 1, 2


def kinds(run: Any) -> list[RecordKind]:
    return [RecordKind(kind) for kind in run.trace.records["kind"]]


def test_device_reports_what_the_configuration_says(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        p = torch.cuda.get_device_properties(1)
        result = [torch.cuda.device_count(), p.name, p.total_memory, p.multi_processor_count, p.major, p.minor,
                  p.L2_cache_size, p.shared_memory_per_block_optin, p.regs_per_multiprocessor, p.warp_size]
        """,
        devices=2,
        device_name="NVIDIA A100-SXM4-80GB",
        memory_bytes=85_097_971_712,
        multiprocessors=108,
        major=8,
        minor=0,
        l2_bytes=41_943_040,
        shared_memory_per_block_optin=166_912,
    )
    assert run.result == [
        2,
        "NVIDIA A100-SXM4-80GB",
        85_097_971_712,
        108,
        8,
        0,
        41_943_040,
        166_912,
        65536,
        32,
    ]


def test_device_older_than_the_toolkit_runs_what_is_tuned_by_architecture(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        embedding = torch.nn.Embedding(1000, 64, device="cuda")
        tokens = torch.zeros(4096, dtype=torch.long, device="cuda")
        embedding(tokens).sum().backward()  # so many are sorted first, by CUB
        result = list(embedding.weight.grad.shape)
        """,
        major=7,
        minor=0,
    )
    assert run.result == [1000, 64]


def test_training_step_repeats_its_hash(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        assert ctypes.CDLL(None).maya_observe_operators(1) == 0
        for _ in range(4):
            x, y = torch.randn(16, 64).cuda(), torch.zeros(16, dtype=torch.long).cuda()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    steps = run.trace.records[run.trace.records["kind"] == RecordKind.STEP]
    assert steps["arg"].tolist() == [1, 2, 3, 4]
    hashes = steps["hash"].tolist()
    assert hashes[1] == hashes[2] == hashes[3]
    assert hashes[0] != hashes[1]  # the first step makes the optimizer's state
    operators = {context["operator"] for context in run.trace.contexts.values()}
    assert {"aten::addmm", "aten::gelu", "aten::mm"} <= operators  # forward and backward


@pytest.mark.parametrize("observe", ["", "ctypes.CDLL(None).maya_observe_operators(1)"])
def test_operator_context_carries_shapes_without_ids(emulate: Emulate, observe: str) -> None:
    run = emulate(
        f"""
        import torch
        x = torch.ones(4, 8, device="cuda")
        {observe}
        with torch.autograd.profiler.emit_nvtx(record_shapes=True):
            x.relu()
            x.relu()
        """
    )
    relu = [context for context in run.trace.contexts.values() if context["operator"] == "aten::clamp_min"]
    assert [context["sizes"] for context in relu] == ["[[4, 8], []]"]


def test_library_range_of_a_name_unknown_leaves_its_kernels_to_the_operator(emulate: Emulate) -> None:
    """cub's ranges have registered names."""
    run = emulate(
        """
        import torch
        ctypes.CDLL(None).maya_observe_operators(1)
        torch.arange(1 << 20, device="cuda").sort()
        """
    )
    contexts = {context["operator"] for context in run.trace.contexts.values()}
    assert "aten::sort" in contexts and "nvtx" not in contexts


def test_step_announced_to_two_observers_is_one_step(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4, device="cuda"))])
        ctypes.CDLL(None).maya_observe_operators(1)
        optimizer.step()  # before any backward pass: it makes the optimizer's state
        with torch.autograd.profiler.emit_nvtx():
            optimizer.step()
            optimizer.step()
        """
    )
    assert run.count(RecordKind.STEP) == 2


def test_operator_of_symbolic_sizes_leaves_the_context_of_others_alone(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        x = torch.ones(4, 8, device="cuda")
        ctypes.CDLL(None).maya_observe_operators(1)
        with torch.autograd.profiler.record_function("outer"):
            fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(4, 8), static_shapes=False)
            (fake + 1).sum()
            torch.cuda.current_stream().synchronize()
        """
    )
    synchronizations = run.trace.records[run.trace.records["kind"] == RecordKind.STREAM_SYNCHRONIZE]
    contexts = [run.trace.contexts[int(context)]["operator"] for context in synchronizations["context"]]
    assert contexts == ["outer"]


def test_records_count_the_operators_observed(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch, time
        x = torch.ones(4, device="cuda")
        ctypes.CDLL(None).maya_observe_operators(1)
        for _ in range(10):
            time.sleep(0)
            x.view(2, 2).view(4)
            x.add_(1)
        with torch.autograd.profiler.record_function("outer"):
            x.add_(1)
            torch.cuda.current_stream().synchronize()
        """
    )
    adds, (synchronized,) = run.trace.records[-12:-2], run.trace.records[-1:]
    assert adds["ranges"].tolist()[1:] == [3] * 9  # two views, and itself
    assert synchronized["ranges"] == 0


def test_script_may_use_pytorchs_profiler(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(4, device="cuda")
        ctypes.CDLL(None).maya_observe_operators(1)
        with torch.profiler.profile(record_shapes=True) as profile:
            x.add_(1)
        result = [(event.key, event.input_shapes) for event in profile.key_averages(group_by_input_shape=True)]
        """
    )
    assert ["aten::add_", [[4], [], []]] in run.result
    assert run.trace.unsupported == ()


def test_elementwise_kernel_tells_elements_and_bytes(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(1024, 1024, device="cuda")
        y = x * x
        """
    )
    fill, multiply = run.launched("kernel")
    assert "FillFunctor<float>" in fill["kernel"]
    assert (fill["elements"], fill["bytes"]) == (1 << 20, 4 << 20)
    assert (multiply["elements"], multiply["bytes"]) == (1 << 20, 12 << 20)


def test_optimizer_kernels_tell_the_elements_of_their_tensor_lists(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        tensors = [torch.empty(shape, device="cuda") for shape in ((3, 5), (300, 1000), (7,))]
        torch._foreach_mul_(tensors, 2.0)
        torch._foreach_div_(tensors, [1.0, 2.0, 3.0])
        parameters = [torch.nn.Parameter(tensor) for tensor in tensors]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        torch.optim.AdamW(parameters, fused=True).step()
        """
    )
    lists = [kernel for kernel in run.launched("kernel") if "multi_tensor_apply_kernel" in kernel["kernel"]]
    counts = {kernel["elements"] for kernel in lists if "StepFunctor" not in kernel["kernel"]}
    assert counts & {15 + 300_000 + 7} == {300_022}
    assert any("FusedAdam" in kernel["kernel"] and kernel["elements"] == 300_022 for kernel in lists)
    assert any("ScalarList" in kernel["kernel"] and kernel["elements"] == 300_022 for kernel in lists)


def test_values_return_from_the_device(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        small = torch.tensor([3.5, -2.0]).cuda()
        large = torch.full((1 << 20,), 7.0).cuda()
        pinned = torch.arange(5).pin_memory()
        result = [small[1].item(), pinned.cuda(non_blocking=True).cpu().tolist(), large.cpu().sum().item(),
                  pinned.is_pinned()]
        """
    )
    assert run.result == [-2.0, [0, 1, 2, 3, 4], 0.0, True]  # more than 64 KiB reads as zeros


def test_reading_back_blocks_the_host(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(8, device="cuda")
        x.cpu()
        """
    )
    records = run.trace.records
    copies = records[records["kind"] == RecordKind.MEMCPY]
    assert copies["flags"].tolist() == [BLOCKING]  # pageable destination


def test_out_of_memory_is_pytorchs_own_with_its_numbers(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        kept = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            result = str(error)
        """,
        memory_bytes=1 << 30,
        context_bytes=100 << 20,
    )
    assert (
        "Tried to allocate 600.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of which 412.00 MiB"
        in run.result
    )
    header = np.fromfile(run.trace.path, HEADER, count=1)[0]
    assert header["oom_count"] > 0
    assert (header["oom_requested_bytes"], header["oom_free_bytes"]) == (600 << 20, 412 << 20)
    assert run.trace.peak_reserved_bytes == 512 << 20


def test_managed_memory_gives_way_to_the_devices_own_and_is_never_refused(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        runtime, paged, location = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p(), (ctypes.c_int * 2)(1, 0)
        result = [runtime.cudaMallocManaged(ctypes.byref(paged), ctypes.c_size_t(700 << 20), 2),
                  runtime.cudaMemPrefetchAsync(paged, ctypes.c_size_t(700 << 20), location, 0, None)]
        kept = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
        result += torch.cuda.mem_get_info()
        result += [runtime.cudaFree(paged), *torch.cuda.mem_get_info()]
        """,
        memory_bytes=1 << 30,
        context_bytes=100 << 20,
    )
    assert run.result == [0, 0, 0, 1 << 30, 0, 324 << 20, 1 << 30]
    assert run.trace.peak_reserved_bytes == 924 << 20
    (paging,) = run.trace.uncovered
    assert paging.startswith("cudaMallocManaged: more than the device has room for")


def test_freed_memory_can_be_taken_again(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        for _ in range(3):
            x = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
            del x
            torch.cuda.empty_cache()
        result = torch.cuda.mem_get_info()
        """,
        memory_bytes=1 << 30,
        context_bytes=100 << 20,
    )
    assert run.result == [924 << 20, 1 << 30]
    assert run.count(RecordKind.ALLOCATE) == run.count(RecordKind.FREE) == 3


def test_stream_waits_for_recorded_event(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        side, event, never = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        x = torch.ones(8, device="cuda")
        event.record()
        side.wait_event(never)
        side.wait_event(event)
        with torch.cuda.stream(side):
            x + 1
        event.synchronize()
        torch.cuda.synchronize()
        """
    )
    records = run.trace.records
    recorded = records[records["kind"] == RecordKind.EVENT_RECORD]
    waited = records[records["kind"] == RecordKind.STREAM_WAIT_EVENT]
    assert waited["arg"].tolist() == recorded["arg"].tolist()  # the wait for an unrecorded event is no wait
    assert recorded["stream"][0] == 0 and waited["stream"][0] != 0
    assert kinds(run)[-2:] == [RecordKind.EVENT_SYNCHRONIZE, RecordKind.DEVICE_SYNCHRONIZE]


def test_elapsed_time_counts_operations_and_says_so(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(8, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        x + 1
        x * 2
        end.record()
        end.synchronize()
        result = [start.elapsed_time(end), start.query()]
        """
    )
    assert run.result == [2.0, True]
    assert any("cudaEventElapsedTime" in reason for reason in run.trace.remarks)


def test_captured_graph_replays_its_records_at_each_launch(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(64, device="cuda")
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            y = x + 1
            side.wait_stream(torch.cuda.current_stream())  # a branch joins through events
            with torch.cuda.stream(side):
                z = y * 2
            torch.cuda.current_stream().wait_stream(side)
            w = z - 3
        for _ in range(2):
            graph.replay()
        """
    )
    records = run.trace.records
    replayed = records[(records["flags"] & GRAPH) != 0]
    kernels = replayed[replayed["kind"] == RecordKind.KERNEL]
    assert len(kernels) % 2 == 0 and len(kernels) >= 6
    first, second = np.split(replayed, 2)
    for field in ("kind", "op", "stream"):
        assert first[field].tolist() == second[field].tolist()
    assert len(set(first["stream"].tolist())) == 2  # the branch keeps a stream of its own
    assert RecordKind.STREAM_WAIT_EVENT in first["kind"]


def test_optimizer_step_under_capture_is_one_at_each_launch(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        cuda = ctypes.CDLL(None)
        assert cuda.maya_observe_operators(1) == 0
        weight = torch.nn.Parameter(torch.ones(64, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        graph = torch.cuda.CUDAGraph()
        weight.sum().backward()
        optimizer.step()
        with torch.cuda.graph(graph):
            optimizer.step()
        for _ in range(2):
            torch.zeros(8, device="cuda")
            graph.replay()
        cuda.maya_observe_operators(0)
        """
    )
    records = run.trace.records
    (rows,) = np.nonzero(records["kind"] == RecordKind.STEP)
    assert records["arg"][rows].tolist() == [1, 2, 3]
    assert (records["flags"][rows] & GRAPH).tolist() == [0, GRAPH, GRAPH]
    assert set(records["kind"][rows[0] + 1 : rows[1]]) >= {RecordKind.KERNEL}
    assert records["kind"][rows[-1] - 1] == RecordKind.KERNEL  # what the step launches lies before it


LAUNCHES = """
import torch
x = torch.ones(64, device="cuda")
host = torch.ones(64).pin_memory()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
x @ x
x.copy_(host, non_blocking=True)
graph.replay()
"""


@pytest.mark.parametrize(("value", "noted"), [("1", True), ("32", False), (None, False)])
def test_fewer_connections_than_streams_are_noted(emulate: Emulate, value: str | None, noted: bool) -> None:
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": value} if value else None
    remarks = emulate(
        "import torch; torch.cuda.Stream(), torch.cuda.Stream()", variables=variables
    ).trace.remarks
    assert sum("CUDA_DEVICE_MAX_CONNECTIONS" in remark for remark in remarks) == noted


@pytest.mark.parametrize("value", ["1", "0", None])
def test_launch_blocking_holds_the_host_at_each_kernel_but_at_no_copy_or_graph(
    emulate: Emulate, value: str | None
) -> None:
    run = emulate(LAUNCHES, variables={"CUDA_LAUNCH_BLOCKING": value} if value else None)
    records = run.trace.records
    blocks, replayed = (records["flags"] & BLOCKING) != 0, (records["flags"] & GRAPH) != 0
    kernels = (records["kind"] == RecordKind.KERNEL) & ~replayed
    assert np.count_nonzero(kernels) >= 2 and replayed.any()
    assert blocks[kernels].all() if value == "1" else not blocks[kernels].any()
    assert not blocks[replayed].any() and not blocks[records["kind"] == RecordKind.MEMCPY].any()
    assert any("CUDA_LAUNCH_BLOCKING" in remark for remark in run.trace.remarks) == (value == "1")


def test_launch_blocking_can_be_set_by_the_script_itself(emulate: Emulate) -> None:
    run = emulate(
        """
        import os
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        import torch
        torch.ones(64, device="cuda")
        """
    )
    (fill,) = run.trace.records[run.trace.records["kind"] == RecordKind.KERNEL]
    assert fill["flags"] & BLOCKING


EXTERNAL = """
import torch
x = torch.ones(64, device="cuda")
start, end, other = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(3))
never = torch.cuda.Event(external=True)
other.record()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    current = torch.cuda.current_stream()
    start.record()
    x * 2
    end.record()
    x + 1
    current.wait_event(other)
    current.wait_event(never)
for _ in range(2):
    graph.replay()
end.synchronize()
result = [start.elapsed_time(end), other.query()]
"""


def test_external_events_are_met_at_each_launch(emulate: Emulate) -> None:
    run = emulate(EXTERNAL)
    assert run.result == [1.0, True]
    records = run.trace.records
    replayed = records[(records["flags"] & GRAPH) != 0]
    recorded = replayed["arg"][replayed["kind"] == RecordKind.EVENT_RECORD].tolist()
    (other,) = records["arg"][(records["kind"] == RecordKind.EVENT_RECORD) & (records["flags"] == 0)]
    assert recorded[:2] == recorded[2:] and len(set(recorded)) == 2
    waited = replayed["arg"][replayed["kind"] == RecordKind.STREAM_WAIT_EVENT]
    assert waited.tolist() == [other, other]  # what was never recorded is not waited for
    (synchronized,) = records["arg"][records["kind"] == RecordKind.EVENT_SYNCHRONIZE]
    assert synchronized == recorded[-1]


def test_external_records_and_waits_are_nodes_of_the_graph(emulate: Emulate) -> None:
    run = emulate(
        """
        cuda = ctypes.CDLL(None)
        stream, event, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        assert cuda.cudaStreamCreate(ctypes.byref(stream)) == cuda.cudaEventCreate(ctypes.byref(event)) == 0
        assert cuda.cudaStreamBeginCapture(stream, 0) == 0
        assert cuda.cudaEventRecordWithFlags(event, stream, 1) == cuda.cudaStreamWaitEvent(stream, event, 1) == 0
        assert cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
        nodes, count = (ctypes.c_void_p * 4)(), ctypes.c_size_t(4)
        assert cuda.cudaGraphGetNodes(graph, nodes, ctypes.byref(count)) == 0
        kinds = [ctypes.c_int() for _ in range(count.value)]
        for node, kind in zip(nodes, kinds):
            assert cuda.cudaGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) == 0
        result = [kind.value for kind in kinds]
        """
    )
    assert run.result == [7, 6]  # cudaGraphNodeTypeEventRecord, cudaGraphNodeTypeWaitEvent


JOINED = {
    "through another stream": """
        last.wait_stream(side)
        with torch.cuda.stream(last):
            y * 3
        current.wait_stream(last)
        """,
    "by an event that is not the last": """
        joined = side.record_event()
        side.record_event()
        current.wait_event(joined)
        """,
}
UNJOINED = {
    "never": "",
    "before its last work": """
        current.wait_stream(side)
        with torch.cuda.stream(side):
            y * 3
        """,
    "by a stream that is not joined": "last.wait_stream(side)",
}


def captured_with_a_branch(emulate: Emulate, then: str) -> str:
    """How the capture ends of a branch on `side` that goes on so."""
    run = emulate(
        """
        import torch
        x = torch.ones(64, device="cuda")
        graph, side, last = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
        try:
            with torch.cuda.graph(graph):
                current = torch.cuda.current_stream()
                side.wait_stream(current)
                with torch.cuda.stream(side):
                    y = x * 2
                exec(THEN)
            result = "captured"
        except RuntimeError as error:
            result = str(error)
        """.replace("THEN", repr(textwrap.dedent(then)))
    )
    return str(run.result)


@pytest.mark.parametrize("then", JOINED.values(), ids=JOINED)
def test_branch_is_joined_by_whatever_the_origin_waits_for_in_the_end(emulate: Emulate, then: str) -> None:
    assert captured_with_a_branch(emulate, then) == "captured"


@pytest.mark.parametrize("then", UNJOINED.values(), ids=UNJOINED)
def test_capture_that_a_branch_does_not_rejoin_is_an_error(emulate: Emulate, then: str) -> None:
    assert "unjoined" in captured_with_a_branch(emulate, then)


def test_device_synchronize_under_capture_is_an_error(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(64, device="cuda")
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.cuda.synchronize()
            result = "captured"
        except RuntimeError as error:
            result = str(error)
        """
    )
    assert "capturing" in run.result


def test_unsupported_call_is_refused_by_name(emulate: Emulate) -> None:
    run = emulate(
        """
        import ctypes
        library = ctypes.CDLL("libcuda.so.1")
        refused = library.cusparseSpGEMM_compute
        result = [refused(), refused(), library.cudaGraphicsUnregisterResource()]
        """
    )
    assert run.result == [10, 10, 801]  # CUSPARSE_STATUS_NOT_SUPPORTED, cudaErrorNotSupported
    assert {"cusparse.cusparseSpGEMM_compute", "cudart.cudaGraphicsUnregisterResource"} <= set(
        run.trace.unsupported
    )
    assert run.stderr.count("cusparseSpGEMM_compute") == 1


def test_destroyed_and_foreign_handles_are_told(emulate: Emulate) -> None:
    run = emulate(
        """
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        stream, event, handle = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        made = [cuda.cudaStreamCreate(ctypes.byref(stream)), cuda.cudaEventCreate(ctypes.byref(event))]
        foreign = ctypes.create_string_buffer(4096)
        result = made + [cuda.cudaStreamDestroy(stream), cuda.cudaStreamDestroy(stream),
                         cuda.cudaEventRecord(event, stream), cuda.cudaEventRecord(foreign, None),
                         cuda.cudaFree(foreign), cuda.cusolverDnDestroyParams(foreign),
                         cuda.cusolverDnCreateParams(ctypes.byref(handle)), cuda.cusolverDnDestroyParams(handle),
                         cuda.cusolverDnDestroyParams(handle)]
        """
    )
    assert run.result == [0, 0, 0, 400, 400, 400, 1, 3, 0, 0, 3]


def test_host_function_runs_in_stream_order(emulate: Emulate) -> None:
    run = emulate(
        """
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        seen = []
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append(data))
        result = [cuda.cudaLaunchHostFunc(None, callback, ctypes.c_void_p(7)), seen]
        """
    )
    assert run.result == [0, [7]]


def test_host_time_leaves_out_sleep_and_counts_work(emulate: Emulate) -> None:
    run = emulate(
        """
        import time, torch
        x = torch.ones(8, device="cuda")
        x + 1
        before = time.thread_time_ns()
        time.sleep(0.2)
        while time.thread_time_ns() - before < 50_000_000:
            pass
        x + 1
        """
    )
    kernels = run.trace.records[run.trace.records["kind"] == RecordKind.KERNEL]
    assert 50_000_000 <= kernels["host_ns"][2] < 150_000_000


def test_rank_begins_after_fork_with_the_parents_kernels(emulate: Emulate, tmp_path: Any) -> None:
    run = emulate(
        """
        import ctypes, os, torch
        from pathlib import Path
        directory = Path("child")
        directory.mkdir()
        Path("child.config").write_text(f"trace_dir {directory.resolve()}\\nrank 3\\nworld 4\\n")
        # this process is a rank itself; the fork server is not: leave recording to a fresh child
        import subprocess, sys
        code = '''
        import ctypes, os, torch
        child = os.fork()
        if child == 0:
            assert ctypes.CDLL(None).maya_begin_rank(b"child.config") == 0
            torch.ones(8, device="cuda").add_(1)
            os._exit(0)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        '''
        import textwrap
        result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode
        """
    )
    assert run.result == 0
    child = read_rank(rank_path(tmp_path / "child", 3))
    assert child.rank == 3
    assert np.count_nonzero(child.records["kind"] == RecordKind.KERNEL) == 2


def test_process_that_a_rank_forks_records_nothing_in_the_ranks_trace(emulate: Emulate) -> None:
    run = emulate(
        """
        import os, torch
        cuda = ctypes.CDLL(None)
        assert cuda.maya_observe_operators(1) == 0
        x = torch.ones(8)
        child = os.fork()
        if child == 0:
            weight = torch.nn.Parameter(torch.zeros(3))
            weight.grad = torch.cat([torch.ones(1), torch.ones(2)])
            torch.optim.SGD([weight]).step()
            torch.ones(16, device="cuda")
            cuda.cusparseSpGEMM_compute()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        torch.ones(4, device="cuda").add_(1)
        cuda.maya_observe_operators(0)
        """
    )
    assert kinds(run).count(RecordKind.KERNEL) == 2
    assert RecordKind.STEP not in kinds(run)
    names = {context["operator"] for context in run.trace.contexts.values()}
    assert "aten::add_" in names and "aten::cat" not in names
    assert not run.trace.unsupported
    header = np.fromfile(run.trace.path, HEADER, count=1)[0]
    assert header["steps"] == 0 and header["records"] == len(run.trace.records)


@pytest.mark.parametrize(
    ("asks", "noted"),
    [
        ("torch.profiler.profile().__enter__().stop()", True),
        ("torch.special.bessel_j0(torch.zeros(8, device='cuda'))", False),  # compiled by NVRTC
    ],
)
def test_a_scripts_own_profiler_is_noted(emulate: Emulate, asks: str, noted: bool) -> None:
    remarks = emulate(f"import torch; torch.zeros(1, device='cuda'); {asks}").trace.remarks
    assert any("profiler that the script starts" in remark for remark in remarks) == noted
