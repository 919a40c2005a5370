"""Train a GPT on synthetic tokens with plain PyTorch: DDP, bf16 autocast, gradient accumulation.

torchrun --nproc-per-node 8 train.py --layers 24 --hidden 1024
python train.py                       # one GPU, no launcher
"""

import argparse
import math
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--hidden", type=int, default=768)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--vocab", type=int, default=50304, help="a multiple of 64 keeps the GEMMs aligned")
parser.add_argument("--micro-batch-size", type=int, default=8, help="sequences a GPU takes at once")
parser.add_argument("--accumulation-steps", type=int, default=1, help="micro-batches a step")
parser.add_argument("--iterations", type=int, default=20)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--weight-decay", type=float, default=0.1)
parser.add_argument("--clip-grad", type=float, default=1.0, help="0: off")
parser.add_argument("--dtype", choices=["bf16", "fp16", "fp32"], default="bf16", help="of autocast")
parser.add_argument("--fused-adam", action="store_true", help="one kernel for many parameters")
parser.add_argument("--log-interval", type=int, default=10)
parser.add_argument("--seed", type=int, default=1234)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        qkv = self.qkv(x).view(batch, seq, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, seq, hidden / heads]
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, seq, hidden))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, seq: int, vocab: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.tokens.weight  # tied, as in GPT-2
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("out.weight", "mlp.2.weight"))  # GPT-2, section 2.3
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))  # [batch, seq, vocab]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]  # biases and norms do not decay
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=args.fused_adam or None)


def main() -> None:
    args = parser.parse_args()
    if args.hidden % args.heads:
        parser.error(f"--hidden ({args.hidden}) is not a multiple of --heads ({args.heads})")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(args.seed)

    with device:  # parameters are made where they stay
        model: nn.Module = GPT(args.layers, args.hidden, args.heads, args.seq, args.vocab)
    if rank == 0:
        count = sum(p.numel() for p in model.parameters())
        print(f"{count / 1e6:.1f} M parameters, {world} ranks", flush=True)
    optimizer = make_optimizer(model, args)
    if world > 1:
        model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
    autocast = nullcontext() if args.dtype == "fp32" else torch.autocast(device.type, dtype)
    scaler = torch.amp.GradScaler(device.type, enabled=args.dtype == "fp16")
    generator = torch.Generator().manual_seed(args.seed + rank)  # every rank its own tokens

    started = time.perf_counter()
    for iteration in range(1, args.iterations + 1):
        loss = torch.zeros((), device=device)
        for step in range(args.accumulation_steps):
            batch = torch.randint(args.vocab, (args.micro_batch_size, args.seq + 1), generator=generator)
            batch = (batch.pin_memory() if cuda else batch).to(device, non_blocking=True)
            last = step == args.accumulation_steps - 1  # gradients are reduced once a step
            with nullcontext() if last or world == 1 else model.no_sync():
                with autocast:
                    micro_loss = model(batch[:, :-1], batch[:, 1:]) / args.accumulation_steps
                scaler.scale(micro_loss).backward()
            loss += micro_loss.detach()
        if args.clip_grad:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if iteration % args.log_interval == 0 and rank == 0:
            value = loss.item()  # waits for the device
            seconds = (time.perf_counter() - started) / args.log_interval
            print(f"iteration {iteration}: loss {value:.4f}, {seconds * 1e3:.1f} ms", flush=True)
            started = time.perf_counter()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
