"""Train a GPT-like or LLaMA-like model with FSDP2: parameters, gradients and optimizer state sharded over all ranks,
or over those that tensor and pipeline parallelism leave; sequences over those of context parallelism.

torchrun --nproc-per-node 8 train.py --layers 32 --hidden 4096 --heads 32
"""

import argparse
import contextlib
import os
from collections.abc import Callable
from functools import partial

import float8
import torch
import torch.distributed as dist
from context_parallel import shared_sequences
from pipeline_parallel import Pipeline, cut, parameters_of, stages_of
from tensor_parallel import cut_up, parallelize
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# What torchrun would set, for one GPU without it.
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--hidden", type=int, default=1024)
parser.add_argument("--ffn", type=int, help="default 4 * hidden")
parser.add_argument("--heads", type=int, default=16)
parser.add_argument("--kv-heads", type=int, help="default: as many as --heads")
parser.add_argument("--llama", action="store_true", help="RMSNorm, rotary embedding and SwiGLU")
parser.add_argument("--seq", type=int, default=2048)
parser.add_argument("--vocab", type=int, default=50304)
parser.add_argument("--micro-batch-size", type=int, default=2)
parser.add_argument("--accumulation-steps", type=int, default=1, help="micro-batches an iteration")
parser.add_argument("--iterations", type=int, default=20)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--recompute", choices=["none", "selective", "full"], default="none",
                    help="each block's activations; selective keeps every other product and attention")  # fmt: skip
parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs that share each block; of --llama")
parser.add_argument("--async-tensor-parallel", action="store_true",
                    help="its collectives cut up beside products; of --compile")  # fmt: skip
parser.add_argument("--context-parallel", type=int, default=1, help="GPUs that share each sequence")
parser.add_argument("--pipeline-parallel", type=int, default=1, help="GPUs with some of the blocks each")
parser.add_argument(
    "--stages-a-rank", type=int, default=1, help="more than 1: interleaved; of --pipeline-parallel"
)
parser.add_argument("--step-by-step", action="store_true", help="interleaved as by PyTorch to 2.8")
parser.add_argument(
    "--float8",
    choices=["tensorwise", "rowwise", "delayed"],
    help="matrix products by torchao, scaled so; delayed: by Transformer Engine",
)
parser.add_argument("--reduce-dtype", choices=["float32", "bfloat16"], default="float32", help="of gradients")
parser.add_argument("--no-reshard-after-forward", action="store_true", help="ZeRO-2 instead of ZeRO-3")
parser.add_argument("--compile", action="store_true", help="each block by torch.compile")
parser.add_argument(
    "--flash-attention", action="store_true", help="FlashAttention-2, whatever PyTorch would choose"
)
parser.add_argument("--fused-cross-entropy", action="store_true", help="of the 16-bit logits, in Triton")
parser.add_argument("--unfused-norm", action="store_true", help="RMSNorm in parts, as PyTorch before 2.9")
parser.add_argument("--log-interval", type=int, default=10)


def rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [batch, seq, heads, channels]; turns [seq, channels / 2], complex."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(x.dtype)


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    """x [batch, seq, heads, channels], each head `times` times."""
    if times == 1:
        return x
    # A single head's repetition would be a view, of whose gradient PyTorch 2.11's compiler expects other strides.
    return x.unsqueeze(3).expand(-1, -1, -1, times, -1).flatten(2, 3).contiguous()


class Attention(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.channels = args.hidden // args.heads
        self.qkv = nn.Linear(args.hidden, 3 * args.hidden, bias=False)
        self.out = nn.Linear(args.hidden, args.hidden, bias=False)

    def forward(self, x: torch.Tensor, rotary: None) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, self.channels)).unbind(2)
        return self.out(attended(q, k, v))


class GroupedAttention(nn.Module):
    """Of rotary queries, several of which share a key and value; each rank of tensor parallelism has some heads."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.channels = args.hidden // args.heads
        self.queries_a_key = args.heads // args.kv_heads
        self.query = nn.Linear(args.hidden, args.hidden, bias=False)
        self.key = nn.Linear(args.hidden, args.kv_heads * self.channels, bias=False)
        self.value = nn.Linear(args.hidden, args.kv_heads * self.channels, bias=False)
        self.out = nn.Linear(args.hidden, args.hidden, bias=False)

    def forward(self, x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (-1, self.channels)) for part in parts)
        q, k = rotated(q, rotary), rotated(k, rotary)
        return self.out(attended(q, repeated(k, self.queries_a_key), repeated(v, self.queries_a_key)))


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of q, k and v [batch, seq, heads, channels]: [batch, seq, heads * channels]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Gelu(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class SwiGlu(Gelu):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__(hidden, ffn)
        self.gate = nn.Linear(hidden, ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class UnfusedRMSNorm(nn.RMSNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        eps = self.eps or torch.finfo(x.dtype).eps
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).type_as(x) * self.weight


def norm(args: argparse.Namespace) -> nn.Module:
    if not args.llama:
        return nn.LayerNorm(args.hidden)
    return (UnfusedRMSNorm if args.unfused_norm else nn.RMSNorm)(args.hidden)


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.attention_norm = norm(args)
        self.attention = (GroupedAttention if args.llama else Attention)(args)
        self.mlp_norm = norm(args)
        self.mlp = (SwiGlu if args.llama else Gelu)(args.hidden, args.ffn)

    def forward(self, x: torch.Tensor, rotary: torch.Tensor | None) -> torch.Tensor:  # [batch, seq, hidden]
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """The `blocks` of a model, with its embedding before the first and its head after the last."""

    def __init__(self, args: argparse.Namespace, blocks: range, rotary: torch.Tensor | None) -> None:
        super().__init__()
        self.rotary = rotary
        first, last = blocks.start == 0, blocks.stop == args.layers
        self.tokens = nn.Embedding(args.vocab, args.hidden) if first else nn.Identity()
        self.blocks = nn.ModuleList(Block(args) for _ in blocks)
        self.norm = norm(args) if last else nn.Identity()
        self.head = nn.Linear(args.hidden, args.vocab, bias=False) if last else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, seq] or what the block before makes of them [batch, seq, hidden]: likewise, or logits [batch,
        seq, vocab]."""
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x, self.rotary)
        return self.head(self.norm(x))


def rotary_embedding(args: argparse.Namespace, device: torch.device) -> torch.Tensor | None:
    """[seq, channels / 2], complex; a GPT gets none (and, shorter by its addition, no learned positions)."""
    if not args.llama:
        return None
    channels = args.hidden // args.heads
    rates = 500000.0 ** -(torch.arange(0, channels, 2, device=device) / channels)
    angles = torch.outer(torch.arange(args.seq, device=device), rates)
    return torch.polar(torch.ones_like(angles), angles)


class KeepEveryOther:
    """torchtitan's selective recomputation: every other matrix product and all attention is kept."""

    kept = (
        torch.ops.aten.mm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten.max.default,  # what 8-bit products are scaled by
    )

    def __init__(self) -> None:
        self.products = {False: 0, True: 0}  # by whether recomputing

    def __call__(self, context, operator, *args, **kwargs) -> CheckpointPolicy:
        if operator is torch.ops.aten.mm.default:
            self.products[context.is_recompute] += 1
        keep = operator in self.kept and not (
            operator is torch.ops.aten.mm.default and self.products[context.is_recompute] % 2 == 0
        )
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(block: nn.Module, recompute: str) -> nn.Module:
    if recompute == "none":
        return block
    contexts = {} if recompute == "full" else {"context_fn": selective_contexts}
    return checkpoint_wrapper(block, preserve_rng_state=False, **contexts)


def selective_contexts():
    return create_selective_checkpoint_contexts(KeepEveryOther())


def device_mesh(args: argparse.Namespace, device: torch.device) -> DeviceMesh:
    """Dimensions "data" and, where there are any, "pipeline" before it and "context" and "tensor" behind."""
    world, context, tensor = dist.get_world_size(), args.context_parallel, args.tensor_parallel
    pipeline = args.pipeline_parallel
    if world % (pipeline * context * tensor):
        parser.error(
            f"--pipeline-parallel {pipeline} * --context-parallel {context} * --tensor-parallel {tensor} does not "
            f"divide {world} ranks"
        )
    if args.seq % (2 * context):
        parser.error(f"--seq {args.seq} is not divisible by 2 * --context-parallel {context}")
    data = world // (pipeline * context * tensor)
    sizes = {"pipeline": pipeline, "data": data, "context": context, "tensor": tensor}
    names = tuple(name for name, size in sizes.items() if size > 1 or name == "data")
    return dist.init_device_mesh(device.type, tuple(sizes[name] for name in names), mesh_dim_names=names)


def sharded_model(
    args: argparse.Namespace,
    mesh: DeviceMesh,
    device: torch.device,
    blocks: range,
    rotary: torch.Tensor | None,
) -> GPT:
    """Those `blocks` of the model."""
    with torch.device("meta"):  # no rank ever holds the whole model
        model = GPT(args, blocks, rotary)
    if args.float8:
        float8.convert(model, args.float8)
    if args.tensor_parallel > 1:
        parallelize(model, mesh["tensor"], float8_transfers=args.float8 == "tensorwise")
        if args.async_tensor_parallel:
            cut_up(mesh["tensor"])
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, args.reduce_dtype), cast_forward_inputs=False
    )
    shard = partial(
        fully_shard,
        mesh=mesh["data", "context"]._flatten("shard") if args.context_parallel > 1 else mesh["data"],
        mp_policy=policy,
        # Of a pipeline the next micro-batch wants them again at once.
        reshard_after_forward=args.pipeline_parallel == 1 and not args.no_reshard_after_forward,
    )
    for index, block in enumerate(model.blocks):
        block = checkpointed(block, args.recompute)
        model.blocks[index] = torch.compile(block) if args.compile else block
        shard(model.blocks[index])
    shard(model)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(parameter)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.zeros_(module.bias)
    return model


def cross_entropy(args: argparse.Namespace, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over tokens; logits [batch, seq, classes], labels [batch, seq]."""
    logits, labels = logits.flatten(0, 1), labels.flatten()
    if not args.fused_cross_entropy:
        return functional.cross_entropy(logits.float(), labels)
    from fused_cross_entropy import FusedCrossEntropy

    return FusedCrossEntropy.apply(logits, labels).mean()


def parallel_contexts(
    args: argparse.Namespace,
    mesh: DeviceMesh,
    tokens: torch.Tensor,
    labels: torch.Tensor,
    rotary: torch.Tensor | None,
) -> contextlib.ExitStack:
    """What forward and backward pass run in."""
    contexts = contextlib.ExitStack()
    if args.tensor_parallel > 1:
        contexts.enter_context(loss_parallel())
    if args.context_parallel > 1:
        contexts.enter_context(shared_sequences(mesh["context"], tokens, labels, rotary))
    return contexts


def train_step(
    args: argparse.Namespace,
    mesh: DeviceMesh,
    parts: list[GPT],
    pipeline: Pipeline | None,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> torch.Tensor | None:
    """The loss, of a pipeline's last stage alone."""
    parameters = parameters_of(parts)
    if pipeline is None:
        loss = forward_backward(args, mesh, parts[0], generator)
        nn.utils.clip_grad_norm_(parameters, 1.0)
    else:
        tokens, labels = next_batch(args, generator, parameters[0].device, args.accumulation_steps)
        with parallel_contexts(args, mesh, tokens, labels, parts[0].rotary):
            loss = pipeline.step(tokens, labels)
        pipeline.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    if args.float8 == "tensorwise":
        for part in parts:
            float8.scale_weights(part)
    optimizer.zero_grad()
    return loss


def forward_backward(
    args: argparse.Namespace, mesh: DeviceMesh, model: GPT, generator: torch.Generator
) -> torch.Tensor:
    device = next(model.parameters()).device
    for _ in range(args.accumulation_steps):
        tokens, labels = next_batch(args, generator, device)
        with parallel_contexts(args, mesh, tokens, labels, model.rotary):
            with float8.products(args.float8):
                logits = model(tokens)
            loss = cross_entropy(args, logits, labels)
            (loss / args.accumulation_steps).backward()
    return loss


def next_batch(
    args: argparse.Namespace, generator: torch.Generator, device: torch.device, micro_batches: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, each [sequences, seq]."""
    sequences = args.micro_batch_size * micro_batches
    batch = torch.randint(args.vocab, (sequences, args.seq + 1), generator=generator).to(device)
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def check(args: argparse.Namespace) -> None:
    if not args.llama and (args.tensor_parallel > 1 or args.kv_heads != args.heads):
        parser.error("--tensor-parallel and --kv-heads are for a --llama")
    if args.kv_heads % args.tensor_parallel:
        parser.error(
            f"--kv-heads {args.kv_heads} is not divisible by --tensor-parallel {args.tensor_parallel}"
        )
    stages = args.pipeline_parallel * args.stages_a_rank
    if not 1 <= stages <= args.layers or (args.pipeline_parallel == 1 and stages > 1):
        parser.error(
            f"--pipeline-parallel {args.pipeline_parallel} * --stages-a-rank {args.stages_a_rank} = {stages} stages of "
            f"{args.layers} layers"
        )
    if args.float8 == "delayed" and (args.tensor_parallel > 1 or args.pipeline_parallel > 1):
        parser.error("--float8 delayed is for neither --tensor-parallel nor --pipeline-parallel")
    if args.async_tensor_parallel and not (args.compile and args.tensor_parallel > 1):
        parser.error("--async-tensor-parallel is for --compile with --tensor-parallel")


def joined() -> torch.device:
    """This rank's device, in the process group of all."""
    for name, value in ONE_RANK.items():
        os.environ.setdefault(name, value)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def main() -> None:
    args = parser.parse_args()
    args.ffn = args.ffn or 4 * args.hidden
    args.kv_heads = args.kv_heads or args.heads
    check(args)
    device = joined()
    mesh = device_mesh(args, device)
    rotary = rotary_embedding(args, device)
    parts = [sharded_model(args, mesh, device, blocks, rotary) for blocks in blocks_of(args, mesh)]
    pipeline = pipeline_of(args, mesh, device, parts) if args.pipeline_parallel > 1 else None
    optimizer = torch.optim.AdamW(
        parameters_of(parts), lr=args.lr, betas=(0.9, 0.95), fused=device.type == "cuda"
    )
    generator = torch.Generator().manual_seed(mesh.get_local_rank("data"))
    step = partial(train_step, args, mesh, parts, pipeline, optimizer, generator)
    attention = sdpa_kernel(SDPBackend.FLASH_ATTENTION) if args.flash_attention else contextlib.nullcontext()
    with attention:
        train(args, step)
    dist.destroy_process_group()


def pipeline_of(
    args: argparse.Namespace, mesh: DeviceMesh, device: torch.device, parts: list[GPT]
) -> Pipeline:
    loss = partial(cross_entropy, args)
    return Pipeline(
        parts, mesh["pipeline"], device, args.accumulation_steps, loss, step_by_step=args.step_by_step
    )


def blocks_of(args: argparse.Namespace, mesh: DeviceMesh) -> list[range]:
    """Of each part of the model that this rank has."""
    if args.pipeline_parallel == 1:
        return [range(args.layers)]
    blocks = cut(args.layers, args.pipeline_parallel * args.stages_a_rank)
    return [blocks[stage] for stage in stages_of(mesh["pipeline"], args.stages_a_rank)]


def train(args: argparse.Namespace, step: Callable[[], torch.Tensor | None]) -> None:
    first_of_last_stage = dist.get_world_size() // args.pipeline_parallel * (args.pipeline_parallel - 1)
    for iteration in range(1, args.iterations + 1):
        loss = step()
        if iteration % args.log_interval == 0 and dist.get_rank() == first_of_last_stage:
            print(f"iteration {iteration}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
