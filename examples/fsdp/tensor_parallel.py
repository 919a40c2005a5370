"""Tensor parallelism with sequence parallelism, by PyTorch's DTensor."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def parallelize(model: nn.Module, mesh: DeviceMesh, *, float8_transfers: bool) -> None:
    """Shards each block's heads and channels over `mesh`, and between products its tokens; logits by class."""
    column, row, gathered = ColwiseParallel, RowwiseParallel, PrepareModuleInput
    if float8_transfers:  # activations are cast before they are sent
        from torchao.float8 import float8_tensor_parallel as float8

        column, row = float8.Float8ColwiseParallel, float8.Float8RowwiseParallel
        gathered = float8.PrepareFloat8ModuleInput
    ends = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    # Of a pipeline's stage some are no more than nn.Identity.
    held = {name for name, module in model.named_children() if not isinstance(module, nn.Identity)}
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if name in held})
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": gathered(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                "attention.query": column(),
                "attention.key": column(),
                "attention.value": column(),
                "attention.out": row(output_layouts=Shard(1)),
                "mlp_norm": SequenceParallel(),
                "mlp": gathered(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "mlp.up": column(),
                "mlp.gate": column(),
                "mlp.down": row(output_layouts=Shard(1)),
            },
        )


def cut_up(mesh: DeviceMesh) -> None:
    """Compiled blocks gather and reduce over `mesh` piece by piece, beside the products of the pieces ("async TP")."""
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)
