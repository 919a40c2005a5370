"""The driver API, called as libraries call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from maya.trace.types import RecordKind

CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
u64, byref = ctypes.c_uint64, ctypes.byref
MIB = 1 << 20
class Properties(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int) for n in ("type", "handles", "location_type", "location")] + [
        ("metadata", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]
on_device = Properties(type=1, location_type=1, location=0)
def create(bytes):
    handle = u64()
    return cuda.cuMemCreate(byref(handle), u64(bytes), byref(on_device), u64(0)), handle
"""


def test_mapped_memory_counts_until_it_is_unmapped_and_released(emulate: Callable[..., Any]) -> None:
    run = emulate(
        CUDA
        + """
status, handle = create(64 * MIB)
address = u64()
assert status == 0 and cuda.cuMemAddressReserve(byref(address), u64(256 * MIB), u64(0), u64(0), u64(0)) == 0
assert cuda.cuMemMap(address, u64(64 * MIB), u64(0), handle, u64(0)) == 0
overlapping = cuda.cuMemMap(u64(address.value + 32 * MIB), u64(64 * MIB), u64(0), handle, u64(0))
outside = cuda.cuMemMap(u64(address.value + 256 * MIB), u64(64 * MIB), u64(0), handle, u64(0))
assert cuda.cuMemRelease(handle) == 0
kind, base = ctypes.c_uint(), u64()
assert cuda.cuPointerGetAttribute(byref(kind), 2, u64(address.value + 5)) == 0
assert cuda.cuMemGetAddressRange_v2(byref(base), None, u64(address.value + 5)) == 0
assert cuda.cuMemUnmap(address, u64(64 * MIB)) == 0
assert cuda.cuMemAddressFree(address, u64(256 * MIB)) == 0
result = [overlapping, outside, kind.value, base.value == address.value, cuda.cuMemRelease(handle)]
"""
    )
    assert run.result == [1, 1, 2, True, 1]  # invalid value, device memory, released twice
    assert run.trace.peak_reserved_bytes == 64 << 20


def test_imported_memory_is_another_devices_and_counted_there(emulate: Callable[..., Any]) -> None:
    run = emulate(
        CUDA
        + """
on_device.handles = 1  # as a file descriptor
status, handle = create(64 * MIB)
exported, imported, addresses = ctypes.c_int(-1), u64(), [u64(), u64()]
assert status == 0 and cuda.cuMemExportToShareableHandle(byref(exported), handle, 1, u64(0)) == 0
as_fabric = cuda.cuMemExportToShareableHandle(byref(exported), handle, 8, u64(0))
file = ctypes.c_void_p(exported.value)
assert cuda.cuMemImportFromShareableHandle(byref(imported), file, 1) == 0
for address, each in zip(addresses, (handle, imported)):
    assert cuda.cuMemAddressReserve(byref(address), u64(64 * MIB), u64(0), u64(0), u64(0)) == 0
    assert cuda.cuMemMap(address, u64(64 * MIB), u64(0), each, u64(0)) == 0
assert cuda.cuMemcpyDtoDAsync_v2(*addresses, u64(MIB), None) == 0
on_device.handles = 0
status, private = create(2 * MIB)
kept_private = cuda.cuMemExportToShareableHandle(byref(exported), private, 1, u64(0))
foreign = cuda.cuMemImportFromShareableHandle(byref(imported), ctypes.c_void_p(0), 1)
for address in addresses:
    assert cuda.cuMemUnmap(address, u64(64 * MIB)) == 0
result = [as_fabric, kept_private, foreign]
"""
    )
    assert run.result == [801, 1, 1]  # not supported, and twice invalid value
    assert run.trace.peak_reserved_bytes == 66 << 20
    copies = run.trace.records[run.trace.records["kind"] == RecordKind.MEMCPY]
    assert [run.trace.operations[int(op)]["direction"] for op in copies["op"]] == ["p2p"]


def test_creating_more_memory_than_the_device_has_is_out_of_memory(emulate: Callable[..., Any]) -> None:
    run = emulate(
        CUDA + "result = [create(600 * MIB)[0], create(600 * MIB)[0]]\n",
        memory_bytes=1 << 30,
        context_bytes=100 << 20,
    )
    assert run.result == [0, 2]


@pytest.mark.parametrize(
    ("version", "symbol"), [(12040, "cuEventElapsedTime"), (13000, "cuEventElapsedTime_v2")]
)
def test_entry_point_is_the_newest_form_of_the_callers_version(
    version: int, symbol: str, emulate: Callable[..., Any]
) -> None:
    run = emulate(
        CUDA
        + f"""
pointer, query = ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuGetProcAddress_v2(b"cuEventElapsedTime", byref(pointer), {version}, u64(0), byref(query)) == 0
result = pointer.value == ctypes.cast(getattr(cuda, {symbol!r}), ctypes.c_void_p).value
"""
    )
    assert run.result is True


def test_unknown_entry_point_is_not_found(emulate: Callable[..., Any]) -> None:
    run = emulate(
        CUDA
        + """
pointer, query = ctypes.c_void_p(), ctypes.c_int()
status = cuda.cuGetProcAddress_v2(b"cuNoSuchThing", byref(pointer), 13000, u64(0), byref(query))
result = [status, pointer.value, query.value]
"""
    )
    assert run.result == [500, None, 1]


def test_contexts_are_pushed_popped_and_refused_when_destroyed(emulate: Callable[..., Any]) -> None:
    run = emulate(
        CUDA
        + """
context, top = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuCtxCreate_v2(byref(context), 0, 1) == 0
device = ctypes.c_int(-1)
cuda.cuCtxGetDevice(byref(device))
assert cuda.cuCtxPopCurrent_v2(byref(top)) == 0 and top.value == context.value
assert cuda.cuCtxDestroy_v2(context) == 0
result = [device.value, cuda.cuCtxSetCurrent(context), cuda.cuDeviceGet(byref(device), 7)]
""",
        devices=2,
    )
    invalid_context, invalid_device = 201, 101
    assert run.result == [1, invalid_context, invalid_device]


def test_a_stream_has_its_devices_context_and_the_default_stream_the_threads(
    emulate: Callable[..., Any],
) -> None:
    run = emulate(
        CUDA
        + """
context, stream, none = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
result = [cuda.cuStreamGetCtx(none, byref(context))]
primary = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(byref(primary), 0) == 0 and cuda.cuCtxSetCurrent(primary) == 0
assert cuda.cuStreamCreate(byref(stream), 1) == 0
for handle in (none, stream):
    result += [cuda.cuStreamGetCtx(handle, byref(context)), context.value == primary.value]
result.append(cuda.cuStreamGetCtx(ctypes.c_void_p(4096), byref(context)))
"""
    )
    invalid_context, invalid_handle = 201, 400
    assert run.result == [invalid_context, 0, True, 0, True, invalid_handle]


PTX = (
    ".version 8.0\\n.target sm_90\\n.address_size 64\\n"
    ".visible .entry touch(\\n.param .u64 .ptr .global touch_param_0,\\n.param .u32 touch_param_1\\n)\\n{\\n"
    "ld.param.b64 %rd1, [touch_param_0];\\nld.param.b32 %r1, [touch_param_1];\\n"
    "mov.u32 %r2, %ctaid.x;\\nmov.u32 %r3, %ntid.x;\\nmov.u32 %r4, %tid.x;\\n"
    "mad.lo.s32 %r5, %r2, %r3, %r4;\\nsetp.lt.s32 %p1, %r5, %r1;\\n"
    "mad.wide.s32 %rd2, %r5, 4, %rd1;\\n@%p1 st.global.b32 [ %rd2 + 0 ], { %r5 };\\nret;\\n}\\n"
)


def test_launch_carries_name_shape_and_the_bytes_its_ptx_touches(emulate: Callable[..., Any]) -> None:
    run = emulate(
        CUDA
        + f"""
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuModuleLoadData(byref(module), b"{PTX}") == 0
missing = cuda.cuModuleGetFunction(byref(function), module, b"absent")
assert cuda.cuModuleGetFunction(byref(function), module, b"touch") == 0
pointer, count = u64(0x7f0000000000), ctypes.c_int(1000)
arguments = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(count))
assert cuda.cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, None, arguments, None) == 0
result = [missing, cuda.cuLaunchKernel(function, 0, 1, 1, 128, 1, 1, 0, None, arguments, None),
          cuda.cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 100_000, None, arguments, None)]
"""
    )
    assert run.result == [500, 1, 1]  # not found; no grid; more shared memory than was asked for
    (launch,) = run.launched("kernel")
    assert launch["kernel"] == "touch"
    assert (launch["grid"], launch["block"]) == ([8, 1, 1], [128, 1, 1])
    assert launch["bytes"] == 1000 * 4
    stores, lines = 1000, 1000 * 4 // 128 + 1  # of which the last is not full
    assert launch["work"] == [1024 * 3 + stores, 0, 0, lines, 0]  # mad, setp and mad each


def entry(body: str) -> str:
    """A kernel of one pointer whose %rd1 is that, %r1 the thread and %r2 the block, of four threads' blocks or more."""
    return (
        ".version 8.0\\n.target sm_90\\n.address_size 64\\n"
        ".visible .entry touch(\\n.param .u64 .ptr .global touch_param_0\\n)\\n{\\n"
        "ld.param.b64 %rd1, [touch_param_0];\\nmov.u32 %r1, %tid.x;\\nmov.u32 %r2, %ctaid.x;\\n"
        + "\\n".join(body.split("\n"))
        + "\\nret;\\n}\\n"
    )


def launched(emulate: Callable[..., Any], body: str, blocks: int = 8) -> dict[str, Any]:
    """What blocks of 128 threads of that kernel are recorded as."""
    run = emulate(
        CUDA
        + f"""
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuModuleLoadData(byref(module), b"{entry(body)}") == 0
assert cuda.cuModuleGetFunction(byref(function), module, b"touch") == 0
pointer = u64(0x7f0000000000)
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
result = cuda.cuLaunchKernel(function, {blocks}, 1, 1, 128, 1, 1, 0, None, arguments, None)
"""
    )
    assert run.result == 0
    (launch,) = run.launched("kernel")
    return launch


def test_bytes_far_apart_ask_for_a_line_each(emulate: Callable[..., Any]) -> None:
    launch = launched(
        emulate,
        "mad.lo.s32 %r3, %r1, 4096, %r2;\ncvt.s64.s32 %rd2, %r3;\nadd.s64 %rd3, %rd1, %rd2;\n"
        "st.global.b8 [ %rd3 ], %r1;",
    )
    assert launch["bytes"] == 8 * 128
    assert launch["work"][3] == 8 * 128


def test_divisions_and_functions_are_counted_by_their_units(emulate: Callable[..., Any]) -> None:
    launch = launched(
        emulate,
        "cvt.rn.f64.s32 %fd1, %r1;\ndiv.rn.f64 %fd2, %fd1, %fd1;\nadd.f64 %fd3, %fd2, %fd1;\n"
        "ex2.approx.ftz.f32 %f1, %f2;\nmul.f32 %f3, %f1, %f1;",
    )
    threads, division = 8 * 128, (18, 10, 1)
    instructions, doubles, specials, lines, products = (each // threads for each in launch["work"])
    assert (doubles, lines, products) == (division[1] + 1, 0, 0)
    assert specials == division[2] + 2  # the conversion and the exponential
    assert instructions == division[0] + 4


def test_arithmetic_that_a_loaded_value_skips_leads_back_to_the_loop(emulate: Callable[..., Any]) -> None:
    """As LLVM lays a loop out whose end comes before its middle: both ways go to where the loop ends."""
    launch = launched(
        emulate,
        "mov.b32 %r5, 0;\nbra.uni $MIDDLE;\n$END:\nadd.s32 %r5, %r5, 1;\nsetp.lt.s32 %p1, %r5, 4;\n"
        "@%p1 bra $MIDDLE;\nbra.uni $DONE;\n$MIDDLE:\nmad.wide.s32 %rd2, %r1, 4, %rd1;\n"
        "ld.global.b32 %r6, [ %rd2 ];\nsetp.lt.u32 %p2, %r6, 77;\n@%p2 bra $END;\n"
        "fma.rn.f32 %f1, %f1, %f1, %f1;\nbra.uni $END;\n$DONE:",
    )
    assert launch["bytes"] == 128 * 4  # all blocks read the same
    assert launch["work"][3] == 8 * 4 * 4  # blocks, warps, turns


def turns(last: str) -> str:
    """Loads and matrix products in a loop, from turn 0 to the `last`."""
    return (
        f"mov.b32 %r5, 0;\nand.b32 %r7, {last};\nmad.wide.s32 %rd2, %r1, 4, %rd1;\n$TURN:\n"
        "ld.global.b32 %r6, [ %rd2 ];\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %f1, %f2 }, { %r8, %r8 }, { %r8 }, { %f1, %f2 };\n"
        "add.s32 %r5, %r5, 1;\nsetp.le.s32 %p1, %r5, %r7;\n@%p1 bra $TURN;"
    )


WARP_PRODUCT, WARPS = 2 * 16 * 8 * 16, 128 // 32


def test_blocks_that_do_unlike_work_stand_for_all_others(emulate: Callable[..., Any]) -> None:
    """As under a causal mask; the first blocks, the middle one and the last would tell of few turns or of all."""
    launch = launched(emulate, turns("%r2, 15"), blocks=1024)
    average = sum(range(1, 17)) / 16
    assert launch["work"][4] == pytest.approx(1024 * WARPS * average * WARP_PRODUCT, rel=0.02)
    assert launch["work"][3] == pytest.approx(1024 * WARPS * average, rel=0.02)
    assert launch["bytes"] == 128 * 4


def test_few_blocks_are_all_looked_at(emulate: Callable[..., Any]) -> None:
    launch = launched(emulate, turns("%r2, 15"), blocks=16)
    assert launch["work"][4] == sum(range(1, 17)) * WARPS * WARP_PRODUCT


def test_of_blocks_in_long_loops_outer_warps_stand_for_the_others(emulate: Callable[..., Any]) -> None:
    launch = launched(emulate, turns("24575, 24575"))
    assert launch["work"][4] == 8 * WARPS * 24576 * WARP_PRODUCT
    assert launch["bytes"] == 128 * 4


def test_dlsym_on_an_nvidia_library_gives_the_emulators_symbol(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
import ctypes, glob, importlib.util, pathlib
folder = pathlib.Path(next(iter(importlib.util.find_spec("nvidia").submodule_search_locations)))
library = ctypes.CDLL(str(next(folder.rglob("libcublasLt.so.*"))))
mine = ctypes.CDLL("libcuda.so.1")
address = lambda owner, name: ctypes.cast(getattr(owner, name), ctypes.c_void_p).value
libc = ctypes.CDLL("libc.so.6")
result = [address(library, "cublasLtMatmul") == address(mine, "cublasLtMatmul"), libc.abs(-3)]
"""
    )
    assert run.result == [True, 3]


def test_dlsym_next_still_finds_what_follows_the_caller(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
import ctypes, subprocess, pathlib
source = '''
#define _GNU_SOURCE
#include <dlfcn.h>
int value(void) { return 1; }
int next_value(void) { int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "value"); return next ? next() : -1; }
'''
pathlib.Path("first.c").write_text(source)
pathlib.Path("second.c").write_text("int value(void) { return 2; }")
subprocess.run(["gcc", "-shared", "-fPIC", "second.c", "-o", "libsecond.so"], check=True)
subprocess.run(["gcc", "-shared", "-fPIC", "first.c", "-o", "libfirst.so", "-L.", "-lsecond", "-Wl,-rpath,$ORIGIN",
                "-Wl,--no-as-needed", "-lsecond"], check=True)
result = ctypes.CDLL("./libfirst.so").next_value()
"""
    )
    assert run.result == 2


def test_expandable_segments_count_memory(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
import torch
kept = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
del kept
again = torch.empty(150 << 20, dtype=torch.uint8, device="cuda")
result = [torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]]
""",
        variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        memory_bytes=1 << 30,
        context_bytes=0,
    )
    reserved, free = run.result
    # The first 100 MiB are grown, not joined by another 150.
    assert 150 << 20 <= reserved < 250 << 20
    assert free == (1 << 30) - reserved
    assert run.trace.peak_reserved_bytes == reserved
    assert run.count(RecordKind.ALLOCATE) > 0


def test_descriptors_of_tensors_are_made(emulate: Callable[..., Any]) -> None:
    run = emulate(
        CUDA
        + """
buffer = ctypes.create_string_buffer(192)
aligned = ctypes.c_void_p(-(-ctypes.addressof(buffer) // 64) * 64)
sizes, strides = (u64 * 2)(1024, 512), (u64 * 1)(2048)
box, steps = (ctypes.c_uint32 * 2)(64, 64), (ctypes.c_uint32 * 2)(1, 1)
def encode(map, rank, address):
    return cuda.cuTensorMapEncodeTiled(map, 9, rank, ctypes.c_void_p(address), sizes, strides, box, steps, 0, 3, 2, 0)
result = [
    encode(aligned, 2, 0x7000_0000), encode(ctypes.c_void_p(aligned.value + 8), 2, 0x7000_0000),
    encode(aligned, 2, 0x7000_0001), encode(aligned, 6, 0x7000_0000),
    cuda.cuTensorMapReplaceAddress(aligned, ctypes.c_void_p(0x7000_1000)),
]
"""
    )
    assert run.result == [0, 1, 1, 1, 0]
    assert run.trace.unsupported == ()
