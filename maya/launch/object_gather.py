"""`all_gather_object` where most ranks are absent, without PyTorch's several device operations for each of them.

PyTorch copies, compares and unpickles member by member: seconds at 16,384 ranks, in every one that is started. Before
the first optimizer step, when no prediction depends on what it records, the same two collectives are read in bulk.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

_LEAST = 256  # bytes for an object
_AT_A_TIME = 32 << 10  # bytes copied from the device: what it knows of small copies is real (docs/values.md)


def gather_objects_in_bulk() -> None:
    """From here to the first optimizer step."""
    original: Callable[..., None] = distributed_c10d.all_gather_object
    training = False

    def all_gather_object(object_list: list[Any], obj: Any, group: dist.ProcessGroup | None = None) -> None:
        if training or not _among_devices(group):
            original(object_list, obj, group)
        else:
            object_list[:] = _gather(obj, group)

    def trained(*_: object) -> None:
        nonlocal training
        training = True

    register_optimizer_step_post_hook(trained)
    for module in (dist, distributed_c10d):
        module.all_gather_object = all_gather_object  # type: ignore[attr-defined]


def _among_devices(group: dist.ProcessGroup | None) -> bool:
    if dist.get_rank(group) < 0:
        return False
    return torch.device(distributed_c10d._get_object_coll_device(group)).type == "cuda"


def _gather(obj: Any, group: dist.ProcessGroup | None) -> Iterator[Any]:
    device = distributed_c10d._get_object_coll_device(group)
    as_tensor: Callable[..., Any] = distributed_c10d._object_to_tensor
    mine, size = as_tensor(obj, device, group)
    members = dist.get_world_size(group)
    sizes = torch.zeros(members, dtype=torch.long, device=device)
    dist.all_gather_into_tensor(sizes, size, group=group)
    lengths = _on_host(sizes, 1).tolist()
    # Who stands for an absent rank may hold a shorter or longer object: most of them take the same room, and where one
    # does not this rank's own stands in. A pickle tells its own end.
    longest = max(_LEAST, 1 << (max(lengths) - 1).bit_length())
    mine.resize_(longest)
    everyone = torch.empty(members * longest, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(everyone, mine, group=group)
    data = _on_host(everyone, longest).numpy().tobytes()
    for start in range(0, len(data), longest):
        yield pickle.loads(data[start : start + longest])


def _on_host(tensor: torch.Tensor, unit: int) -> torch.Tensor:
    """A copy of a flat tensor of parts of `unit` elements."""
    parts = max(1, _AT_A_TIME // (unit * tensor.element_size()))
    return torch.cat([part.cpu() for part in torch.split(tensor, parts * unit)])
