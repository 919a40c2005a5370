"""Train a recommendation model like DLRM: embedding tables dealt out to the ranks, dense layers on all of them.

torchrun --nproc-per-node 8 train.py --rows 10000000 4000000 500000 --tables-of-each 8 --pooling 32
"""

import argparse
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel

# What torchrun would set, for one GPU without it.
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 100_000, 10_000], help="of a table")
parser.add_argument("--tables-of-each", type=int, default=8, help="tables with so many rows")
parser.add_argument("--width", type=int, default=128, help="of a table's rows")
parser.add_argument("--pooling", type=int, default=32, help="lookups a bag")
parser.add_argument(
    "--skew", type=float, default=1.05, help="exponent of a Zipf distribution over a table's rows"
)
parser.add_argument("--dense", type=int, default=13, help="dense features")
parser.add_argument(
    "--bottom", type=int, nargs="+", default=[512, 256], help="hidden layers below the interaction"
)
parser.add_argument("--top", type=int, nargs="+", default=[1024, 512], help="hidden layers above it")
parser.add_argument("--batch-size", type=int, default=2048, help="of a rank")
parser.add_argument("--iterations", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument(
    "--write-indices", type=Path, metavar="DIR", help="one batch's indices, a .npy file a table"
)
parser.add_argument("--log-interval", type=int, default=10)


def perceptron(sizes: list[int]) -> nn.Sequential:
    return nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())))


class Dense(nn.Module):
    """What every rank has: of its samples' features and pooled rows to one logit a sample."""

    def __init__(self, args: argparse.Namespace, tables: int) -> None:
        super().__init__()
        self.bottom = perceptron([args.dense, *args.bottom, args.width])
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(perceptron([args.width + pairs, *args.top]), nn.Linear(args.top[-1], 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1), persistent=False)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:  # [batch, tables, width]
        below = self.bottom(dense)
        vectors = torch.cat([below.unsqueeze(1), pooled], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        interactions = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([below, interactions], dim=1)).squeeze(1)


class Tables(nn.Module):
    """This rank's tables, each looked up for the samples of all ranks; every rank gets its samples' pooled rows."""

    def __init__(self, args: argparse.Namespace, rows: list[int]) -> None:
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        self.counts = [len(rows[owner::world]) for owner in range(world)]
        bags = (nn.EmbeddingBag(count, args.width, mode="sum", sparse=True) for count in rows[rank::world])
        self.bags = nn.ModuleList(bags)
        self.batch, self.width = args.batch_size, args.width

    def forward(self, indices: list[torch.Tensor]) -> torch.Tensor:
        """`indices` [batch of all ranks, pooling] a table of this rank; [batch, tables of all ranks, width]."""
        world, own = len(self.counts), len(self.bags)
        pooled = torch.stack([bag(each) for bag, each in zip(self.bags, indices, strict=True)])
        pooled = pooled.unflatten(1, (world, self.batch)).transpose(0, 1).flatten()  # by rank that it is for
        piece = self.batch * self.width
        if world > 1:
            sent, received = [own * piece] * world, [count * piece for count in self.counts]
            pooled = all_to_all_single_autograd(pooled, received, sent, dist.group.WORLD)
        return pooled.view(-1, self.batch, self.width).transpose(0, 1)


def batches(args: argparse.Namespace, rows: list[int], generator: np.random.Generator):
    """Dense features, this rank's tables' indices for all ranks' samples, and clicks; on the host."""
    samples = args.batch_size * dist.get_world_size()
    own = rows[dist.get_rank() :: dist.get_world_size()]
    while True:
        dense = torch.from_numpy(generator.standard_normal((args.batch_size, args.dense), dtype=np.float32))
        indices = [
            torch.from_numpy(skewed(generator, count, (samples, args.pooling), args.skew)) for count in own
        ]
        yield dense, indices, torch.from_numpy(generator.integers(0, 2, args.batch_size).astype(np.float32))


def skewed(generator: np.random.Generator, rows: int, shape: tuple[int, int], skew: float) -> np.ndarray:
    """Row k with a probability that goes as (k + 1)^-skew, about: the inverse of its integral."""
    u = generator.random(shape)
    power = 1.0 - skew
    drawn = np.expm1(np.log1p((float(rows + 1) ** power - 1.0) * u) / power)
    return np.minimum(drawn.astype(np.int64), rows - 1)


def main() -> None:
    args = parser.parse_args()
    for name, value in ONE_RANK.items():
        os.environ.setdefault(name, value)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rows = [count for count in args.rows for _ in range(args.tables_of_each)]
    if dist.get_world_size() > len(rows):
        parser.error(f"{dist.get_world_size()} ranks for {len(rows)} tables: each needs one")
    with device:
        tables, dense_layers = Tables(args, rows), Dense(args, len(rows))
    replicated = DistributedDataParallel(dense_layers, device_ids=[device.index])
    # Rows are far too many for an optimizer's state: plain SGD, of the rows that were looked up alone.
    optimizer = torch.optim.SGD([*tables.parameters(), *replicated.parameters()], lr=args.lr)
    data = batches(args, rows, np.random.default_rng(dist.get_rank()))
    if args.write_indices:
        args.write_indices.mkdir(parents=True, exist_ok=True)
        for number, indices in enumerate(next(data)[1]):
            table = dist.get_rank() + number * dist.get_world_size()
            np.save(args.write_indices / f"table-{table}.npy", indices.numpy())

    for iteration in range(1, args.iterations + 1):
        dense, indices, clicks = next(data)
        pooled = tables([each.to(device, non_blocking=True) for each in indices])
        logits = replicated(dense.to(device), pooled)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % args.log_interval == 0 and dist.get_rank() == 0:
            print(f"iteration {iteration}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
