"""Train a GPT-like or LLaMA-like model with FSDP2: parameters, gradients and optimizer state sharded over all ranks.

torchrun --nproc-per-node 8 train.py --layers 32 --hidden 4096 --heads 32
"""

import argparse
import contextlib
import os
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
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
parser.add_argument("--reduce-dtype", choices=["float32", "bfloat16"], default="float32", help="of gradients")
parser.add_argument("--no-reshard-after-forward", action="store_true", help="ZeRO-2 instead of ZeRO-3")
parser.add_argument("--compile", action="store_true", help="each block by torch.compile")
parser.add_argument(
    "--flash-attention", action="store_true", help="FlashAttention-2, whatever PyTorch would choose"
)
parser.add_argument("--fused-cross-entropy", action="store_true", help="of the 16-bit logits, in Triton")
parser.add_argument("--log-interval", type=int, default=10)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [batch, heads, seq, channels]; cos and sin [seq, channels]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.shape = (args.heads, args.kv_heads, args.kv_heads)
        self.channels = args.hidden // args.heads
        self.qkv = nn.Linear(args.hidden, sum(self.shape) * self.channels, bias=False)
        self.out = nn.Linear(args.hidden, args.hidden, bias=False)

    def forward(self, x: torch.Tensor, rotary: torch.Tensor | None) -> torch.Tensor:
        parts = self.qkv(x).unflatten(-1, (-1, self.channels)).transpose(1, 2).split(self.shape, 1)
        q, k, v = parts  # each [batch, heads, seq, channels]
        if rotary is not None:
            cos, sin = rotary.to(x.dtype)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        grouped = self.shape[0] != self.shape[1]
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(attended.transpose(1, 2).flatten(2))


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


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        norm = nn.RMSNorm if args.llama else nn.LayerNorm
        self.attention_norm = norm(args.hidden)
        self.attention = Attention(args)
        self.mlp_norm = norm(args.hidden)
        self.mlp = (SwiGlu if args.llama else Gelu)(args.hidden, args.ffn)

    def forward(self, x: torch.Tensor, rotary: torch.Tensor | None) -> torch.Tensor:  # [batch, seq, hidden]
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(args.vocab, args.hidden)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = (nn.RMSNorm if args.llama else nn.LayerNorm)(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)

    def forward(self, tokens: torch.Tensor, rotary: torch.Tensor | None) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, rotary)
        return self.head(self.norm(x))  # [batch, seq, vocab]


def rotary_embedding(args: argparse.Namespace, device: torch.device) -> torch.Tensor | None:
    """[cos or sin, seq, channels]; a GPT gets none (and, shorter by its addition, no learned positions)."""
    if not args.llama:
        return None
    channels = args.hidden // args.heads
    rates = 500000.0 ** -(torch.arange(0, channels, 2, device=device) / channels)
    angles = torch.outer(torch.arange(args.seq, device=device), rates).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin()))


class KeepEveryOther:
    """torchtitan's selective recomputation: every other matrix product and all attention is kept."""

    kept = (
        torch.ops.aten.mm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
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


def sharded_model(args: argparse.Namespace, device: torch.device) -> GPT:
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    with torch.device("meta"):  # no rank ever holds the whole model
        model = GPT(args)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, args.reduce_dtype), cast_forward_inputs=False
    )
    shard = partial(
        fully_shard, mesh=mesh, mp_policy=policy, reshard_after_forward=not args.no_reshard_after_forward
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


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, fused: bool) -> torch.Tensor:
    """Mean over tokens; logits [tokens, classes], labels [tokens]."""
    if not fused:
        return functional.cross_entropy(logits.float(), labels)
    from fused_cross_entropy import FusedCrossEntropy

    return FusedCrossEntropy.apply(logits, labels).mean()


def train_step(
    args: argparse.Namespace,
    model: GPT,
    optimizer: torch.optim.Optimizer,
    rotary: torch.Tensor | None,
    generator: torch.Generator,
) -> torch.Tensor:
    device = next(model.parameters()).device
    for _ in range(args.accumulation_steps):
        batch = torch.randint(args.vocab, (args.micro_batch_size, args.seq + 1), generator=generator)
        batch = batch.to(device)
        logits = model(batch[:, :-1], rotary)
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), args.fused_cross_entropy)
        (loss / args.accumulation_steps).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    args = parser.parse_args()
    args.ffn = args.ffn or 4 * args.hidden
    args.kv_heads = args.kv_heads or args.heads
    for name, value in ONE_RANK.items():
        os.environ.setdefault(name, value)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    model = sharded_model(args, device)
    rotary = rotary_embedding(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=cuda)
    generator = torch.Generator().manual_seed(rank)
    attention = sdpa_kernel(SDPBackend.FLASH_ATTENTION) if args.flash_attention else contextlib.nullcontext()
    with attention:
        train(args, model, optimizer, rotary, generator)
    dist.destroy_process_group()


def train(
    args: argparse.Namespace,
    model: GPT,
    optimizer: torch.optim.Optimizer,
    rotary: torch.Tensor | None,
    generator: torch.Generator,
) -> None:
    for iteration in range(1, args.iterations + 1):
        loss = train_step(args, model, optimizer, rotary, generator)
        if iteration % args.log_interval == 0 and dist.get_rank() == 0:
            print(f"iteration {iteration}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
