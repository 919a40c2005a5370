"""NVML as pynvml and PyTorch see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NVML = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def text(call, *arguments):
    buffer = ctypes.create_string_buffer(96)
    assert call(*arguments, buffer, 96) == 0
    return buffer.value.decode()
def handle(index):
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    return device
"""


def test_counts_and_names_the_devices_of_the_node(emulate: Callable[..., Any]) -> None:
    run = emulate(
        NVML
        + """
count = ctypes.c_uint()
before = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
uuids = {text(nvml.nvmlDeviceGetUUID, handle(i)) for i in range(count.value)}
result = [before, count.value, text(nvml.nvmlDeviceGetName, handle(3)), len(uuids),
          nvml.nvmlDeviceGetHandleByIndex_v2(8, ctypes.byref(ctypes.c_void_p()))]
""",
        devices=8,
        device_name="NVIDIA A100-SXM4-80GB",
    )
    uninitialized, invalid_argument = 1, 2
    assert run.result == [uninitialized, 8, "NVIDIA A100-SXM4-80GB", 8, invalid_argument]


def test_memory_is_capacity_with_the_context_taken(emulate: Callable[..., Any]) -> None:
    run = emulate(
        NVML
        + """
nvml.nvmlInit_v2()
class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]
class MemoryV2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]
memory, second = Memory(), MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
assert nvml.nvmlDeviceGetMemoryInfo(handle(0), ctypes.byref(memory)) == 0
assert nvml.nvmlDeviceGetMemoryInfo_v2(handle(0), ctypes.byref(second)) == 0
wrong = nvml.nvmlDeviceGetMemoryInfo_v2(handle(0), ctypes.byref(MemoryV2(version=1)))
result = [memory.total, memory.free, memory.used, second.total, second.used, wrong]
""",
        memory_bytes=40_000_000_000,
        context_bytes=500_000_000,
    )
    version_mismatch = 25
    assert run.result == [40_000_000_000, 39_500_000_000, 500_000_000, 40_000_000_000, 0, version_mismatch]


@pytest.mark.parametrize("key", ["UUID", "PciBusId"])
def test_device_is_found_again_by(key: str, emulate: Callable[..., Any]) -> None:
    pynvml = pytest.importorskip("pynvml")
    assert pynvml
    run = emulate(
        f"""
import pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(2)
name = pynvml.nvmlDeviceGetUUID(device) if {key!r} == "UUID" else pynvml.nvmlDeviceGetPciInfo(device).busId
found = pynvml.nvmlDeviceGetHandleBy{key}(name if isinstance(name, bytes) else name.encode())
result = pynvml.nvmlDeviceGetIndex(found)
""",
        devices=4,
    )
    assert run.result == 2


def test_sensors_that_every_board_has_read_zero_and_a_note_says_so(emulate: Callable[..., Any]) -> None:
    run = emulate(
        NVML
        + """
nvml.nvmlInit_v2()
power, temperature, energy = ctypes.c_uint(7), ctypes.c_uint(7), ctypes.c_ulonglong(7)
result = [nvml.nvmlDeviceGetPowerUsage(handle(0), ctypes.byref(power)), power.value,
          nvml.nvmlDeviceGetTemperature(handle(0), 0, ctypes.byref(temperature)), temperature.value,
          nvml.nvmlDeviceGetTotalEnergyConsumption(handle(0), ctypes.byref(energy)), energy.value]
"""
    )
    assert run.result == [0] * 6
    assert run.trace.unsupported == ()
    assert [remark for remark in run.trace.remarks if "temperature" in remark]


def test_sensors_that_boards_are_without_are_not_supported(emulate: Callable[..., Any]) -> None:
    run = emulate(NVML + "nvml.nvmlInit_v2()\nresult = nvml.nvmlDeviceGetFanSpeed(handle(0), None)\n")
    assert run.result == 3
