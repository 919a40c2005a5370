"""Adam, or Muon for the layers' matrices (--optimizer), and the schedule of its learning rate."""

import argparse

from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import (
    MegatronOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer.muon import get_megatron_muon_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler


def build_optimizer(
    args: argparse.Namespace, model: list[DistributedDataParallel]
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    config = OptimizerConfig(
        optimizer=args.optimizer,
        lr=args.lr,
        min_lr=args.min_lr,
        weight_decay=args.weight_decay,
        adam_beta1=args.adam_beta1,
        adam_beta2=args.adam_beta2,
        adam_eps=args.adam_eps,
        muon_momentum=args.muon_momentum,
        muon_split_qkv=args.muon_split_qkv,
        muon_use_nesterov=args.muon_use_nesterov,
        muon_scale_mode=args.muon_scale_mode,
        muon_fp32_matmul_prec=args.muon_fp32_matmul_prec,
        muon_num_ns_steps=args.muon_num_ns_steps,
        muon_tp_mode=args.muon_tp_mode,
        muon_extra_scale_factor=args.muon_extra_scale_factor,
        clip_grad=args.clip_grad,
        bf16=args.bf16,
        fp16=args.fp16,
        params_dtype=args.params_dtype,
        loss_scale=args.loss_scale,
        initial_loss_scale=args.initial_loss_scale,
        use_distributed_optimizer=args.use_distributed_optimizer,
        use_precision_aware_optimizer=args.use_precision_aware_optimizer,
        overlap_param_gather=args.overlap_param_gather,
        overlap_param_gather_with_optimizer_step=args.overlap_param_gather_with_optimizer_step,
        decoupled_lr=args.decoupled_lr,
        log_num_zeros_in_grad=args.log_num_zeros_in_grad,
    )
    overrides = get_standard_config_overrides(config)
    if args.optimizer == "adam":
        optimizer = get_megatron_optimizer(config, model, overrides, use_gloo_process_groups=False)
    else:
        layers_apart = args.optimizer == "dist_muon"
        optimizer = get_megatron_muon_optimizer(
            config,
            model,
            overrides,
            use_gloo_process_groups=False,
            layer_wise_distributed_optimizer=layers_apart,
        )
    return optimizer, _scheduler(args, optimizer)


def _scheduler(args: argparse.Namespace, optimizer: MegatronOptimizer) -> OptimizerParamScheduler:
    decay = (args.lr_decay_iters or args.train_iters) * args.global_batch_size  # in samples
    warmup = args.lr_warmup_iters * args.global_batch_size
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=args.lr,
        min_lr=args.min_lr,
        lr_warmup_steps=int(decay * args.lr_warmup_fraction) if args.lr_warmup_fraction else warmup,
        lr_decay_steps=decay,
        lr_decay_style=args.lr_decay_style,
        start_wd=args.weight_decay,
        end_wd=args.weight_decay,
        wd_incr_steps=args.train_iters * args.global_batch_size,
        wd_incr_style="constant",
    )
