"""Masks too large to be stored are computed where they are counted: the blocks of an attention."""

from collections.abc import Callable
from typing import Any

import pytest

MASKS = """
import torch

def masks(device, length=1024):
    documents = (torch.arange(length) // 300).to(device)
    lengths = torch.tensor([1000, 200]).to(device)
    return {
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q >= k) & (q - k <= 200),
        "not window": lambda b, h, q, k: ~((q >= k) & (q - k <= 200)),
        "documents": lambda b, h, q, k: (q >= k) & (documents[q] == documents[k]),
        "prefix": lambda b, h, q, k: (k < 130) | (q >= k),
        "lengths": lambda b, h, q, k: (q >= k) & (k < lengths[b]),
        "heads": lambda b, h, q, k: (q * (h + 1)) // 2 >= k,
    }
"""


@pytest.mark.parametrize("blocks", [128, (64, 256)])
def test_blocks_of_a_mask_are_those_of_the_cpu(
    emulate: Callable[..., Any], blocks: int | tuple[int, int]
) -> None:
    run = emulate(
        f"""
        import torch
        from masks import masks
        from torch.nn.attention.flex_attention import create_block_mask
        result = {{}}
        for name, mask in masks("cuda").items():
            sizes = (2, 4 if name == "heads" else None, 1024, 1024)
            found = create_block_mask(mask, *sizes, device="cuda", BLOCK_SIZE={blocks})
            expected = create_block_mask(masks("cpu")[name], *sizes, device="cpu", BLOCK_SIZE={blocks})
            parts = [(getattr(found, part), getattr(expected, part)) for part in
                     ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
                      "q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")]
            result[name] = [torch.equal(found.cpu(), expected) for found, expected in parts]
        """,
        files={"masks.py": MASKS},
    )
    assert {name: all(parts) for name, parts in run.result.items()} == dict.fromkeys(run.result, True)
    assert len(run.result) == 7
    assert run.trace.remarks == ()


def test_what_is_made_of_a_large_mask_and_counted(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        rows, columns = torch.arange(700), torch.arange(900)
        def counts(rows, columns):
            mask = (rows[:, None] * 7 - columns) % 5 < 2
            wide = mask & (columns > 100)
            other = mask.clone().t().contiguous()
            sums = rows[:, None] + columns  # integers
            selected = torch.tensor(len(torch.empty(700, 900, device=rows.device)[wide]))
            made = [mask.nonzero(), selected, mask.sum(), wide.sum(0), other.sum(1), other[10:].any(1),
                    wide[:, :50].any(), (~mask).all(1), sums.sum(), sums.amax(1), (sums.int() > 1000).sum(),
                    mask.cpu(), other[3:5].cpu()]
            return [it.cpu() for it in made]
        found, expected = counts(rows.cuda(), columns.cuda()), counts(rows, columns)
        result = [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]
        """
    )
    assert run.result == [True] * 13


def test_a_mask_of_what_is_written_later_is_of_what_was_there(emulate: Callable[..., Any]) -> None:
    """And memory that is used again is no mask any more."""
    run = emulate(
        """
        import torch
        lengths = torch.arange(400).cuda()
        mask = lengths[:, None] >= torch.arange(400).cuda()
        lengths.zero_()
        result = [mask.sum().item()]
        mask.copy_(torch.rand(400, 400, device="cuda") > 2)  # nobody computes that
        result += [mask.sum().item()]
        lengths.copy_(torch.arange(400))
        mask = lengths[:, None] >= torch.arange(400).cuda()
        torch.rand(400 * 400 // 4, device="cuda", out=mask.view(torch.float32).view(-1))
        result += [mask.sum().item()]
        """
    )
    assert run.result == [400 * 401 // 2, 0, 0]


def test_a_large_counter_is_followed_for_a_while(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        counter = torch.arange(300).cuda()[:, None] + torch.arange(300).cuda()
        result = []
        for step in range(20_000):
            counter += 1
            if step in (9, 19_999):
                result.append(counter.amax().item())
        """
    )
    assert run.result == [299 + 299 + 10, 0]


def test_a_mask_that_follows_from_unknown_values_is_not_known(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        unknown = (torch.rand(400, device="cuda") * 400).int()
        mask = (unknown[:, None] >= torch.arange(400).cuda()) | (torch.arange(400).cuda() >= 0)
        result = mask.sum().item()
        """
    )
    assert run.result == 0
    assert any("nobody computes" in note for note in run.trace.remarks)
