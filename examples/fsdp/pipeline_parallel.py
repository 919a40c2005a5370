"""Pipeline parallelism, by torch.distributed.pipelining: each rank has one run of blocks, or several."""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.distributed.tensor import DTensor

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cut(layers: int, stages: int) -> list[range]:
    """The blocks of each stage. Those left over go to stages behind the first, which has the embedding."""
    each, left_over = divmod(layers, stages)
    sizes = [each + (1 <= stage <= left_over) for stage in range(stages)]
    sizes[-1] += layers - sum(sizes)
    return [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def stages_of(mesh: DeviceMesh, stages_a_rank: int) -> list[int]:
    """Which stages this rank has: every `mesh.size()`th."""
    return [mesh.get_local_rank() + turn * mesh.size() for turn in range(stages_a_rank)]


class StepByStep(ScheduleInterleaved1F1B):
    """As PyTorch to 2.8 runs it: after each pass all ranks send and receive in one go. Since then a receive is launched
    where the schedule has its sender's pass, and what is sent meanwhile waits behind it (pytorch/pytorch#188833)."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, scale_grads=False, **options)  # before FSDP has reduced them: scaled below

    def _step_microbatches(self, *args, **options) -> None:
        PipelineScheduleMulti._step_microbatches(self, *args, **options)
        for stage in self._stages:
            stage.perform_reduce_grad(self._n_microbatches)


class Pipeline:
    """This rank's `parts` of a model, as many on each rank of `mesh`, run one micro-batch forward, one backward."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        mesh: DeviceMesh,
        device: torch.device,
        micro_batches: int,
        loss: Loss,
        *,
        step_by_step: bool = False,
    ) -> None:
        self._mesh = mesh
        stages = [
            PipelineStage(part, stage, mesh.size() * len(parts), device, group=mesh.get_group())
            for part, stage in zip(parts, stages_of(mesh, len(parts)), strict=True)
        ]
        self._has_first, self._has_last = stages[0].is_first, stages[-1].is_last
        if len(stages) == 1:
            self._schedule = Schedule1F1B(stages[0], micro_batches, loss_fn=loss)
        else:
            interleaved = StepByStep if step_by_step else ScheduleInterleaved1F1B
            self._schedule = interleaved(stages, micro_batches, loss_fn=loss)

    def step(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
        """Forward and backward passes of all micro-batches of tokens and labels [batch, seq]; their mean loss where the
        last stage is."""
        inputs = (tokens,) if self._has_first else ()
        if not self._has_last:
            self._schedule.step(*inputs)
            return None
        losses: list[torch.Tensor] = []
        self._schedule.step(*inputs, target=labels, losses=losses)
        return torch.stack(losses).mean()

    def clip_grad_norm_(self, parameters: Sequence[nn.Parameter], most: float) -> None:
        """To a norm of `most` over the parameters of all stages."""
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        squared = (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
        dist.all_reduce(squared, group=self._mesh.get_group())
        nn.utils.clip_grads_with_norm_(parameters, most, squared**0.5)


def parameters_of(parts: Sequence[nn.Module]) -> list[nn.Parameter]:
    return list(chain.from_iterable(part.parameters() for part in parts))
