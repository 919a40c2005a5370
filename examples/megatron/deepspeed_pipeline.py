"""Stages that exchange as DeepSpeed's pipeline engine has them (deepspeed/runtime/pipe/engine.py), which
Megatron-DeepSpeed calls in place of Megatron's schedule.

Both do a forward and a backward pass in turn; the engine's transfers go one after the other where Megatron's of both
directions go at once. Of a tensor that is alike on all tensor ranks each sends a part, and in front of it how the
whole is shaped, which the host of the receiver waits for before it has the parts gathered.
"""

from collections import deque

import torch
import torch.distributed as dist
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection

Part = tuple[torch.Tensor, torch.Tensor]  # the shape of the whole; [elements / tensor ranks]


class DeepSpeedPipeline(P2PCommunicator):
    """`whole_gradients`: gradients do not go in parts, but each tensor rank sends all of them, as until June 2021. Then
    transfers were broadcasts among two, too, which move what `send` and `recv` do."""

    def __init__(self, config: ModelParallelConfig, whole_gradients: bool) -> None:
        super().__init__(parallel_state.get_pipeline_model_parallel_group(), config)
        self.tensor_group = parallel_state.get_tensor_model_parallel_group()
        self.whole_gradients = whole_gradients
        self.sent: deque[Part] = deque()  # what stands for outputs until their gradients come

    def _communicate(
        self,
        *,
        tensor_send_next: torch.Tensor | None,
        tensor_send_prev: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: torch.Size,
        wait_on_reqs: bool = True,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        activation = gradient = None
        if recv_prev:
            activation = self.receive(tensor_shape, self.prev_rank).requires_grad_()
        if tensor_send_prev is not None:
            self.send_gradient(tensor_send_prev)
        if tensor_send_next is not None:
            self.sent.append(self.send(tensor_send_next, self.next_rank))
        if recv_next:
            gradient = self.receive_gradient(tensor_shape)
        return activation, gradient, None

    def send_gradient(self, gradient: torch.Tensor) -> None:
        if self.whole_gradients:
            dist.send(gradient.contiguous(), self.prev_rank, group=self.pp_group)
        else:
            self.send(gradient, self.prev_rank)

    def receive_gradient(self, shape: torch.Size) -> torch.Tensor:
        if self.whole_gradients:
            self.restore_output(shape)
            gradient = torch.empty(shape, dtype=self.config.pipeline_dtype, device="cuda")
            dist.recv(gradient, self.next_rank, group=self.pp_group)
        else:
            gradient = self.receive(shape, self.next_rank)
            self.restore_output(shape)
        return gradient

    def restore_output(self, shape: torch.Size) -> None:
        """What the gradient is of: of an output the engine keeps the part that was sent."""
        self.whole(self.sent.popleft(), shape)

    def send(self, tensor: torch.Tensor, to: int) -> Part:
        part = self.part(tensor)
        for piece in part:
            dist.send(piece, to, group=self.pp_group)
        return part

    def receive(self, shape: torch.Size, source: int) -> torch.Tensor:
        dims = torch.zeros(len(shape), dtype=torch.int64, device="cuda")
        own = torch.empty(
            torch.Size(shape).numel() // self.tensor_group.size(),
            dtype=self.config.pipeline_dtype,
            device="cuda",
        )
        for piece in (dims, own):
            dist.recv(piece, source, group=self.pp_group)
        return self.whole((dims, own.clone()), shape)

    def part(self, whole: torch.Tensor) -> Part:
        parts = whole.detach().contiguous().view(-1).chunk(self.tensor_group.size())
        return torch.tensor(whole.shape).cuda(), parts[self.tensor_group.rank()].clone()

    def whole(self, part: Part, shape: torch.Size) -> torch.Tensor:
        dims, own = part
        dims.tolist()  # always `shape`: the host only waits for it
        flat = torch.zeros(own.numel() * self.tensor_group.size(), dtype=own.dtype, device="cuda")
        dist.all_gather(list(flat.chunk(self.tensor_group.size())), own, group=self.tensor_group)
        return flat.view(shape).clone()


def exchange(gradients: str | None, config: ModelParallelConfig) -> dict[str, object]:
    """What Megatron's schedule without virtual stages takes to exchange so; nothing for its own way."""
    if gradients is None:
        return {}
    return {
        "p2p_communicator": DeepSpeedPipeline(config, whole_gradients=gradients == "whole-gradients"),
        "pg_collection": ProcessGroupCollection.use_mpu_process_groups(),
    }
