"""Kernels of Transformer Engine's user buffers, launched under the names that they register, are what they exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from registered_kernels import LAUNCH

from maya.trace.types import RecordKind

# Rank 0 of four, which open each other's memory: 1 MiB, and another.
NODE = (
    LAUNCH
    + """
import torch
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
peers = []
for mib in (1, 2):
    own, handle = torch.empty(mib << 20, dtype=torch.uint8, device="cuda"), Handle()
    assert runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(own.data_ptr())) == 0
    peers.append([])
    for other in (1, 2, 3):
        opened = ctypes.c_void_p()
        assert runtime.cudaIpcOpenMemHandle(ctypes.byref(opened), handle, ctypes.c_uint(1)) == 0
        peers[-1].append(opened.value)
none, numbers = ctypes.c_void_p(), lambda *values: [ctypes.c_int(value) for value in values]
"""
)


def exchanged(run: Any) -> list[tuple[str, int, int]]:
    """(collective, bytes, peer) of each, in order."""
    records = run.trace.records[run.trace.records["kind"] == RecordKind.COLLECTIVE]
    names = [run.trace.operations[int(op)]["collective"] for op in records["op"]]
    return list(zip(names, records["size"].tolist(), records["peer"].tolist(), strict=True))


def test_kernels_that_sum_or_gather_are_collectives_of_the_ranks_that_they_name(
    emulate: Callable[..., Any],
) -> None:
    run = emulate(
        NODE
        + """
sums = b"_Z42userbuffers_fp16_sum_inplace_gpu_rr_rs_oopILi4EEviiiiiiiiiPPviS0_m"
launch(sums, 16, 1024, *numbers(0, 0, 0, 0, 1, 0, 1024, 64, 64), none, *numbers(0), none, ctypes.c_uint64())
gathers = b"_Z38userbuffers_fp16_sum_inplace_gpu_rw_agILi2EEviiiiiiiPPvim"
launch(gathers, 16, 1024, *numbers(0, 0, 0, 0, 2, 0, 256), none, *numbers(0), ctypes.c_uint64())
""",
        world=4,
    )
    assert exchanged(run) == [("reduce_scatter", 4 * 1024 * 16, -1), ("all_gather", 2 * 256 * 16, -1)]
    assert [it.members for it in run.trace.communicators.values()] == [(0, 1, 2, 3), (0, 2)]
    assert not [it for it in run.launched("kernel") if "userbuffers" in it["kernel"]]
    assert any("at the rates of NCCL" in told for told in run.trace.remarks)


def test_kernels_that_push_are_transfers_to_the_peer_in_whose_memory_they_raise_a_flag(
    emulate: Callable[..., Any],
) -> None:
    """What a kernel itself brings there goes over the same link as a copy."""
    run = emulate(
        NODE
        + """
def push(peer, lines):
    there = ctypes.c_void_p(peers[1][peer - 1] + 4096)
    return none, there, ctypes.c_void_p(own.data_ptr()), there, *numbers(lines)
push_name = b"_Z21kuserbuffers_pushsendPiS_P4int4S1_i"
launch(push_name, 1, 1, *push(1, 0))
launch(push_name, 16, 1024, *push(3, 4096))
launch(b"_Z21kuserbuffers_pushrecviiiiPiS_imS_S_", 1, 1, *numbers(0, 3, 0, 3), none, none, *numbers(1))
both = b"_Z25kuserbuffers_pushsendrecvPiS_P4int4S1_iiiS_S_imiiS_S_"
launch(both, 1, 1, *push(1, 0), *numbers(1, 3), none, none, *numbers(1), ctypes.c_uint64(), *numbers(1, 3))
""",
        world=4,
    )
    assert exchanged(run) == [("send", 4, 1), ("send", 4, 3), ("recv", 4, 3), ("send", 4, 1), ("recv", 4, 3)]
    records = run.trace.records
    copies = records["size"][records["kind"] == RecordKind.MEMCPY].tolist()
    assert copies.count(4096 * 16) == 1
    together = records["group"][records["kind"] == RecordKind.COLLECTIVE]
    assert together[3] == together[4] > 0 and not together[:3].any()


ATOMIC = "_Z32kuserbuffers_pushsendrecv_atomicPiS_P4int4S1_iiiS_S_iPvmiiS_S_"
SUM = "_Z38userbuffers_fp16_sum_inplace_gpu_rwILi4EEviiiiiiiPPvim"
PUSH = "_Z21kuserbuffers_pushsendPiS_P4int4S1_i"


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (ATOMIC, "*[none] * 16"),
        (SUM, "*numbers(*range(7)), none, none, none"),
        (PUSH, "none, none, none, none, *numbers(0)"),  # to nobody's memory
    ],
)
def test_a_kernel_of_theirs_that_is_not_known_is_told(
    emulate: Callable[..., Any], kernel: str, arguments: str
) -> None:
    run = emulate(f"{NODE}\nlaunch({kernel.encode()!r}, 1, 1, {arguments})", world=4)
    assert exchanged(run) == []
    assert [told for told in run.trace.uncovered if "Transformer Engine's user buffers" in told]


def test_a_counter_of_theirs_exchanges_nothing(emulate: Callable[..., Any]) -> None:
    run = emulate(f"{NODE}\nlaunch(b'_Z16kuserbuffers_incPi', 1, 1, none)", world=4)
    assert exchanged(run) == [] and not any("user buffers" in told for told in run.trace.uncovered)
