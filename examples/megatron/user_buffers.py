"""Tensor parallelism whose collectives run beside the products that need them: --tp-comm-overlap."""

import argparse


def share_buffers(args: argparse.Namespace) -> None:
    """Memory that the ranks of a tensor-parallel group open of each other (Transformer Engine's user buffers)."""
    from transformer_engine.pytorch.module.base import UserBufferQuantizationMode, initialize_ub

    tokens = args.seq_length * args.micro_batch_size // args.context_parallel_size
    fp8 = args.fp8_format is not None
    initialize_ub(
        [tokens, args.hidden_size],
        args.tensor_model_parallel_size,
        quantization_modes=[UserBufferQuantizationMode.FP8 if fp8 else UserBufferQuantizationMode.NONE],
        ub_cfgs=args.tp_comm_overlap_cfg,
        bootstrap_backend="nccl",
    )
