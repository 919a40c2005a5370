"""Causal attention over a sequence that is split between ranks, the keys and values passed around a ring.

Each of n ranks has chunks r and 2n - 1 - r of 2n, so that all have equal work (Megatron-LM's context parallelism;
Ring Attention, Liu et al. 2023). While one part is computed by cuDNN, the next keys and values travel.
"""

import torch
import torch.distributed as dist

Part = tuple[slice, slice, bool]  # of the local queries, of the keys at hand, causal

WHOLE = slice(None)


def parts(rank: int, ranks: int, length: int) -> list[Part]:
    """What to compute at each step, when the keys of rank (rank - step) % ranks are at hand; `length` is local."""
    first, second = slice(0, length // 2), slice(length // 2, length)
    steps: list[Part] = [(WHOLE, WHOLE, True)]
    for step in range(1, ranks):
        # Keys of a lower rank: its first chunk is before all our queries, its second after them all.
        steps.append((WHOLE, first, False) if step <= rank else (second, WHOLE, False))
    return steps


def exchange(
    outgoing: torch.Tensor, to: int, source: int, group: dist.ProcessGroup
) -> tuple[torch.Tensor, list[dist.Work]]:
    """Starts sending `outgoing` to one rank of the group and receiving the like from another."""
    incoming = torch.empty_like(outgoing)
    transfers = [
        dist.P2POp(dist.isend, outgoing, dist.get_global_rank(group, to), group),
        dist.P2POp(dist.irecv, incoming, dist.get_global_rank(group, source), group),
    ]
    return incoming, dist.batch_isend_irecv(transfers)


def merge(
    out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor, rows: slice
) -> None:
    """Adds attention over more keys to `out` [b, h, s, d] and `lse` [b, h, s, 1], both fp32, in place."""
    old, new = lse[:, :, rows], part_lse
    total = torch.logaddexp(old, new)
    out[:, :, rows] = out[:, :, rows] * torch.exp(old - total) + part * torch.exp(new - total)
    lse[:, :, rows] = total


class RingAttention(torch.autograd.Function):
    """query [b, heads, s, d], key and value [b, key heads, s, d]: local parts; returns [b, heads, s, d]."""

    @staticmethod
    def forward(ctx, query, key, value, group, scale):
        ranks, rank = group.size(), group.rank()
        at_hand = torch.stack((key, value))
        out = lse = None
        for step, (rows, columns, causal) in enumerate(parts(rank, ranks, query.size(2))):
            if step + 1 < ranks:
                following, transfers = exchange(at_hand, (rank + 1) % ranks, (rank - 1) % ranks, group)
            k, v = at_hand[:, :, :, columns]
            part = torch.ops.aten._scaled_dot_product_cudnn_attention(
                query[:, :, rows], k, v, None, True, 0.0, causal, False, scale=scale
            )
            part_lse = part[1].view(*part[0].shape[:3], 1)
            if out is None:
                out, lse, seed, offset = part[0].float(), part_lse.clone(), part[6], part[7]
            else:
                merge(out, lse, part[0], part_lse, rows)
            if step + 1 < ranks:
                for transfer in transfers:
                    transfer.wait()
                at_hand = following
        result = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, lse, seed, offset)
        ctx.group, ctx.scale = group, scale
        return result

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, out, lse, seed, offset = ctx.saved_tensors
        group, ranks, rank = ctx.group, ctx.group.size(), ctx.group.rank()
        at_hand = torch.stack((key, value))
        dq = torch.zeros_like(query)
        dkv = torch.zeros_like(at_hand)
        returning = None
        for step, (rows, columns, causal) in enumerate(parts(rank, ranks, query.size(2))):
            if step + 1 < ranks:
                following, transfers = exchange(at_hand, (rank + 1) % ranks, (rank - 1) % ranks, group)
            k, v = at_hand[:, :, :, columns]
            q, g, o = (tensor[:, :, rows].contiguous() for tensor in (query, gradient, out))
            part_q, part_k, part_v = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                g, q, k, v, o, lse[:, :, rows].contiguous(), seed, offset, None, None, None,
                q.size(2), k.size(2), 0.0, causal, scale=ctx.scale,
            )  # fmt: skip
            dq[:, :, rows] += part_q
            if step == 0:
                dkv += torch.stack((part_k, part_v))
            else:  # to the rank whose keys these are; another computed as much for ours
                theirs = torch.zeros_like(dkv)
                theirs[:, :, :, columns] = torch.stack((part_k, part_v))
                dkv = returned(dkv, returning)
                returning = exchange(theirs, (rank - step) % ranks, (rank + step) % ranks, group)
            if step + 1 < ranks:
                for transfer in transfers:
                    transfer.wait()
                at_hand = following
        dkv = returned(dkv, returning)
        return dq, dkv[0], dkv[1], None, None


def returned(dkv: torch.Tensor, returning: tuple[torch.Tensor, list[dist.Work]] | None) -> torch.Tensor:
    """`dkv` with what another rank computed for it, once that has arrived."""
    if returning is None:
        return dkv
    incoming, transfers = returning
    for transfer in transfers:
        transfer.wait()
    return dkv + incoming
