"""Megatron's flags, as far as this example goes, and the checks that Megatron makes of them."""

import argparse
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import torch
import yaml


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pretrain a GPT with megatron-core.", allow_abbrev=False)
    _model(parser.add_argument_group("model"))
    _latent_attention(parser.add_argument_group("multi-latent attention"))
    _experts(parser.add_argument_group("mixture of experts"))
    _parallelism(parser.add_argument_group("parallelism"))
    _training(parser.add_argument_group("training"))
    _fusions(parser.add_argument_group("fusions"))
    _graphs(parser.add_argument_group("CUDA graphs"))
    _fp8(parser.add_argument_group("FP8, with Transformer Engine"))
    args = parser.parse_args()
    args.rank = int(os.environ.get("RANK", "0"))
    args.world_size = int(os.environ.get("WORLD_SIZE", "1"))
    args.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    validate(args)
    return args


def _model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num-layers", type=int, required=True)
    group.add_argument("--hidden-size", type=int, required=True)
    group.add_argument("--ffn-hidden-size", type=int, help="default 4 * hidden, with --swiglu 8/3 of it")
    group.add_argument("--num-attention-heads", type=int, required=True)
    group.add_argument("--kv-channels", type=int, help="default hidden / heads")
    group.add_argument("--group-query-attention", action="store_true")
    group.add_argument("--num-query-groups", type=int, default=1)
    group.add_argument("--seq-length", type=int, required=True)
    group.add_argument("--max-position-embeddings", type=int, help="default: the sequence length")
    group.add_argument("--vocab-size", type=int, default=50257)
    group.add_argument("--make-vocab-size-divisible-by", type=int, default=128)
    group.add_argument("--position-embedding-type", choices=["learned_absolute", "rope"],
                       default="learned_absolute")  # fmt: skip
    group.add_argument("--rotary-base", type=int, default=10000)
    group.add_argument("--rotary-percent", type=float, default=1.0)
    group.add_argument("--rotary-interleaved", action="store_true")
    group.add_argument("--normalization", choices=["LayerNorm", "RMSNorm"], default="LayerNorm")
    group.add_argument("--norm-epsilon", type=float, default=1e-5)
    group.add_argument("--swiglu", action="store_true")
    group.add_argument("--squared-relu", action="store_true")
    group.add_argument("--disable-bias-linear", action="store_false", dest="add_bias_linear")
    group.add_argument("--add-qkv-bias", action="store_true")
    group.add_argument("--untie-embeddings-and-output-weights", action="store_true")
    group.add_argument("--attention-dropout", type=float, default=0.1)
    group.add_argument("--hidden-dropout", type=float, default=0.1)
    group.add_argument("--no-attention-softmax-in-fp32", action="store_false",
                       dest="attention_softmax_in_fp32")  # fmt: skip
    group.add_argument("--apply-query-key-layer-scaling", action="store_true")
    group.add_argument("--qk-layernorm", action="store_true", help="normalise queries and keys")
    group.add_argument(
        "--test-mode", action="store_true", help="compare --qk-layernorm's weights between ranks"
    )
    group.add_argument("--init-method-std", type=float, default=0.02)
    group.add_argument("--mtp-num-layers", type=int, help="layers that predict further tokens (DeepSeek-V3)")
    group.add_argument("--mtp-loss-scaling-factor", type=float, default=0.1)
    group.add_argument("--transformer-impl", choices=["local", "transformer_engine"], default="local")
    group.add_argument("--attention-backend", choices=["auto", "flash", "fused", "unfused"],
                       default="auto", help="local: flash and fused (cuDNN) are PyTorch's; auto: unfused")  # fmt: skip
    group.add_argument("--use-flash-attn", action="store_const", const="flash", dest="attention_backend")


def _latent_attention(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--multi-latent-attention", action="store_true")
    group.add_argument("--q-lora-rank", type=int, help="default: queries are not compressed")
    group.add_argument("--kv-lora-rank", type=int, default=32)
    group.add_argument("--qk-head-dim", type=int, default=128)
    group.add_argument("--qk-pos-emb-head-dim", type=int, default=64)
    group.add_argument("--v-head-dim", type=int, default=128)
    group.add_argument("--rotary-scaling-factor", type=float, default=1.0, help="YaRN")
    group.add_argument("--mscale", type=float, default=1.0, help="YaRN")
    group.add_argument("--mscale-all-dim", type=float, default=0.0, help="YaRN")


def layer_pattern(text: str) -> int | list[int]:
    """Every so many layers one has experts, or layer by layer whether it has: "([0]*1+[1]*15)"."""
    if text.isdecimal():
        return int(text)
    runs = re.findall(r"\[([01])\]\*(\d+)", text)
    if "+".join(f"[{has}]*{times}" for has, times in runs) != text.strip("()"):
        raise argparse.ArgumentTypeError(f"no number of layers, nor like ([0]*1+[1]*15): {text}")
    return [int(has) for has, times in runs for _ in range(int(times))]


def overlap_methods(text: str) -> dict[str, dict[str, Any]]:
    """How each product overlaps, by its name: a YAML file, or what stands in one. Default: Transformer Engine's."""
    try:
        methods = yaml.safe_load(text if text.lstrip().startswith("{") else Path(text).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(methods, dict) or not all(isinstance(of, dict) for of in methods.values()):
        raise argparse.ArgumentTypeError(f"no products with their methods: {text}")
    return methods


def _experts(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num-experts", type=int)
    group.add_argument("--moe-layer-freq", type=layer_pattern, default=1, help=layer_pattern.__doc__)
    group.add_argument("--moe-ffn-hidden-size", type=int, help="of an expert; default: --ffn-hidden-size")
    group.add_argument("--moe-shared-expert-intermediate-size", type=int, help="of all shared experts")
    group.add_argument("--moe-grouped-gemm", action="store_true", help="all experts in one matrix product")
    group.add_argument("--moe-router-topk", type=int, default=2)
    group.add_argument("--moe-router-pre-softmax", action="store_true")
    group.add_argument("--moe-router-dtype", choices=["fp32", "fp64"])
    group.add_argument("--moe-router-load-balancing-type", default="aux_loss",
                       choices=["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"])  # fmt: skip
    group.add_argument("--moe-router-score-function", choices=["softmax", "sigmoid"], default="softmax")
    group.add_argument("--moe-router-num-groups", type=int, help="of experts, of which a token goes to "
                       "--moe-router-group-topk")  # fmt: skip
    group.add_argument("--moe-router-group-topk", type=int)
    group.add_argument("--moe-router-topk-scaling-factor", type=float)
    group.add_argument("--moe-router-enable-expert-bias", action="store_true",
                       help="balances experts without a loss")  # fmt: skip
    group.add_argument("--moe-router-bias-update-rate", type=float, default=1e-3)
    group.add_argument("--moe-router-fusion", action="store_true", help="by Transformer Engine")
    group.add_argument("--moe-permute-fusion", action="store_true", help="by Transformer Engine")
    group.add_argument("--moe-aux-loss-coeff", type=float, default=0.0)
    group.add_argument("--moe-token-dispatcher-type", choices=["allgather", "alltoall"], default="allgather")
    group.add_argument("--overlap-moe-expert-parallel-comm", action="store_true",
                       help="tokens travel beside another micro-batch's computation")  # fmt: skip
    group.add_argument("--delay-wgrad-compute", action="store_true",
                       help="weights' gradients wait until tokens travel; needs Transformer Engine")  # fmt: skip
    group.add_argument("--expert-model-parallel-size", type=int, default=1)
    group.add_argument(
        "--expert-tensor-parallel-size", type=int, help="default: --tensor-model-parallel-size"
    )


def _parallelism(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tensor-model-parallel-size", type=int, default=1)
    group.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    group.add_argument("--num-layers-per-virtual-pipeline-stage", type=int)
    group.add_argument("--account-for-embedding-in-pipeline-split", action="store_true",
                       help="the first stage has a layer less")  # fmt: skip
    group.add_argument("--account-for-loss-in-pipeline-split", action="store_true",
                       help="the last stage has a layer less")  # fmt: skip
    group.add_argument("--num-virtual-stages-per-pipeline-rank", type=int)
    group.add_argument("--pipeline-model-parallel-layout", help="layers of each stage: Et|(tt|)*6mL, with the "
                       "embedding (E), those of --mtp-num-layers (m) and the loss (L)")  # fmt: skip
    group.add_argument("--microbatch-group-size-per-virtual-pipeline-stage", type=int,
                       help="micro-batches of a stage in a row; default: the pipeline-parallel size")  # fmt: skip
    group.add_argument("--no-overlap-p2p-communication", action="store_false", dest="overlap_p2p_comm")
    group.add_argument("--overlap-p2p-communication-warmup-flush", action="store_true")
    group.add_argument("--decoder-first-pipeline-num-layers", type=int, help="default: like the other stages")
    group.add_argument("--decoder-last-pipeline-num-layers", type=int, help="default: like the other stages")
    group.add_argument("--use-tp-pp-dp-mapping", action="store_true",
                       help="pipeline ranks lie closer together than data-parallel ones")  # fmt: skip
    group.add_argument("--scatter-gather-tensors-in-pipeline", action="store_true",
                       help="each tensor rank sends its share of what a stage hands over, as with "
                       "--sequence-parallel")  # fmt: skip
    group.add_argument("--deepspeed-pipeline", choices=["parts", "whole-gradients"],
                       help="stages exchange as DeepSpeed's engine has them, with gradients as it sends them or as "
                       "it did until June 2021")  # fmt: skip
    group.add_argument("--no-async-tensor-model-parallel-allreduce", action="store_false",
                       dest="async_tensor_model_parallel_allreduce")  # fmt: skip
    group.add_argument("--context-parallel-size", type=int, default=1)
    group.add_argument("--sequence-parallel", action="store_true")
    group.add_argument("--tp-comm-overlap", action="store_true",
                       help="tensor-parallel collectives in parts, beside the products that need them")  # fmt: skip
    group.add_argument("--tp-comm-overlap-cfg", type=overlap_methods,
                       metavar="YAML", help=overlap_methods.__doc__)  # fmt: skip
    group.add_argument("--use-distributed-optimizer", action="store_true")
    group.add_argument("--all-reduce-gradients", action="store_true",
                       help="each rank gets all gradients though the distributed optimizer needs its share alone, "
                       "as with DeepSpeed's ZeRO stage 1")  # fmt: skip
    group.add_argument("--num-distributed-optimizer-instances", type=int, default=1,
                       help="copies of the sharded optimizer state among the data-parallel ranks")  # fmt: skip
    group.add_argument("--use-megatron-fsdp", action="store_true",
                       help="shards what --data-parallel-sharding-strategy says")  # fmt: skip
    group.add_argument("--data-parallel-sharding-strategy", default="optim_grads_params",
                       choices=["optim", "optim_grads", "optim_grads_params"])  # fmt: skip
    group.add_argument("--overlap-grad-reduce", action="store_true")
    group.add_argument("--overlap-param-gather", action="store_true")
    group.add_argument("--overlap-param-gather-with-optimizer-step", action="store_true")
    group.add_argument("--no-align-grad-reduce", action="store_false", dest="align_grad_reduce")
    group.add_argument("--no-align-param-gather", action="store_false", dest="align_param_gather")
    group.add_argument("--ddp-bucket-size", type=int)
    group.add_argument("--ddp-average-in-collective", action="store_true",
                       help="collectives average gradients, which otherwise are scaled before them")  # fmt: skip
    group.add_argument("--grad-reduce-in-bf16", action="store_true")
    group.add_argument("--accumulate-allreduce-grads-in-fp32", action="store_true",
                       help="default with --bf16, unless --grad-reduce-in-bf16")  # fmt: skip
    group.add_argument("--recompute-activations", action="store_const", const="selective",
                       dest="recompute_granularity")  # fmt: skip
    group.add_argument("--recompute-granularity", choices=["full", "selective"])
    group.add_argument("--recompute-method", choices=["uniform", "block"])
    group.add_argument("--recompute-num-layers", type=int)
    group.add_argument("--recompute-modules", nargs="+", help="of --recompute-granularity selective; default: "
                       "core_attn")  # fmt: skip
    group.add_argument("--recompute-norms-in-fp32", action="store_true",
                       help="InternEvo: layers normalise in fp32, and again in the backward pass")  # fmt: skip
    group.add_argument("--distribute-saved-activations", action="store_true")
    group.add_argument("--fine-grained-activation-offloading", action="store_true",
                       help="inputs of --offload-modules wait for the backward pass on the host")  # fmt: skip
    group.add_argument("--offload-modules", nargs="+", default=[])
    group.add_argument("--distributed-timeout-minutes", type=int, default=10)


def _training(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--micro-batch-size", type=int, required=True)
    group.add_argument("--global-batch-size", type=int, help="default: one micro-batch a data-parallel rank")
    group.add_argument("--train-iters", type=int, required=True)
    group.add_argument("--mock-data", action="store_true", help="random tokens; there is no other data here")
    group.add_argument("--bf16", action="store_true")
    group.add_argument("--fp16", action="store_true")
    group.add_argument("--loss-scale", type=float, help="fp16: constant instead of dynamic")
    group.add_argument("--initial-loss-scale", type=float, default=2.0**32)
    group.add_argument("--optimizer", choices=["adam", "muon", "dist_muon"], default="adam",
                       help="dist_muon: each data-parallel rank steps some of the layers")  # fmt: skip
    group.add_argument("--use-precision-aware-optimizer", action="store_true",
                       help="Transformer Engine's Adam keeps what bf16 lacks of fp32 parameters")  # fmt: skip
    group.add_argument("--lr", type=float, default=1.5e-4)
    group.add_argument("--decoupled-lr", type=float, help="of embeddings and output weights")
    group.add_argument("--min-lr", type=float, default=0.0)
    group.add_argument("--lr-decay-style", choices=["constant", "linear", "cosine"], default="linear")
    group.add_argument("--lr-decay-iters", type=int, help="default: --train-iters")
    group.add_argument("--lr-warmup-iters", type=int, default=0)
    group.add_argument("--lr-warmup-fraction", type=float)
    group.add_argument("--weight-decay", type=float, default=0.01)
    group.add_argument("--clip-grad", type=float, default=1.0)
    group.add_argument("--adam-beta1", type=float, default=0.9)
    group.add_argument("--adam-beta2", type=float, default=0.999)
    group.add_argument("--adam-eps", type=float, default=1e-8)
    group.add_argument("--muon-momentum", type=float, default=0.9)
    group.add_argument("--muon-no-split-qkv", action="store_false", dest="muon_split_qkv")
    group.add_argument("--muon-use-nesterov", action="store_true")
    group.add_argument("--muon-scale-mode", choices=["spectral", "unit_rms_norm", "shape_scaling"],
                       default="spectral")  # fmt: skip
    group.add_argument("--muon-fp32-matmul-prec", choices=["low", "medium", "high"], default="medium")
    group.add_argument("--muon-num-ns-steps", type=int, default=5, help="of Newton and Schulz' iteration")
    group.add_argument("--muon-tp-mode", choices=["blockwise", "duplicated", "distributed"],
                       default="blockwise")  # fmt: skip
    group.add_argument("--muon-extra-scale-factor", type=float, default=1.0)
    group.add_argument("--no-check-for-nan-in-loss-and-grad", action="store_false",
                       dest="check_for_nan_in_loss_and_grad")  # fmt: skip
    group.add_argument("--calculate-per-token-loss", action="store_true",
                       help="gradients by the tokens of the whole batch, not of each micro-batch")  # fmt: skip
    group.add_argument("--log-interval", type=int, default=100)
    group.add_argument("--log-params-norm", action="store_true")
    group.add_argument("--log-num-zeros-in-grad", action="store_true")
    group.add_argument("--deterministic-mode", action="store_true")
    group.add_argument("--timing-log-level", type=int, default=0, choices=range(3),
                       help="1: time the parts of an iteration; 2: each forward and backward pass as well. Starting "
                       "and stopping a timer waits for the device.")  # fmt: skip
    group.add_argument("--no-barrier-with-level-1-timing", action="store_false",
                       dest="barrier_with_level_1_timing")  # fmt: skip
    group.add_argument("--seed", type=int, default=1234)


def _fusions(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--no-bias-gelu-fusion", action="store_false", dest="bias_gelu_fusion")
    group.add_argument("--no-bias-swiglu-fusion", action="store_false", dest="bias_swiglu_fusion")
    group.add_argument("--no-bias-dropout-fusion", action="store_false", dest="bias_dropout_fusion")
    group.add_argument("--no-masked-softmax-fusion", action="store_false", dest="masked_softmax_fusion")
    group.add_argument("--no-rope-fusion", action="store_false", dest="apply_rope_fusion")
    group.add_argument("--no-gradient-accumulation-fusion", action="store_false",
                       dest="gradient_accumulation_fusion")  # fmt: skip
    group.add_argument("--cross-entropy-loss-fusion", action="store_true")
    group.add_argument("--cross-entropy-fusion-impl", choices=["native", "te"], default="native")
    group.add_argument("--defer-embedding-wgrad-compute", action="store_true",
                       help="the output weights' gradients are computed while the pipeline drains")  # fmt: skip
    group.add_argument("--wgrad-deferral-limit", type=int, default=0)


def _graphs(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--cuda-graph-impl", choices=["none", "transformer_engine"], default="none")
    group.add_argument("--cuda-graph-scope", "--cuda-graph-modules", nargs="+", default=[],
                       help="parts of each layer that are captured; default: all")  # fmt: skip
    group.add_argument("--cuda-graph-warmup-steps", type=int, default=3, help="iterations before the capture")


def _fp8(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fp8-format", choices=["e4m3", "hybrid"], help="hybrid: E4M3 forward, E5M2 gradients"
    )
    group.add_argument("--fp8-recipe", choices=["delayed", "tensorwise", "blockwise"], default="delayed")
    group.add_argument("--fp8-margin", type=int, default=0)
    group.add_argument("--fp8-amax-history-len", type=int, default=1)
    group.add_argument("--fp8-amax-compute-algo", choices=["most_recent", "max"], default="most_recent")
    group.add_argument("--no-fp8-wgrad", action="store_false", dest="fp8_wgrad")
    group.add_argument("--fp8-param-gather", action="store_true", help="keep and gather weights in FP8")
    group.add_argument("--first-last-layers-bf16", action="store_true")
    group.add_argument("--num-layers-at-start-in-bf16", type=int, default=1)
    group.add_argument("--num-layers-at-end-in-bf16", type=int, default=1)


def validate(args: argparse.Namespace) -> None:
    """Fills in what follows from other flags. Raises ValueError that shows the arithmetic."""
    _validate_parallelism(args)
    _validate_model(args)
    _validate_experts(args)
    _validate_batch(args)
    _validate_recomputation(args)
    if not args.mock_data:
        raise ValueError("this example trains on random tokens only: add --mock-data")
    if args.bf16 and args.fp16:
        raise ValueError("--bf16 and --fp16 exclude each other")
    if args.swiglu and args.squared_relu:
        raise ValueError("--swiglu and --squared-relu exclude each other")
    if args.bf16 and not args.grad_reduce_in_bf16:
        args.accumulate_allreduce_grads_in_fp32 = True  # as Megatron does
    args.params_dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    _validate_transformer_engine(args)
    if args.overlap_param_gather and not args.use_distributed_optimizer:
        raise ValueError("--overlap-param-gather needs --use-distributed-optimizer")
    if args.overlap_param_gather and not args.overlap_grad_reduce:
        raise ValueError("--overlap-param-gather needs --overlap-grad-reduce")
    if args.overlap_param_gather_with_optimizer_step and not (
        args.overlap_param_gather and args.virtual_pipeline_model_parallel_size
    ):
        raise ValueError(
            "--overlap-param-gather-with-optimizer-step needs --overlap-param-gather and virtual pipeline stages"
        )
    _validate_distributed_optimizer(args)
    _validate_precision_awareness(args)
    _validate_muon(args)


def _validate_distributed_optimizer(args: argparse.Namespace) -> None:
    instances = args.num_distributed_optimizer_instances
    for flag, given in (
        ("--num-distributed-optimizer-instances", instances > 1),
        ("--use-megatron-fsdp", args.use_megatron_fsdp),
        ("--all-reduce-gradients", args.all_reduce_gradients),
    ):
        if given and not args.use_distributed_optimizer:
            raise ValueError(f"{flag} needs --use-distributed-optimizer")
    if args.all_reduce_gradients and (args.overlap_grad_reduce or args.use_megatron_fsdp):
        raise ValueError("--all-reduce-gradients excludes --overlap-grad-reduce and --use-megatron-fsdp")
    replicas = args.data_parallel_size * args.context_parallel_size
    if instances < 1 or replicas % instances:
        raise ValueError(
            f"data-parallel ranks ({replicas}, context-parallel ones among them) are not divisible by "
            f"num-distributed-optimizer-instances ({instances})"
        )


def _validate_precision_awareness(args: argparse.Namespace) -> None:
    if not args.use_precision_aware_optimizer:
        return
    if args.optimizer != "adam" or not args.use_distributed_optimizer:
        raise ValueError(
            "--use-precision-aware-optimizer needs --optimizer adam and --use-distributed-optimizer"
        )
    if importlib.util.find_spec("transformer_engine") is None:
        raise ValueError("--use-precision-aware-optimizer: Transformer Engine is not installed")


def _validate_muon(args: argparse.Namespace) -> None:
    if args.optimizer == "adam":
        return
    if args.use_distributed_optimizer:
        raise ValueError(
            f"--optimizer {args.optimizer} has no --use-distributed-optimizer: dist_muon has layers step on "
            "one data-parallel rank each"
        )
    if args.fp16:
        raise ValueError(f"--optimizer {args.optimizer} has no --fp16")
    if importlib.util.find_spec("emerging_optimizers") is None:
        raise ValueError(
            f"--optimizer {args.optimizer} needs NVIDIA's Emerging-Optimizers: pip install "
            "git+https://github.com/NVIDIA-NeMo/Emerging-Optimizers@v0.1.0"
        )


def _validate_transformer_engine(args: argparse.Namespace) -> None:
    if args.transformer_impl == "transformer_engine":
        if importlib.util.find_spec("transformer_engine") is None:
            raise ValueError("--transformer-impl transformer_engine: Transformer Engine is not installed")
    elif args.use_megatron_fsdp:
        raise ValueError("--use-megatron-fsdp needs --transformer-impl transformer_engine")
    elif args.fp8_format is not None:
        raise ValueError("--fp8-format needs --transformer-impl transformer_engine")
    elif args.cuda_graph_impl != "none":
        raise ValueError("--cuda-graph-impl needs --transformer-impl transformer_engine")
    if args.tp_comm_overlap and not (
        args.transformer_impl == "transformer_engine" and args.sequence_parallel
    ):
        raise ValueError(
            "--tp-comm-overlap needs --transformer-impl transformer_engine and --sequence-parallel"
        )
    if args.tp_comm_overlap_cfg is not None and not args.tp_comm_overlap:
        raise ValueError("--tp-comm-overlap-cfg needs --tp-comm-overlap")
    if args.fp8_param_gather and args.fp8_format is None:
        raise ValueError("--fp8-param-gather needs --fp8-format")


def _validate_parallelism(args: argparse.Namespace) -> None:
    tp, pp, cp = (
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.context_parallel_size,
    )
    if args.world_size % (tp * pp * cp):
        raise ValueError(
            f"world size ({args.world_size}) is not divisible by tensor-model-parallel-size ({tp}) * "
            f"pipeline-model-parallel-size ({pp}) * context-parallel-size ({cp}) = {tp * pp * cp}"
        )
    args.data_parallel_size = args.world_size // (tp * pp * cp)
    if cp > 1 and args.transformer_impl == "local" and args.attention_backend != "fused":
        raise ValueError("--context-parallel-size > 1 needs --attention-backend fused or Transformer Engine")
    if cp > 1 and args.transformer_impl == "local" and args.attention_dropout > 0:
        raise ValueError("--context-parallel-size > 1 needs --attention-dropout 0 or Transformer Engine")
    if cp > 1 and args.seq_length % (2 * cp):
        raise ValueError(
            f"seq-length ({args.seq_length}) is not divisible by 2 * context-parallel-size ({cp})"
        )
    if args.sequence_parallel and tp == 1:
        args.sequence_parallel = False  # as Megatron does: there is nothing to split over
    if tp == 1 or pp == 1 or args.sequence_parallel:
        args.scatter_gather_tensors_in_pipeline = False
    scatters = "--sequence-parallel" if args.sequence_parallel else "--scatter-gather-tensors-in-pipeline"
    if (args.sequence_parallel or args.scatter_gather_tensors_in_pipeline) and args.seq_length % tp:
        raise ValueError(
            f"seq-length ({args.seq_length}) is not divisible by tensor-model-parallel-size ({tp}), "
            f"which {scatters} needs"
        )
    if args.pipeline_model_parallel_layout is not None:
        _validate_layout(args)
    else:
        _validate_virtual_pipeline(args, _layers_of_a_stage(args))
    if args.deepspeed_pipeline is not None:
        _validate_deepspeed_pipeline(args)


def _validate_deepspeed_pipeline(args: argparse.Namespace) -> None:
    if args.pipeline_model_parallel_size == 1:
        args.deepspeed_pipeline = None
        return
    if args.tensor_model_parallel_size == 1:
        raise ValueError(
            "--deepspeed-pipeline needs --tensor-model-parallel-size > 1: what a stage hands over goes in "
            "parts, one from each tensor rank"
        )
    if args.virtual_pipeline_model_parallel_size is not None:
        raise ValueError("--deepspeed-pipeline excludes virtual stages, which DeepSpeed's engine has not")
    if args.sequence_parallel or args.scatter_gather_tensors_in_pipeline:
        raise ValueError(
            "--deepspeed-pipeline excludes --sequence-parallel and --scatter-gather-tensors-in-pipeline: "
            "its tensor ranks each send a part anyway"
        )


def _validate_layout(args: argparse.Namespace) -> None:
    """Sets `virtual_pipeline_model_parallel_size`; megatron.core checks the layers."""
    repeated = re.compile(r"\(([^()]*)\)\*(\d+)")
    layout = repeated.sub(lambda part: part[1] * int(part[2]), args.pipeline_model_parallel_layout)
    stages = layout.count("|") + 1
    pp = args.pipeline_model_parallel_size
    if stages % pp:
        raise ValueError(
            f"{stages} stages of pipeline-model-parallel-layout are not divisible by "
            f"pipeline-model-parallel-size ({pp})"
        )
    args.virtual_pipeline_model_parallel_size = stages // pp if stages > pp else None


def _layers_of_a_stage(args: argparse.Namespace) -> int:
    """Of one that neither --decoder-first-pipeline-num-layers nor --decoder-last-pipeline-num-layers speaks of."""
    stated = [args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers]
    unequal = [layers for layers in stated if layers is not None]
    more = args.account_for_embedding_in_pipeline_split + args.account_for_loss_in_pipeline_split
    layers, stages = args.num_layers - sum(unequal) + more, args.pipeline_model_parallel_size - len(unequal)
    if stages < 1 or layers % stages:
        counted = f" + {more} for embedding and loss" if more else ""
        counted += f" - {sum(unequal)} of the first and last stage" if unequal else ""
        size = f"pipeline-model-parallel-size ({args.pipeline_model_parallel_size})"
        size += f" - {len(unequal)}" if unequal else ""
        raise ValueError(f"num-layers ({args.num_layers}){counted} is not divisible by {size}")
    return layers // stages


def _validate_virtual_pipeline(args: argparse.Namespace, layers: int) -> None:
    """Sets `virtual_pipeline_model_parallel_size`; `layers` are those of one pipeline rank."""
    each, stages = args.num_layers_per_virtual_pipeline_stage, args.num_virtual_stages_per_pipeline_rank
    args.virtual_pipeline_model_parallel_size = None
    if each is not None and stages is not None:
        raise ValueError(
            "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank "
            "exclude each other"
        )
    if each is None and stages is None:
        return
    if args.pipeline_model_parallel_size == 1:
        raise ValueError("virtual pipeline stages need --pipeline-model-parallel-size of 2 or more")
    count, what = (each, "per virtual stage") if stages is None else (stages, "virtual stages")
    if count < 1 or layers % count:
        raise ValueError(f"{layers} layers a pipeline rank are not divisible by {count} ({what})")
    size = layers // each if stages is None else stages
    args.virtual_pipeline_model_parallel_size = size if size > 1 else None


def _validate_model(args: argparse.Namespace) -> None:
    tp, heads = args.tensor_model_parallel_size, args.num_attention_heads
    if args.kv_channels is None:
        if args.hidden_size % heads:
            raise ValueError(
                f"hidden-size ({args.hidden_size}) is not divisible by num-attention-heads ({heads})"
            )
        args.kv_channels = args.hidden_size // heads
    if heads % tp:
        raise ValueError(
            f"num-attention-heads ({heads}) is not divisible by tensor-model-parallel-size ({tp})"
        )
    args.num_query_groups = args.num_query_groups if args.group_query_attention else heads
    if heads % args.num_query_groups:
        raise ValueError(
            f"num-attention-heads ({heads}) is not divisible by num-query-groups ({args.num_query_groups})"
        )
    if args.num_query_groups % tp:
        raise ValueError(
            f"num-query-groups ({args.num_query_groups}) is not divisible by "
            f"tensor-model-parallel-size ({tp})"
        )
    if args.ffn_hidden_size is None:
        # SwiGLU has three matrices instead of two; a multiple of 64 as in Megatron-LM.
        swiglu = int(4 * args.hidden_size * 2 / 3 / 64) * 64
        args.ffn_hidden_size = swiglu if args.swiglu else 4 * args.hidden_size
    if args.max_position_embeddings is None:
        args.max_position_embeddings = args.seq_length
    if args.max_position_embeddings < args.seq_length:
        raise ValueError(
            f"max-position-embeddings ({args.max_position_embeddings}) is less than "
            f"seq-length ({args.seq_length})"
        )
    multiple = args.make_vocab_size_divisible_by * tp
    args.padded_vocab_size = -(-args.vocab_size // multiple) * multiple


def _validate_experts(args: argparse.Namespace) -> None:
    experts, topk = args.num_experts, args.moe_router_topk
    tp, pp, ep = (
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.expert_model_parallel_size,
    )
    if args.expert_tensor_parallel_size is None:
        args.expert_tensor_parallel_size = tp
    if experts is None:
        if ep > 1 or args.moe_grouped_gemm:
            raise ValueError("--expert-model-parallel-size > 1 and --moe-grouped-gemm need --num-experts")
        return
    if args.moe_ffn_hidden_size is None:
        args.moe_ffn_hidden_size = args.ffn_hidden_size
    etp = args.expert_tensor_parallel_size
    if experts % ep:
        raise ValueError(f"num-experts ({experts}) is not divisible by expert-model-parallel-size ({ep})")
    if not 1 <= topk <= experts:
        raise ValueError(f"moe-router-topk ({topk}) is not between 1 and num-experts ({experts})")
    if args.world_size % (etp * ep * pp):
        raise ValueError(
            f"world size ({args.world_size}) is not divisible by expert-tensor-parallel-size ({etp}) * "
            f"expert-model-parallel-size ({ep}) * pipeline-model-parallel-size ({pp}) = {etp * ep * pp}"
        )
    if args.moe_ffn_hidden_size % etp:
        raise ValueError(
            f"moe-ffn-hidden-size ({args.moe_ffn_hidden_size}) is not divisible by "
            f"expert-tensor-parallel-size ({etp})"
        )
    if tp > 1 and not args.sequence_parallel:
        raise ValueError("--num-experts with --tensor-model-parallel-size > 1 needs --sequence-parallel")
    if args.moe_grouped_gemm and args.transformer_impl != "transformer_engine":
        raise ValueError("--moe-grouped-gemm needs --transformer-impl transformer_engine")
    if (args.moe_router_fusion or args.moe_permute_fusion) and args.transformer_impl != "transformer_engine":
        raise ValueError(
            "--moe-router-fusion and --moe-permute-fusion need --transformer-impl transformer_engine"
        )
    if isinstance(args.moe_layer_freq, list) and len(args.moe_layer_freq) != args.num_layers:
        raise ValueError(
            f"moe-layer-freq tells of {len(args.moe_layer_freq)} layers, num-layers is {args.num_layers}"
        )
    _validate_router(args)
    _validate_expert_biases(args)
    _validate_expert_overlap(args)


def _validate_router(args: argparse.Namespace) -> None:
    sinkhorn = args.moe_router_load_balancing_type == "sinkhorn"
    if args.moe_router_topk == 1 and not (sinkhorn or args.moe_router_pre_softmax):
        raise ValueError(
            "--moe-router-topk 1 needs --moe-router-pre-softmax: a softmax over one expert is always 1"
        )
    if sinkhorn and args.moe_aux_loss_coeff:
        raise ValueError("--moe-router-load-balancing-type sinkhorn has no auxiliary loss")


def _validate_expert_biases(args: argparse.Namespace) -> None:
    if not args.add_bias_linear:
        return
    if args.expert_tensor_parallel_size > 1:
        raise ValueError(
            f"expert-tensor-parallel-size ({args.expert_tensor_parallel_size}) > 1 needs --disable-bias-linear"
        )
    if args.bias_gelu_fusion and not (args.swiglu or args.squared_relu):
        raise ValueError("--num-experts needs --disable-bias-linear or --no-bias-gelu-fusion")


def _validate_expert_overlap(args: argparse.Namespace) -> None:
    if args.delay_wgrad_compute and args.transformer_impl != "transformer_engine":
        raise ValueError("--delay-wgrad-compute needs --transformer-impl transformer_engine")
    if args.delay_wgrad_compute and not args.overlap_moe_expert_parallel_comm:
        raise ValueError("--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm")
    if not args.overlap_moe_expert_parallel_comm:
        return
    if args.expert_model_parallel_size == 1 or args.moe_token_dispatcher_type != "alltoall":
        raise ValueError(
            "--overlap-moe-expert-parallel-comm needs --expert-model-parallel-size of 2 or more "
            f"({args.expert_model_parallel_size}) and --moe-token-dispatcher-type alltoall"
        )
    if args.pipeline_model_parallel_size > 1 and args.virtual_pipeline_model_parallel_size is None:
        raise ValueError(
            "--overlap-moe-expert-parallel-comm with --pipeline-model-parallel-size > 1 needs virtual stages"
        )
    if args.recompute_granularity == "full" or args.use_megatron_fsdp:
        raise ValueError(
            "--overlap-moe-expert-parallel-comm has neither --recompute-granularity full nor --use-megatron-fsdp"
        )


def _validate_batch(args: argparse.Namespace) -> None:
    micro, dp = args.micro_batch_size, args.data_parallel_size
    if args.global_batch_size is None:
        args.global_batch_size = micro * dp
    if args.global_batch_size % (micro * dp):
        raise ValueError(
            f"global-batch-size ({args.global_batch_size}) is not divisible by micro-batch-size ({micro}) * "
            f"data-parallel size ({dp})"
        )
    args.num_microbatches = args.global_batch_size // (micro * dp)
    pp, group = args.pipeline_model_parallel_size, args.microbatch_group_size_per_virtual_pipeline_stage
    if group is not None and group < pp:
        raise ValueError(
            f"microbatch-group-size-per-virtual-pipeline-stage ({group}) is less than "
            f"pipeline-model-parallel-size ({pp})"
        )
    if args.virtual_pipeline_model_parallel_size and group is None and args.num_microbatches % pp:
        raise ValueError(
            f"number of micro-batches ({args.num_microbatches}) is not divisible by "
            f"pipeline-model-parallel-size ({pp}), which virtual pipeline stages need"
        )


def _validate_recomputation(args: argparse.Namespace) -> None:
    if args.recompute_granularity == "full" and args.recompute_method is None:
        raise ValueError("--recompute-granularity full needs --recompute-method")
    if args.recompute_granularity != "full" and args.recompute_method is not None:
        raise ValueError("--recompute-method needs --recompute-granularity full")
    if args.recompute_method is not None and args.recompute_num_layers is None:
        raise ValueError("--recompute-method needs --recompute-num-layers")
