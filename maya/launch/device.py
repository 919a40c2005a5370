"""The virtual device as the emulator reads it: `key value` lines (emulator/core/process.h)."""

from __future__ import annotations

from pathlib import Path

from maya.clusters.types import Cluster

_PYTORCHS_NAMES = {
    "major": "major",
    "minor": "minor",
    "multi_processor_count": "multiprocessors",
    "total_memory": "memory_bytes",
    "L2_cache_size": "l2_bytes",
    "shared_memory_per_block_optin": "shared_memory_per_block_optin",
}
MEMORY_BUS_BITS = 5120  # only the product with the clock is a datasheet figure: the bandwidth


def steering_facts(cluster: Cluster) -> dict[str, int]:
    """What of the device can change which calls a script makes; neither its clocks nor its name, nor any network."""
    device = cluster.device
    return {
        "major": device.compute_capability[0],
        "minor": device.compute_capability[1],
        "multiprocessors": device.multiprocessors,
        "memory_bytes": device.memory_bytes,
        "context_bytes": device.context_bytes,
        "nccl_bytes": device.nccl_bytes,
        "communicator_bytes": device.communicator_bytes,
        "peer_bytes": cluster.node.peer_bytes,
        "l2_bytes": device.l2_bytes,
        "shared_memory_per_block_optin": device.shared_memory_per_block,
    }


def asked_properties(cluster: Cluster) -> dict[str, object]:
    """What packages ask of the device while they are imported, as `torch.cuda.get_device_properties` names it."""
    facts = steering_facts(cluster)
    return {"name": cluster.device.name} | {theirs: facts[ours] for theirs, ours in _PYTORCHS_NAMES.items()}


def device_lines(cluster: Cluster, cuda_version: str) -> list[str]:
    device = cluster.device
    major, minor = (int(part) for part in cuda_version.split(".")[:2])
    # bandwidth = 2 (double data rate) x clock x bus width
    memory_clock_khz = round(device.memory_bandwidth / (2 * MEMORY_BUS_BITS / 8) / 1e3)
    values: dict[str, object] = {
        "device_name": device.name,
        **steering_facts(cluster),
        "clock_khz": round(device.clock_hz / 1e3),
        "memory_clock_khz": memory_clock_khz,
        "memory_bus_bits": MEMORY_BUS_BITS,
        "shared_memory_per_multiprocessor": device.shared_memory_per_block + 1024,  # 1 KiB reserved a block
        "driver_version": major * 1000 + minor * 10,
    }
    return [f"{key} {value}" for key, value in values.items()]


def write_rank_config(
    path: Path,
    device: list[str],
    *,
    directory: Path,
    control: Path,
    rank: int,
    world: int,
    gpus_per_node: int,
) -> None:
    lines = [
        *device,
        f"trace_dir {directory}",
        f"control {control}",
        f"rank {rank}",
        f"world {world}",
        f"local_rank {rank % gpus_per_node}",
        f"devices {min(world, gpus_per_node)}",
    ]
    path.write_text("\n".join(lines) + "\n")
