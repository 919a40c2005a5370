"""`nvidia-smi` as a rank's script finds it on its path: many log what it prints, or ask it what devices there are.

This file is that program: `put_into` copies it, with the device that it tells of beside it. It starts as often as a
script asks, so it imports neither Maya nor PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

NAME = "nvidia-smi"
_DRIVER = "580.65.06"  # as NVML answers (emulator/nvml/nvml.cpp)
_NOT_KNOWN = "[N/A]"  # what boards without a sensor print: virtual devices have none
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial"}
_SENSORS = (
    "utilization.gpu", "utilization.memory", "temperature.gpu", "temperature.memory", "power.draw", "power.limit",
    "fan.speed", "pstate", "serial", "clocks.sm", "clocks.mem", "clocks.gr", "clocks.current.sm",
    "clocks.current.memory", "mig.mode.current", "ecc.mode.current", "clocks_throttle_reasons.active",
)  # fmt: skip


def put_into(directory: Path, device: list[str], python: str) -> None:
    """The program into `directory`, telling of the device of these lines (maya/launch/device.py)."""
    told = dict(line.split(" ", 1) for line in device)
    (directory / f"{NAME}.json").write_text(json.dumps(told))
    program = directory / NAME
    program.write_text(f"#!{python} -IS\n{Path(__file__).read_text()}")
    program.chmod(0o755)


def _fields(device: dict[str, str], index: int, count: int) -> dict[str, tuple[str, str]]:
    """What can be queried of a device, with its unit."""
    total, taken = (int(device[key]) >> 20 for key in ("memory_bytes", "context_bytes"))
    return {
        "index": (str(index), ""),
        "count": (str(count), ""),
        "name": (device["device_name"], ""),
        "uuid": (f"GPU-6d617961-2d76-6972-7475-616c2d00{index:04x}", ""),  # emulator/core/device.cpp
        "pci.bus_id": (f"00000000:{0x10 + index:02X}:00.0", ""),
        "driver_version": (_DRIVER, ""),
        "compute_cap": (f"{device['major']}.{device['minor']}", ""),
        "memory.total": (str(total), "MiB"),
        "memory.used": (str(taken), "MiB"),
        "memory.free": (str(total - taken), "MiB"),
        "clocks.max.sm": (str(int(device["clock_khz"]) // 1000), "MHz"),
        "clocks.max.memory": (str(int(device["memory_clock_khz"]) // 1000), "MHz"),
    } | dict.fromkeys(_SENSORS, (_NOT_KNOWN, ""))


def _queried(devices: list[dict[str, tuple[str, str]]], query: str, form: str) -> str:
    names = [name.strip() for name in query.split(",")]
    keys = [_ALIASES.get(name, name) for name in names]
    for name, key in zip(names, keys, strict=True):
        if key not in devices[0]:
            _leave(f'Field "{name}" is not a valid field to query.')
    bare = "nounits" in form
    units = ["" if bare or not devices[0][key][1] else f" [{devices[0][key][1]}]" for key in keys]
    lines = [] if "noheader" in form else [", ".join(map("".join, zip(keys, units, strict=True)))]
    for device in devices:
        lines.append(", ".join(device[key][0] if bare else " ".join(device[key]).strip() for key in keys))
    return "\n".join(lines)


def _table(devices: list[dict[str, tuple[str, str]]], cuda: str) -> str:
    rule = "+" + "-" * 77 + "+"
    lines = [
        rule,
        f"| NVIDIA-SMI {_DRIVER}    Driver Version: {_DRIVER}    CUDA Version: {cuda}".ljust(78) + "|",
        rule,
    ]
    for told in devices:
        device = {key: value for key, (value, _) in told.items()}
        memory = f"{device['memory.used']}MiB / {device['memory.total']}MiB"
        left = f"| {device['index']:>3}  {device['name']:<32} {device['pci.bus_id']}"
        lines.append(f"{left}  {memory:>18}".ljust(78) + "|")
    return "\n".join([*lines, rule])


def _leave(message: str) -> None:
    print(message)
    sys.exit(2)  # of a query that nvidia-smi cannot answer


def _answer(arguments: list[str], devices: list[dict[str, tuple[str, str]]], cuda: str) -> str:
    parser = argparse.ArgumentParser(NAME, allow_abbrev=False)
    parser.add_argument("-i", "--id")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("--query-gpu")
    parser.add_argument("--format", default="csv")
    asked, unknown = parser.parse_known_args(arguments)
    if unknown:
        _leave(f"Maya's {NAME} does not know {' '.join(unknown)}")
    if asked.id is not None:
        chosen = set(asked.id.split(","))
        devices = [device for device in devices if {device["index"][0], device["uuid"][0]} & chosen]
        if not devices:
            _leave("No devices were found")
    if asked.query_gpu is not None:
        return _queried(devices, asked.query_gpu, asked.format)
    if asked.list_gpus:
        return "\n".join(
            f"GPU {told['index'][0]}: {told['name'][0]} (UUID: {told['uuid'][0]})" for told in devices
        )
    return _table(devices, cuda)


def _main() -> None:
    device = json.loads(Path(__file__).with_name(f"{NAME}.json").read_text())
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda, minor = divmod(int(device["driver_version"]), 1000)
    devices = [_fields(device, index, count) for index in range(count)]
    print(_answer(sys.argv[1:], devices, f"{cuda}.{minor // 10}"))


if __name__ == "__main__":
    _main()
