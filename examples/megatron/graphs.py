"""Parts of layers as CUDA graphs, captured once the first iterations have run (--cuda-graph-impl)."""

import argparse

from megatron.core.distributed import DistributedDataParallel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.cuda_graphs import TECudaGraphHelper
from megatron.core.utils import get_model_config


def capture_layers(
    args: argparse.Namespace, model: list[DistributedDataParallel], optimizer: MegatronOptimizer
) -> None:
    """The --cuda-graph-scope of each layer, once for each micro-batch."""
    init_num_microbatches_calculator(
        args.rank, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size
    )
    graphs = TECudaGraphHelper(
        model, get_model_config(model[0]), args.seq_length, args.micro_batch_size, [optimizer]
    )
    if args.overlap_param_gather:  # no gathering within a graph: what is replayed is hooked up afterwards
        for chunk in model:
            chunk.disable_forward_pre_hook(param_sync=False)
    graphs.create_cudagraphs()
    if args.overlap_param_gather:
        for chunk in model:
            chunk.enable_forward_pre_hook()
        graphs.cuda_graph_set_manual_hooks()
