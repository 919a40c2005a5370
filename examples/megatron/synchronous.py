"""What Megatron-LM did before 2022 and megatron.core does no more: tensor parallelism without overlap, and a pipeline
whose tensor ranks each send a part.
"""

import torch
from megatron.core import tensor_parallel
from megatron.core.models.gpt import GPTModel


def wait_for_input_gradients(model: torch.nn.Module) -> None:
    """Input gradients are summed over the tensor ranks after the weight gradient, not beside it."""
    for module in model.modules():
        if isinstance(module, tensor_parallel.ColumnParallelLinear):
            module.allreduce_dgrad = False  # it then sums them in the backward pass of its input


class ScatteredGPTModel(GPTModel):
    """Stages hand over a tensor rank's share, [sequence / tensor ranks, batch, hidden], and gather what they receive:
    activations and their gradients are alike on all tensor ranks (Narayanan et al. 2021, section 4.1)."""

    def set_input_tensor(self, input_tensor: list[torch.Tensor | None] | torch.Tensor | None) -> None:
        share = input_tensor[0] if isinstance(input_tensor, list) else input_tensor
        if share is not None:
            share = tensor_parallel.gather_from_sequence_parallel_region(
                share, tensor_parallel_output_grad=False
            )
        super().set_input_tensor(share)

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        if self.post_process:
            return output
        # The schedules free what they have sent, which must not be a view.
        return tensor_parallel.scatter_to_sequence_parallel_region(output).clone()
