"""Pretrain a GPT with megatron-core: tensor, pipeline, virtual pipeline, sequence, expert and data parallel.

    torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
        --seq-length 1024 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
        --micro-batch-size 4 --global-batch-size 64 --train-iters 100 --bf16 --mock-data
"""

import argparse
import datetime
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from arguments import parse_args
from context_parallel import RingAttention
from deepspeed_pipeline import exchange
from fused_kernels import fuse_rotary_embedding, provide_fused_kernels
from graphs import capture_layers
from megatron.core import parallel_state, tensor_parallel
from megatron.core.activations import squared_relu
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_decoder_layer_specs,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.timers import Timers
from megatron.core.transformer import MLATransformerConfig, ModuleSpec, TransformerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlockSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.utils import get_batch_on_this_cp_rank, get_model_config
from optimizers import build_optimizer
from reporting import log, log_timers, parameters_norm, seconds_since
from synchronous import ScatteredGPTModel, wait_for_input_gradients
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from user_buffers import share_buffers

# What torchrun would set, for one GPU without it.
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "6000"}

Batch = dict[str, torch.Tensor | None]


class FusedAttention(MegatronModule):
    """Causal attention by PyTorch's flash or cuDNN kernels, in the place of Megatron's DotProductAttention."""

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: object) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale
        flash = config.attention_backend is AttnBackend.flash
        self.context_ranks = parallel_state.get_context_parallel_group()
        self.backend = SDPBackend.FLASH_ATTENTION if flash else SDPBackend.CUDNN_ATTENTION

    def forward(self, query, key, value, attention_mask=None, **_):  # each [seq, batch, heads, channels]
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if self.config.context_parallel_size > 1:
            context = RingAttention.apply(q, k, v, self.context_ranks, self.scale)
            return context.permute(2, 0, 1, 3).flatten(2)
        options = {
            "dropout_p": self.config.attention_dropout if self.training else 0.0,
            "is_causal": True,
            "scale": self.scale,
            "enable_gqa": q.size(1) != k.size(1),
        }
        own_random = tensor_parallel.get_cuda_rng_tracker().fork()  # tensor ranks drop different weights
        with own_random, sdpa_kernel(self.backend):
            context = functional.scaled_dot_product_attention(q, k, v, **options)
        return context.permute(2, 0, 1, 3).flatten(2)  # [seq, batch, heads * channels]


class Norm:
    """PyTorch's norm, marked for sequence parallelism, which Megatron's own wrapper of it refuses."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> torch.nn.Module:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps)
        for parameter in norm.parameters():  # finalize_model_grads sums these over the tensor ranks
            parameter.sequence_parallel = config.sequence_parallel
        return norm


class RecomputedFloat32Norm(torch.nn.RMSNorm):
    """As in InternEvo's layers: the norm of its input in fp32, which is computed again in the backward pass."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps=eps)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._normalise, hidden, use_reentrant=True)

    def _normalise(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(
            hidden.float(), self.normalized_shape, self.weight.float(), self.eps
        ).type_as(hidden)


def initialize(args: argparse.Namespace) -> None:
    if args.deterministic_mode:
        os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")  # Transformer Engine
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=args.distributed_timeout_minutes))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        create_gloo_process_groups=False,  # they serve checkpoints, which are not written here
    )
    seed = args.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(seed)
    graphs = args.cuda_graph_impl != "none"
    tensor_parallel.model_parallel_cuda_manual_seed(seed, te_rng_tracker=graphs, use_cudagraphable_rng=graphs)


def transformer_config(args: argparse.Namespace) -> TransformerConfig:
    config = MLATransformerConfig if args.multi_latent_attention else TransformerConfig
    return config(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        kv_channels=args.kv_channels,
        normalization=args.normalization,
        layernorm_epsilon=args.norm_epsilon,
        add_bias_linear=args.add_bias_linear,
        add_qkv_bias=args.add_qkv_bias,
        gated_linear_unit=args.swiglu,
        activation_func=activation(args),
        attention_backend=AttnBackend[args.attention_backend],
        apply_query_key_layer_scaling=args.apply_query_key_layer_scaling,
        qk_layernorm=args.qk_layernorm,
        test_mode=args.test_mode,
        rotary_interleaved=args.rotary_interleaved,
        attention_dropout=args.attention_dropout,
        hidden_dropout=args.hidden_dropout,
        init_method_std=args.init_method_std,
        mtp_num_layers=args.mtp_num_layers,
        mtp_loss_scaling_factor=args.mtp_loss_scaling_factor,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        account_for_embedding_in_pipeline_split=args.account_for_embedding_in_pipeline_split,
        account_for_loss_in_pipeline_split=args.account_for_loss_in_pipeline_split,
        num_layers_in_first_pipeline_stage=args.decoder_first_pipeline_num_layers,
        num_layers_in_last_pipeline_stage=args.decoder_last_pipeline_num_layers,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        pipeline_model_parallel_layout=args.pipeline_model_parallel_layout,
        microbatch_group_size_per_vp_stage=args.microbatch_group_size_per_virtual_pipeline_stage,
        context_parallel_size=args.context_parallel_size,
        sequence_parallel=args.sequence_parallel,
        # The interleaved schedule overlaps its transfers; 1F1B sends and receives in one batch.
        overlap_p2p_comm=args.overlap_p2p_comm and args.virtual_pipeline_model_parallel_size is not None,
        batch_p2p_comm=not (args.overlap_p2p_comm and args.virtual_pipeline_model_parallel_size is not None),
        overlap_p2p_comm_warmup_flush=args.overlap_p2p_communication_warmup_flush,
        deallocate_pipeline_outputs=True,
        recompute_granularity=args.recompute_granularity,
        recompute_method=args.recompute_method,
        recompute_num_layers=args.recompute_num_layers,
        recompute_modules=args.recompute_modules,
        distribute_saved_activations=args.distribute_saved_activations,
        fine_grained_activation_offloading=args.fine_grained_activation_offloading,
        offload_modules=args.offload_modules,
        bf16=args.bf16,
        fp16=args.fp16,
        params_dtype=args.params_dtype,
        pipeline_dtype=args.params_dtype,
        bias_activation_fusion=args.bias_swiglu_fusion
        if args.swiglu
        else args.bias_gelu_fusion and args.add_bias_linear and not args.squared_relu,
        bias_dropout_fusion=args.bias_dropout_fusion,
        masked_softmax_fusion=args.masked_softmax_fusion,
        attention_softmax_in_fp32=args.attention_softmax_in_fp32,
        apply_rope_fusion=args.apply_rope_fusion and args.transformer_impl == "transformer_engine",
        gradient_accumulation_fusion=args.gradient_accumulation_fusion,
        tp_comm_overlap=args.tp_comm_overlap,
        cross_entropy_loss_fusion=args.cross_entropy_loss_fusion,
        cross_entropy_fusion_impl=args.cross_entropy_fusion_impl,
        defer_embedding_wgrad_compute=args.defer_embedding_wgrad_compute,
        wgrad_deferral_limit=args.wgrad_deferral_limit,
        calculate_per_token_loss=args.calculate_per_token_loss,
        deterministic_mode=args.deterministic_mode,
        cuda_graph_impl=args.cuda_graph_impl,
        cuda_graph_scope=args.cuda_graph_scope,
        cuda_graph_warmup_steps=args.cuda_graph_warmup_steps,
        **latent_attention_options(args),
        **fp8_options(args),
        **expert_options(args),
    )


def latent_attention_options(args: argparse.Namespace) -> dict[str, object]:
    if not args.multi_latent_attention:
        return {}
    return {
        "q_lora_rank": args.q_lora_rank,
        "kv_lora_rank": args.kv_lora_rank,
        "qk_head_dim": args.qk_head_dim,
        "qk_pos_emb_head_dim": args.qk_pos_emb_head_dim,
        "v_head_dim": args.v_head_dim,
        "rotary_scaling_factor": args.rotary_scaling_factor,
        "mscale": args.mscale,
        "mscale_all_dim": args.mscale_all_dim,
    }


def fp8_options(args: argparse.Namespace) -> dict[str, object]:
    if args.fp8_format is None:
        return {}
    return {
        "fp8": args.fp8_format,
        "fp8_recipe": args.fp8_recipe,
        "fp8_margin": args.fp8_margin,
        "fp8_amax_history_len": args.fp8_amax_history_len,
        "fp8_amax_compute_algo": args.fp8_amax_compute_algo,
        "fp8_wgrad": args.fp8_wgrad,
        "fp8_param": args.fp8_param_gather,
        "first_last_layers_bf16": args.first_last_layers_bf16,
        "num_layers_at_start_in_bf16": args.num_layers_at_start_in_bf16,
        "num_layers_at_end_in_bf16": args.num_layers_at_end_in_bf16,
    }


def expert_options(args: argparse.Namespace) -> dict[str, object]:
    if args.num_experts is None:
        return {}
    return {
        "num_moe_experts": args.num_experts,
        "moe_layer_freq": args.moe_layer_freq,
        "moe_ffn_hidden_size": args.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": args.moe_shared_expert_intermediate_size,
        "moe_grouped_gemm": args.moe_grouped_gemm,
        "moe_router_topk": args.moe_router_topk,
        "moe_router_pre_softmax": args.moe_router_pre_softmax,
        "moe_router_dtype": args.moe_router_dtype,
        "moe_router_score_function": args.moe_router_score_function,
        "moe_router_num_groups": args.moe_router_num_groups,
        "moe_router_group_topk": args.moe_router_group_topk,
        "moe_router_topk_scaling_factor": args.moe_router_topk_scaling_factor,
        "moe_router_enable_expert_bias": args.moe_router_enable_expert_bias,
        "moe_router_bias_update_rate": args.moe_router_bias_update_rate,
        "moe_router_fusion": args.moe_router_fusion,
        "moe_permute_fusion": args.moe_permute_fusion,
        "moe_router_load_balancing_type": args.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": args.moe_aux_loss_coeff,
        "moe_token_dispatcher_type": args.moe_token_dispatcher_type,
        "expert_model_parallel_size": args.expert_model_parallel_size,
        "expert_tensor_parallel_size": args.expert_tensor_parallel_size,
        "overlap_moe_expert_parallel_comm": args.overlap_moe_expert_parallel_comm,
        "delay_wgrad_compute": args.delay_wgrad_compute,
    }


def activation(args: argparse.Namespace) -> Callable[[torch.Tensor], torch.Tensor]:
    return functional.silu if args.swiglu else squared_relu if args.squared_relu else functional.gelu


def layers_spec(
    args: argparse.Namespace, config: TransformerConfig, stage: int | None
) -> ModuleSpec | TransformerBlockSubmodules:
    engine = args.transformer_impl == "transformer_engine"
    if engine and args.num_experts is None:
        return get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=args.qk_layernorm, multi_latent_attention=args.multi_latent_attention
        )
    if args.num_experts is None:
        layer = get_gpt_layer_local_spec(
            qk_layernorm=args.qk_layernorm,
            multi_latent_attention=args.multi_latent_attention,
            normalization=args.normalization,
        )
        layers = [layer] * get_num_layers_to_build(config, vp_stage=stage)
    else:  # some with experts, some without
        block = get_gpt_decoder_block_spec(config, engine, normalization=args.normalization, vp_stage=stage)
        if engine:
            return block
        layers = block.layer_specs
    for layer in layers:
        provide_norm_and_attention(args, layer)
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm)


def provide_norm_and_attention(args: argparse.Namespace, layer: ModuleSpec) -> None:
    norm = RecomputedFloat32Norm if args.recompute_norms_in_fp32 else Norm
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = norm
    if args.attention_backend in ("flash", "fused"):
        layer.submodules.self_attention.submodules.core_attention = FusedAttention


def further_tokens_spec(
    args: argparse.Namespace, config: TransformerConfig, stage: int | None
) -> MultiTokenPredictionBlockSubmodules | None:
    """Of the layers of --mtp-num-layers, which are like the model's last, where this stage has them."""
    if args.mtp_num_layers is None:
        return None
    engine = args.transformer_impl == "transformer_engine"
    last = get_gpt_decoder_layer_specs(config, engine, normalization=args.normalization)[-1]
    spec = get_gpt_mtp_block_spec(config, last, engine, vp_stage=stage)
    if spec is not None and not engine:
        provide_norm_and_attention(args, last)
        for layer in spec.layer_specs:
            layer.submodules.enorm = layer.submodules.hnorm = layer.submodules.layer_norm = Norm
    return spec


def build_model(args: argparse.Namespace) -> list[DistributedDataParallel]:
    """This rank's part of the model: one chunk, or with virtual stages several."""
    config = transformer_config(args)
    provide_fused_kernels()
    if args.apply_rope_fusion:
        fuse_rotary_embedding()
    stages = args.virtual_pipeline_model_parallel_size
    model_type = ScatteredGPTModel if args.scatter_gather_tensors_in_pipeline else GPTModel
    chunks: list[torch.nn.Module] = []
    for stage in [None] if stages is None else range(stages):
        chunks.append(
            model_type(
                config,
                layers_spec(args, config, stage),
                vocab_size=args.padded_vocab_size,
                max_sequence_length=args.max_position_embeddings,
                pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                position_embedding_type=args.position_embedding_type,
                rotary_percent=args.rotary_percent,
                rotary_base=args.rotary_base,
                mtp_block_spec=further_tokens_spec(args, config, stage),
                vp_stage=stage,
            )
        )
    for parameter in (p for chunk in chunks for p in chunk.parameters()):
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    if not args.async_tensor_model_parallel_allreduce:
        for chunk in chunks:
            wait_for_input_gradients(chunk)
    if parallel_state.get_data_parallel_rank() == 0:
        print(
            f"parameters on (tensor, pipeline) rank ({parallel_state.get_tensor_model_parallel_rank()}, "
            f"{parallel_state.get_pipeline_model_parallel_rank()}): "
            f"{sum(p.numel() for chunk in chunks for p in chunk.parameters()):,}",
            flush=True,
        )
    chunks = [chunk.cuda() for chunk in chunks]
    if args.bf16 or args.fp16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    return [data_parallel(args, config, chunk, first=index == 0) for index, chunk in enumerate(chunks)]


def data_parallel(
    args: argparse.Namespace, config: TransformerConfig, chunk: torch.nn.Module, first: bool
) -> DistributedDataParallel:
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=args.accumulate_allreduce_grads_in_fp32,
        overlap_grad_reduce=args.overlap_grad_reduce,
        overlap_param_gather=args.overlap_param_gather,
        align_param_gather=args.align_param_gather,
        use_distributed_optimizer=args.use_distributed_optimizer,
        use_megatron_fsdp=args.use_megatron_fsdp,
        data_parallel_sharding_strategy=args.data_parallel_sharding_strategy,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        average_in_collective=args.ddp_average_in_collective,
        check_for_nan_in_grad=args.check_for_nan_in_loss_and_grad,
        delay_wgrad_compute=args.delay_wgrad_compute,
        bucket_size=args.ddp_bucket_size,
    )
    # Later chunks overlap with computation anyway: no buckets for them, as in Megatron-LM.
    whole = not first or args.overlap_param_gather_with_optimizer_step
    if args.use_megatron_fsdp:
        # Takes Transformer Engine's classes to be there.
        from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

        return FullyShardedDataParallel(config, ddp_config, chunk, disable_bucketing=whole)
    return DistributedDataParallel(config, ddp_config, chunk, disable_bucketing=whole)


def overlap_communication(
    args: argparse.Namespace, model: list[DistributedDataParallel], optimizer: MegatronOptimizer
) -> None:
    """Tells the pipeline schedules when gradients and parameters may travel."""
    config = get_model_config(model[0])
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap_grad_reduce:
        config.no_sync_func = one_or_all([chunk.no_sync for chunk in model])
        if args.align_grad_reduce:
            config.grad_sync_func = one_or_all([chunk.start_grad_sync for chunk in model])
    if args.overlap_param_gather and args.align_param_gather:
        config.param_sync_func = one_or_all([chunk.start_param_sync for chunk in model])


def provide_timers(
    args: argparse.Namespace, model: list[DistributedDataParallel], optimizer: MegatronOptimizer
) -> Timers:
    """Timers of the iteration's parts, which wait for the device; at level 0 they do nothing."""
    timers = Timers(args.timing_log_level, "minmax")
    if args.timing_log_level:
        for config in (get_model_config(model[0]), optimizer.config):
            config.timers = timers
            config.barrier_with_L1_time = args.barrier_with_level_1_timing
    return timers


def one_or_all(functions: list[Callable[..., object]]) -> Callable[..., object] | list[Callable[..., object]]:
    return functions[0] if len(functions) == 1 else functions


def mock_batches(args: argparse.Namespace) -> Iterator[dict[str, torch.Tensor]]:
    """Random tokens, the same for all ranks of a model replica; [micro batch, sequence] each, on the host."""
    generator = torch.Generator().manual_seed(args.seed + parallel_state.get_data_parallel_rank())
    shape = (args.micro_batch_size, args.seq_length + 1)
    positions = torch.arange(args.seq_length).expand(args.micro_batch_size, -1).contiguous()
    mask = torch.ones(args.micro_batch_size, args.seq_length)
    while True:
        text = torch.randint(args.vocab_size, shape, generator=generator)
        yield {
            "tokens": text[:, :-1].contiguous(),
            "labels": text[:, 1:].contiguous(),
            "loss_mask": mask,
            "position_ids": positions,
        }


def get_batch(args: argparse.Namespace, batches: Iterator[dict[str, torch.Tensor]], chunk: GPTModel) -> Batch:
    """What this pipeline stage needs of the next micro-batch; tensor rank 0 reads, the others are sent it."""
    needed = ("tokens", "position_ids") if chunk.pre_process or chunk.mtp_process else ()
    needed += ("labels", "loss_mask") if chunk.post_process else ()
    source = parallel_state.get_tensor_model_parallel_src_rank()
    group = parallel_state.get_tensor_model_parallel_group()
    shape = (args.micro_batch_size, args.seq_length)
    batch: Batch = dict.fromkeys(("tokens", "position_ids", "labels", "loss_mask"))
    host = next(batches) if parallel_state.get_tensor_model_parallel_rank() == 0 else {}
    for name in needed:
        if host:
            tensor = host[name].pin_memory().cuda(non_blocking=True)
        else:
            dtype = torch.float32 if name == "loss_mask" else torch.int64
            tensor = torch.empty(shape, dtype=dtype, device="cuda")
        if group.size() > 1:
            dist.broadcast(tensor, source, group=group)
        batch[name] = tensor
    return get_batch_on_this_cp_rank(batch) if args.context_parallel_size > 1 else batch


def loss_func(
    args: argparse.Namespace, mask: torch.Tensor, losses: torch.Tensor
) -> tuple[torch.Tensor | dict[str, torch.Tensor], ...]:
    """`losses` [micro batch, sequence]; their mean over unmasked tokens, to train on and to report, or with
    --calculate-per-token-loss this rank's sum, the number of its tokens and the mean."""
    summed, tokens = torch.sum(losses.float() * mask), mask.sum()
    total = torch.stack([summed, tokens])
    if args.context_parallel_size > 1:
        dist.all_reduce(total, group=parallel_state.get_context_parallel_group())
    loss = total[0] / total[1]
    if args.check_for_nan_in_loss_and_grad and not math.isfinite(loss.item()):
        raise RuntimeError(f"rank {args.rank}: the loss is {loss.item()}")
    report = {"lm loss": loss.detach().clone()}
    return (summed, tokens.int(), report) if args.calculate_per_token_loss else (loss, report)


def forward_step(args, timers, batches, model, return_schedule_plan=False):
    """The losses, or for --overlap-moe-expert-parallel-comm a plan of what computes them."""
    chunk = model
    while hasattr(chunk, "module"):  # through DDP and Float16Module
        chunk = chunk.module
    timers("batch-generator", log_level=2).start()
    batch = get_batch(args, batches, chunk)
    timers("batch-generator").stop()
    run = model.build_schedule_plan if return_schedule_plan else model
    losses = run(
        batch["tokens"], batch["position_ids"], None, labels=batch["labels"], loss_mask=batch["loss_mask"]
    )
    return losses, partial(loss_func, args, batch["loss_mask"])


def train_step(
    args: argparse.Namespace,
    timers: Timers,
    model: list[DistributedDataParallel],
    optimizer: MegatronOptimizer,
    scheduler: OptimizerParamScheduler,
    batches: list[Iterator[dict[str, torch.Tensor]]],
    exchanges: dict[str, object],
) -> tuple[list[dict[str, torch.Tensor]], float | None, float | None]:
    """One global batch. Returns the micro-batches' losses (last stage only), the gradients' norm and zeros."""
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=partial(forward_step, args, timers),
        data_iterator=batches if len(model) > 1 else batches[0],
        model=model,
        num_microbatches=args.num_microbatches,
        seq_length=args.seq_length
        // (args.tensor_model_parallel_size if args.scatter_gather_tensors_in_pipeline else 1),
        micro_batch_size=args.micro_batch_size,
        forward_only=False,
        force_all_reduce=args.all_reduce_gradients,
        **exchanges,
    )
    timers("optimizer", log_level=1).start(barrier=args.barrier_with_level_1_timing)
    updated, gradient_norm, zeros = optimizer.step()
    timers("optimizer").stop()
    if updated:
        scheduler.step(increment=args.global_batch_size)
    return losses, gradient_norm, zeros


def main() -> None:
    args = parse_args()
    # With one hardware queue communication starts before the computation that follows it (Megatron-LM).
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    for name, value in ONE_RANK.items():
        os.environ.setdefault(name, value)
    initialize(args)
    if args.tp_comm_overlap:
        share_buffers(args)
    model = build_model(args)
    optimizer, scheduler = build_optimizer(args, model)
    overlap_communication(args, model, optimizer)
    timers = provide_timers(args, model, optimizer)
    batches = [mock_batches(args) for _ in model]
    exchanges = exchange(args.deepspeed_pipeline, get_model_config(model[0]))
    for chunk in model:
        chunk.train()

    started = time.perf_counter()
    for iteration in range(1, args.train_iters + 1):
        if args.cuda_graph_impl != "none" and iteration == args.cuda_graph_warmup_steps + 1:
            capture_layers(args, model, optimizer)
        losses, norm, zeros = train_step(args, timers, model, optimizer, scheduler, batches, exchanges)
        values = {"grad norm": norm, "num zeros": zeros}
        if args.log_params_norm:
            values["params norm"] = parameters_norm(model)
        if iteration % args.log_interval == 0:
            seconds = seconds_since(started) / args.log_interval
            log(args, iteration, losses, values, seconds)
            if args.timing_log_level:
                log_timers(args, timers)
            started = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
