"""Small tensors compute on the virtual device what they compute on the CPU; nothing reads stale."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (Path(__file__).parent / "values_program.py").read_text()


@pytest.mark.parametrize(
    "groups",
    [
        ["arithmetic", "comparison", "logical", "bitwise", "scalar"],
        ["unary", "cast", "creation"],
        ["reduction", "indexing", "foreach", "idiom"],
        ["meeting"],
    ],
    ids=lambda groups: "-".join(groups),
)
def test_small_tensors_compute_as_on_the_cpu(emulate: Callable[..., Any], groups: list[str]) -> None:
    program = f"import values_program\nresult = values_program.failures({groups!r})"
    assert emulate(program, files={"values_program.py": PROGRAM}).result == {}


def test_uncomputed_results_read_as_zero_and_never_as_infinity(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.rand(64, 1024, device="cuda")      # nobody computes random numbers
        loss = -torch.log(torch.softmax(x @ x.t(), -1)).mean()
        inverse = 1 / loss
        result = [loss.item(), inverse.item(), torch.isnan(loss).item(), torch.isinf(inverse).any().item(),
                  torch.isfinite(loss).item(), torch.isfinite(x).all().item()]
        """
    )
    assert run.result == [0.0, 0.0, False, False, True, True]


def test_distributions_find_their_uncomputed_parameters_valid(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import ctypes, torch
        ctypes.CDLL(None).maya_observe_operators(1)  # all() and any() of one element are copies
        result = []
        for rows in (1, 2):
            scores = torch.rand(rows, 64, device="cuda") @ torch.rand(64, 1, device="cuda")
            result += [torch.distributions.Normal(scores, scores.exp()).rsample().sum().item()]
            positive = scores > 0
            result += [positive.all().item(), positive.any().item(), (~positive.any()).item()]
            result += [positive.clone().sum().item()]
        """
    )
    assert run.result == [0, True, False, True, 0] * 2


def test_one_of_elements_that_nobody_computed_is_unique(emulate: Callable[..., Any]) -> None:
    """None, as zeros for a size would have it, is what no script expects: it indexes an empty tensor."""
    run = emulate(
        """
        import torch
        x = torch.randint(0, 9, (4096,), device="cuda")
        found, places, counts = x.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(found), device="cuda").index_add(0, places, torch.ones(4096, device="cuda"))
        result = [list(t.shape) for t in (found, places, counts, sums, x.unique(), x[:0].unique())]
        """
    )
    assert run.result == [[1], [4096], [1], [1], [1], [0]]


def test_reused_memory_does_not_show_its_former_values(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        result = []
        for make in (
            lambda: torch.rand(128, device="cuda"),
            lambda: torch.nn.functional.dropout(torch.rand(128, device="cuda"), 0.5),
            lambda: torch.rand(128, 512, device="cuda").sum(1),
            lambda: torch.rand(8, 16, 64, device="cuda").norm(dim=-1).flatten(),
            lambda: torch.nn.functional.layer_norm(torch.rand(2, 64, device="cuda"), (64,)).flatten(),
            lambda: (torch.rand(128, 64, device="cuda") @ torch.rand(64, 1, device="cuda")).flatten(),
            lambda: torch.randperm(128, device="cuda").float(),
            lambda: torch.nn.functional.cross_entropy(
                torch.rand(128, 9, device="cuda"), torch.zeros(128).long().cuda(), reduction="none"),
        ):
            stale = [torch.full((n,), torch.nan, device="cuda") for n in (1, 128, 1, 128, 128, 1024, 1024)]
            del stale
            made = make()
            result.append(made.cpu().isfinite().all().item())
        """
    )
    assert run.result == [True] * 8


def test_batches_of_integers_reach_the_device(emulate: Callable[..., Any]) -> None:
    """Of up to 1 MiB: masks of documents and losses follow from them. Floating-point numbers do not."""
    run = emulate(
        """
        import torch
        tokens = torch.arange(1 << 17) * 7919 % 50_000
        batches = [tokens, tokens.int(), tokens % 3 == 0, -tokens]
        result = [torch.equal((batch.cuda() % 5 == 2).cpu(), batch % 5 == 2) for batch in batches]
        numbers = (tokens[: 1 << 16] + 1.5).cuda()
        result.append(numbers.cpu().any().item())
        """
    )
    assert run.result == [True, True, True, True, False]


def test_what_unknown_elements_are_added_to_does_not_show_its_former_values(
    emulate: Callable[..., Any],
) -> None:
    run = emulate(
        """
        import torch
        at, unknown = torch.arange(8, device="cuda") % 4, torch.rand(8, device="cuda")
        result = []
        for add in (
            lambda x: x.index_add_(0, at, unknown),
            lambda x: x.scatter_add_(0, at, unknown),
            lambda x: x.index_put_((at,), unknown, accumulate=True),
            lambda x: x.scatter_reduce_(0, at, unknown, "amax"),
            lambda x: x.scatter_add_(0, (unknown * 4).long(), torch.ones(8, device="cuda")),
        ):
            result.append(add(torch.ones(4, device="cuda")).tolist())
        """
    )
    assert run.result == [[0.0] * 4] * 5


def test_large_tensors_are_recorded_only(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.ones(1 << 20, device="cuda")
        result = [x.sum().item(), x[:16].sum().item(), (x[:16].fill_(2)).sum().item()]
        """
    )
    assert run.result == [0.0, 0.0, 32.0]


@pytest.mark.parametrize("dtype, value", [("uint8", 255), ("int16", -3), ("int64", 1 << 40)])
def test_large_fills_are_of_one_value(emulate: Callable[..., Any], dtype: str, value: int) -> None:
    run = emulate(
        f"""
        import torch
        x = torch.zeros(99_999, dtype=torch.{dtype}, device="cuda")
        x[1:-1].fill_({value})
        every_other = torch.zeros(199_998, dtype=torch.{dtype}, device="cuda")
        every_other[::2] = {value}
        result = [x.unique().tolist(), x.cpu()[[0, 1, 99_997, 99_998]].tolist(), every_other.cpu()[-2:].tolist()]
        """
    )
    assert run.result == [sorted([0, value]), [0, value, value, 0], [value, 0]]


def test_copies_carry_what_is_known(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        source = torch.arange(1000, dtype=torch.int32).cuda()
        copied = torch.empty_like(source).copy_(source)
        pinned = copied[::2].contiguous().cpu()
        result = [int(copied[-1]), int(pinned[-1]), torch.zeros(4, dtype=torch.bool, device="cuda").any().item()]
        """
    )
    assert run.result == [999, 998, False]


def test_large_copies_on_the_host_read_as_zeros_and_take_no_memory(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import resource, torch
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        weights = torch.randn(1 << 31, dtype=torch.bfloat16, device="cuda")
        before = peak()
        copy = weights.cpu()
        grown = peak() - before
        touched = torch.ones((1 << 22) + 3)[1:]  # begins and ends within a page
        touched.copy_(torch.randn((1 << 22) + 2, device="cuda"))
        result = [copy[::4096].abs().max().item(), grown < 2**30, touched.abs().max().item()]
        """
    )
    assert run.result == [0.0, True, 0.0]


def test_zeros_on_the_device_take_no_memory_when_they_are_overwritten(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import resource, torch
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        parameters = [torch.nn.Parameter(torch.randn(1 << 20, device="cuda")) for _ in range(256)]
        optimizer = torch.optim.Adam(parameters)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        before = peak()
        optimizer.step()
        grown = peak() - before
        counts = torch.arange(100_003, dtype=torch.int32, device="cuda")
        counts[1:-1] += 1  # an integer range that begins and ends within a page
        counts[1:-1] = torch.randn(100_001, device="cuda").to(torch.int32)
        result = [grown < 2**28, counts[0].item(), counts[-1].item(), int(counts[1:-1].max())]
        """
    )
    assert run.result == [True, 0, 100_002, 0]


def test_gradient_scaler_finds_no_infinity_in_uncomputed_gradients(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.rand(32, 64, device="cuda")).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        result = [scaler.get_scale(), loss.item()]
        """
    )
    assert run.result == [65536.0, 0.0]


def test_triton_kernel_overwrites_what_was_known(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch

        @torch.compile
        def fused(x, out):
            out.copy_(torch.nn.functional.gelu(x * 2 + 1))

        counter = torch.full((128,), 7, device="cuda")
        out = torch.full((128,), float("nan"), device="cuda")
        neighbour = torch.full((128,), 3.0, device="cuda")
        fused(torch.rand(128, device="cuda"), out)
        finite = [out.isfinite().all().item(), out.cpu().isfinite().all().item()]
        result = [*finite, int(counter.sum()), neighbour.sum().item()]
        """,
        variables={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    assert run.result == [True, True, 7 * 128, 384.0]


def test_what_uncomputed_values_pick_is_balanced(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        result = []
        for tokens, experts, k in ((64, 4, 1), (2048, 8, 2), (2048, 60, 4), (512, 256, 8), (64, 8, 8)):
            logits = torch.rand(tokens, 32, device="cuda") @ torch.rand(32, experts, device="cuda")
            _, picks = logits.topk(k, dim=1)
            _, by_sort = logits.sort(dim=1, descending=True)
            distinct = [all(len(set(row)) == k for row in some[:, :k].tolist()) for some in (picks, by_sort)]
            loads = [some.flatten().bincount(minlength=experts) for some in (picks, by_sort[:, :k].contiguous())]
            loads += [some.bincount(minlength=experts) for some in (logits.argmax(1), logits.max(1).indices)]
            result.append(distinct + [int(load.max() - load.min()) for load in loads])
        """
    )
    assert run.result[0] == [True, True, 0, 0, 0, 0]
    for distinct, by_sort_distinct, by_topk, by_sort, *by_one in run.result:
        assert distinct and by_sort_distinct
        assert by_topk <= 1 and max(by_one) <= 1
        assert by_sort <= 8  # the last rows do not go round whole
    assert len(run.trace.remarks) == 1 and "balanced" in run.trace.remarks[0]


def test_megatrons_router_is_balanced_in_as_many_rounds_as_by_its_first_weights(
    emulate: Callable[..., Any],
) -> None:
    run = emulate(
        """
        import torch
        from unittest.mock import patch
        from megatron.core.transformer.moe.moe_utils import sinkhorn
        def rounds(scores):
            with patch.object(torch, "mean", wraps=torch.mean) as change:  # asked for once a round
                share = sinkhorn(scores.float())
            return change.call_count, share
        result = []
        for tokens, hidden, experts in ((2048, 512, 4), (1024, 512, 8), (512, 4096, 16)):
            torch.manual_seed(0)
            weight = torch.randn(experts, hidden) * 0.02
            x = torch.randn(tokens, hidden) * 0.74**0.5 + torch.randn(hidden) * 0.26**0.5
            expected, _ = rounds(x @ weight.T)
            found, share = rounds(torch.rand(tokens, hidden, device="cuda") @ weight.cuda().T)
            loads = share.topk(1, dim=1).indices.flatten().bincount(minlength=experts)
            result.append((expected, found, int(loads.max() - loads.min())))
        """
    )
    assert min(expected for expected, _, _ in run.result) > 2
    for expected, found, difference in run.result:
        assert abs(found - expected) <= 1
        assert difference == 0
    assert any("router's scores" in remark for remark in run.trace.remarks)


def test_products_that_are_no_routers_stay_uncomputed(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        def random(*shape):
            return torch.rand(*shape, device="cuda")
        products = [
            random(64, 512) @ random(16, 512).T,      # few rows
            random(1024, 64) @ random(16, 64).T,      # a narrow layer
            random(1024, 512) @ random(1, 512).T,     # one column
            random(8192, 512) @ random(8, 512).T,     # more than 64 KiB
            random(1024, 512) @ random(512, 8),       # a weight's or an input's gradient
        ]
        result = [product.count_nonzero().item() for product in products]
        """
    )
    assert run.result == [0] * 5


def test_what_is_large_and_follows_from_scores_alone_is_forgotten(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        scores = torch.rand(1024, 512, device="cuda") @ torch.rand(8, 512, device="cuda").T
        larger = scores.flatten()[:, None] > scores.flatten()  # of any two
        result = [scores.count_nonzero().item() > 0, larger.any().item()]
        """
    )
    assert run.result == [True, False]
    assert not run.trace.uncovered


# Of 4,096 tokens among 24 experts: everything larger than 64 KiB.
ROUTING = """
import torch
from torch.nn.functional import one_hot

TOKENS, EXPERTS, TOP = 4096, 24, 3

def counted(picks):  # histc of integers is the device's alone
    return torch.histc(picks if picks.is_cuda else picks.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).long()

def routed(picks):
    scores = torch.zeros(TOKENS, EXPERTS, device=picks.device)
    map = torch.zeros_like(scores).int().scatter(1, picks, 1).bool()
    yield "map", map
    yield "counts", map.sum(0)
    yield "float counts", map.float().sum(0)
    yield "share", map.float().mean(0)
    yield "by expert", [torch.where(picks == expert)[0] for expert in range(3)]
    yield "expert's tokens", torch.arange(TOKENS, device=picks.device)[(picks == 5).any(-1)]
    yield "one hot", one_hot(picks, EXPERTS).sum(1)
    yield "permuted one hot", one_hot(picks, EXPERTS).permute(2, 1, 0).contiguous()
    yield "hit", one_hot(picks, EXPERTS).sum((0, 1)).greater(0).nonzero()
    tokens = torch.arange(TOKENS, device=picks.device).expand(EXPERTS, -1)
    yield "masked select", tokens.masked_select(map.T.contiguous())
    yield "nonzero", map.nonzero()
    yield "bincount", picks.flatten().bincount(minlength=EXPERTS)
    yield "histc", counted(picks.flatten())
    yield "histc of floats", torch.histc(picks.flatten().float(), bins=EXPERTS, min=0, max=EXPERTS)
    yield "argsort", picks.flatten().argsort(stable=True)
    yield "few argsorted", picks.flatten()[:3000].argsort(stable=True)
    yield "sort", picks.flatten().int().sort(descending=True).values
    yield "place in expert", map.int().cumsum(0)
    yield "within capacity", map & (map.int().cumsum(0) <= 400)
    yield "offsets", map.sum(0).cumsum(0)
    yield "chosen", picks.gather(1, torch.zeros_like(picks[:, :1]))
    yield "both", torch.cat([map, map])
    yield "index put", torch.zeros(TOKENS, EXPERTS, device=picks.device).index_put(
        (torch.arange(TOKENS, device=picks.device).unsqueeze(1), picks), torch.ones(1, device=picks.device)).bool()
    yield "copy", map.clone().flip(0)
    yield "added up", torch.zeros(EXPERTS, device=picks.device).long().scatter_add(
        0, picks.flatten(), torch.ones_like(picks.flatten()))
"""


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_follows_from_picks_computes_at_any_size_in_use(
    emulate: Callable[..., Any], deterministic: bool
) -> None:
    run = emulate(
        f"""
        import torch
        from routing import EXPERTS, TOKENS, TOP, routed
        torch.use_deterministic_algorithms({deterministic}, warn_only=True)
        logits = torch.rand(TOKENS, 32, device="cuda") @ torch.rand(32, EXPERTS, device="cuda")
        picks = logits.topk(TOP, dim=1).indices
        def same(a, b):
            return all(map(same, a, b)) if isinstance(a, list) else torch.equal(a.cpu(), b)
        result = [name for (name, found), (_, expected) in zip(routed(picks), routed(picks.cpu()))
                  if not same(found, expected)]
        """,
        files={"routing.py": ROUTING},
    )
    assert run.result == []
    assert not run.trace.uncovered


def test_known_values_are_ranked(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        numbers = (torch.arange(96) * 37 % 97).float().reshape(4, 24)
        result = []
        for largest in (True, False):
            for dim in (0, 1):
                found, expected = (x.topk(3, dim=dim, largest=largest) for x in (numbers.cuda(), numbers))
                result += [torch.equal(found.values.cpu(), expected.values)]
                result += [torch.equal(found.indices.cpu(), expected.indices)]
        found, expected = (x.sort(descending=True).indices for x in (numbers.cuda(), numbers))
        result += [torch.equal(found.cpu(), expected)]
        """
    )
    assert run.result == [True] * 9
    assert run.trace.remarks == ()


def test_picks_that_the_host_never_reads_are_not_worth_a_note(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.rand(512, 64, device="cuda", requires_grad=True)
        largest, _ = x.max(-1)
        (x - largest.unsqueeze(-1)).sum().backward()
        result = x.grad.sum().item()
        """
    )
    assert run.trace.remarks == () and run.result == 0.0


def test_a_map_too_large_to_be_stored_is_counted_and_its_entries_are_told_as_lost(
    emulate: Callable[..., Any],
) -> None:
    run = emulate(
        """
        import torch
        picks = (torch.rand(1 << 15, 8, device="cuda") @ torch.rand(8, 64, device="cuda")).argmax(1)
        map = picks.unsqueeze(1) == torch.arange(64, device="cuda")
        result = [map.sum(0).unique().tolist(), len(map.nonzero())]
        """
    )
    assert run.result == [[512], 1 << 15]
    assert "what is kept of 2097152 elements" in run.trace.uncovered[0]
    assert any("taken to be balanced" in remark for remark in run.trace.remarks)


REPEATED_ORDER = """
import torch
patches = torch.rand(64, 196, 512, device="cuda")
order = torch.rand(64, 196, device="cuda").argsort(1)
index = order.unsqueeze(-1).repeat(1, 1, 512)  # as an autoencoder's kept patches, for each channel
"""


def test_numbers_moved_by_positions_too_many_to_be_stored_lose_nothing(emulate: Callable[..., Any]) -> None:
    run = emulate(
        REPEATED_ORDER
        + """
moved = [patches.gather(1, index), patches.scatter(1, index, patches),
         torch.zeros_like(patches).scatter_add(1, index, patches), torch.where(index < 49, patches, 0)]
result = [each.sum().item() for each in moved]
"""
    )
    assert run.result == [0, 0, 0, 0]
    assert run.trace.uncovered == ()


@pytest.mark.parametrize(
    "lost",
    [
        "torch.arange(196, device='cuda').view(1, 196, 1).expand(64, 196, 512).gather(1, index)",
        "torch.zeros(64, 196, 512, device='cuda').bool().scatter(1, index, True)",
        "index.cumsum(1)",
        "index.flatten().bincount()",
    ],
)
def test_integers_that_follow_from_positions_too_many_to_be_stored_are_told_as_lost(
    emulate: Callable[..., Any], lost: str
) -> None:
    assert emulate(REPEATED_ORDER + f"result = ({lost}).sum().item()").trace.uncovered != ()


def test_rows_of_numbers_that_are_too_many_to_follow_are_not_worth_telling(
    emulate: Callable[..., Any],
) -> None:
    run = emulate(
        """
        import torch
        picks = (torch.rand(1 << 15, 8, device="cuda") @ torch.rand(8, 64, device="cuda")).argmax(1)
        biases = torch.zeros(64, 1024, device="cuda")
        hidden = torch.rand(1 << 15, 256, device="cuda").bfloat16()
        hidden[:, 0].view(torch.int16)[0] = 1  # as what is left of a tensor that was there before
        result = [biases[picks].sum().item(), hidden[picks].sum().item()]
        """
    )
    assert run.result == [0, 0]
    assert run.trace.uncovered == ()


def test_parts_that_fsdp_splits_into_hold_what_was_gathered_and_nothing_older(
    emulate: Callable[..., Any],
) -> None:
    run = emulate(
        """
        import torch
        outs = [torch.full((3, n), 7, device="cuda") for n in (4, 70, 6000)]  # what had their memory before
        gathered = torch.arange(3 * 74, device="cuda").reshape(3, 74)
        torch.split_with_sizes_copy(gathered, [4, 70], dim=1, out=outs[:2])
        known = [torch.equal(out.cpu(), part.cpu()) for out, part in zip(outs, gathered.split([4, 70], dim=1))]
        gathered = torch.rand(3, 12000, device="cuda").view(torch.int64)
        torch.split_with_sizes_copy(gathered, [6000 - 70, 70], dim=1, out=[torch.empty(3, 5930, device="cuda",
                                    dtype=torch.int64), outs[1]])
        result = [known, outs[1].sum().item()]
        """
    )
    assert run.result == [[True, True], 0]


def test_large_zeros_are_no_input_of_arithmetic(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        zeros = torch.zeros(1 << 17, device="cuda")
        result = [(1 / zeros).isinf().any().item(), (1 / zeros.sum()).item(), (zeros / zeros)[:9].isnan().any().item()]
        """
    )
    assert run.result == [False, 0.0, False]


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        ("x.abs() < float('inf')", 1),
        ("x > float('inf')", 0),
        ("x.isfinite()", 1),
        ("~x.isnan()", 1),
        ("x.isnan() | x.isinf()", 0),
        ("(x > -float('inf')).clone()", 1),
        ("torch.ones(4, 1 << 19, dtype=torch.bool, device='cuda').logical_not()", 0),
        ("x > 0.5", None),  # is not known: selects all
    ],
)
def test_a_mask_of_all_numbers_that_are_finite_selects_each_that_nobody_computed(
    emulate: Callable[..., Any], asked: str, share: int | None
) -> None:
    run = emulate(
        f"""
        import torch
        x = torch.rand(4, 1 << 19, device="cuda")
        mask = {asked}
        result = [len(x[mask]), len(x.masked_select(mask)), len(mask.nonzero()),
                  mask.cpu().sum().item(), mask.any().item(), mask.any(1).tolist(), mask.all().item()]
        """
    )
    selected, summed = (n << 21 for n in (1 if share is None else share, share or 0))
    all_true = share is None or bool(share)
    assert run.result == [selected] * 3 + [summed, bool(share), [bool(share)] * 4, all_true]
    assert bool(run.trace.remarks) == (share is None)


def test_a_sampler_of_boxes_that_nobody_computed_draws_as_many_as_it_may(emulate: Callable[..., Any]) -> None:
    """As of detectors: a share of those that match, the rest of the others, joined by masks."""
    run = emulate(
        """
        import torch
        overlap = torch.rand(5000, device="cuda") * torch.rand(5000, device="cuda")
        drawn = []
        for matching, count in ((overlap >= 0.7, 128), (overlap < 0.3, 384)):
            places = torch.where(matching)[0]
            chosen = places[torch.randperm(places.numel(), device="cuda")[:count]]
            drawn.append(torch.zeros(5000, dtype=torch.uint8, device="cuda"))
            drawn[-1][chosen] = 1
        result = [len(torch.where(mask)[0]) for mask in (*drawn, drawn[0] | drawn[1])]
        """
    )
    assert run.result[:2] == [128, 384] and 384 <= run.result[2] <= 512
    assert ["taken to select all" in note for note in run.trace.remarks] == [True]


@pytest.mark.parametrize("count", [20, 3000, 100_000])
def test_a_permutation_has_each_element_once(emulate: Callable[..., Any], count: int) -> None:
    run = emulate(f"import torch\nresult = torch.randperm({count}, device='cuda').tolist()")
    assert sorted(run.result) == list(range(count))


@pytest.mark.parametrize(
    ("reads", "told"),
    [
        ("(x > 0.5).sum().item()", True),
        ("bool((x - x.mean()).abs().mean() > 1e-3)", True),  # a loop that runs until it converges
        ("(ids != -100).sum().clone().tolist()", True),
        ("x.mean().item()", False),
        ("x.isinf().any().item(), x.isfinite().all().item(), (x != x).any().item()", False),
        ("bool((~x.norm().isfinite() | (x.norm() < 0)).any())", False),  # DeepSpeed's is_invalid_grad_norm
        ("bool(x.norm() < 0)", True),
        ("torch.zeros(9, device='cuda').long().sum().item()", False),
    ],
)
def test_the_host_is_told_of_integers_that_nobody_computed(
    emulate: Callable[..., Any], reads: str, told: bool
) -> None:
    run = emulate(
        f"""
        import ctypes, torch
        ctypes.CDLL(None).maya_observe_operators(1)
        x = torch.rand(1 << 17, device="cuda")
        ids = torch.full((1 << 18,), 3).cuda()  # too many to be known
        {reads}
        """
    )
    assert [("nobody computes" in remark) for remark in run.trace.remarks] == [True] * told


def test_each_launch_of_a_graph_computes_anew(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.arange(4, device="cuda")
        host = torch.zeros(4, dtype=torch.int64).pin_memory()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x + 1).repeat(2)
            least, total = y.min(), torch.zeros((), dtype=torch.int64, device="cuda") + y.sum()
            host.copy_(x, non_blocking=True)
        result = [y.tolist()]
        for number in (3, 5):
            x.fill_(number)
            graph.replay()
            torch.cuda.synchronize()
            result.append([y.tolist(), least.item(), total.item(), host.tolist()])
        """
    )
    assert run.result == [
        [0] * 8,  # nothing runs while it is captured
        [[4] * 8, 4, 32, [3] * 4],
        [[6] * 8, 6, 48, [5] * 4],
    ]
