"""What is printed at each --log-interval."""

import argparse
import time

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.clip_grads import get_grad_norm_fp32
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.timers import Timers
from megatron.core.transformer.module import param_is_not_shared
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

# Parts of an iteration that are timed from a --timing-log-level on. Those that there are not cost time, too: their
# place in what the ranks gather is looked through.
TIMED = {
    1: [
        "forward-backward",
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "all-grads-sync",
        "params-all-gather",
        "optimizer-copy-to-main-grad",
        "optimizer-unscale-and-check-inf",
        "optimizer-clip-main-grad",
        "optimizer-count-zeros",
        "optimizer-inner-step",
        "optimizer-copy-main-to-model-params",
        "optimizer",
    ],
    2: [
        "batch-generator",
        "forward-compute",
        "backward-compute",
        "forward-recv",
        "forward-send",
        "backward-recv",
        "backward-send",
        "forward-send-forward-recv",
        "forward-send-backward-recv",
        "backward-send-forward-recv",
        "backward-send-backward-recv",
        "forward-backward-send-forward-backward-recv",
    ],
}


def seconds_since(started: float) -> float:
    """On all ranks together, after the device has done what was asked of it."""
    dist.barrier()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def parameters_norm(model: list[DistributedDataParallel]) -> float:
    """L2 norm of the whole model's parameters, each counted once; every rank has to call it."""
    own = [
        parameter.data.float()
        for chunk in model
        for parameter in chunk.parameters()
        if param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter)
    ]
    return get_grad_norm_fp32(own, grad_stats_parallel_group=parallel_state.get_model_parallel_group())


def log(
    args: argparse.Namespace,
    iteration: int,
    losses: list[dict[str, torch.Tensor]],
    values: dict[str, float | None],
    seconds: float,
) -> None:
    """`values` of this iteration, of which those are printed that there are."""
    if not parallel_state.is_pipeline_last_stage():
        return
    mean = torch.stack([loss["lm loss"] for loss in losses]).mean()
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=parallel_state.get_data_parallel_group())
    further: dict[str, torch.Tensor] = {}  # of --mtp-num-layers
    MTPLossLoggingHelper.track_mtp_metrics(
        1 / (args.num_microbatches * args.log_interval), iteration, None, total_loss_dict=further
    )
    if args.rank == args.world_size - 1:
        known = {name: value for name, value in values.items() if value is not None}
        known |= {name: loss.item() for name, loss in further.items()}
        print(
            f"iteration {iteration:8d}/{args.train_iters:8d} | "
            f"time per iteration (ms): {seconds * 1e3:.1f} | "
            f"global batch size: {args.global_batch_size} | "
            + " | ".join(
                f"{name}: {value:.6g}" for name, value in ({"lm loss": mean.item()} | known).items()
            ),
            flush=True,
        )


def log_timers(args: argparse.Namespace, timers: Timers) -> None:
    """The shortest and the longest time of each part over all ranks; every rank has to call it."""
    names = [name for level, of in TIMED.items() if level <= args.timing_log_level for name in of]
    lines = timers.get_all_timers_string(names, normalizer=args.log_interval)
    if args.rank == args.world_size - 1:
        print(lines, flush=True)
