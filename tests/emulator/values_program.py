"""Computes small tensors on the CPU and on the virtual device and tells where the two differ.

Runs under the emulator, imported by test_values.py's programs or by itself: `values_program.py [GROUP..]`."""

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NUMBERS = INTEGERS + FLOATS
ALL = [*NUMBERS, torch.bool]

Move = Callable[[Tensor], Tensor]  # to the device under test
Case = Callable[[Move], object]
cases: dict[str, Case] = {}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def case(group: str, name: str, body: Case) -> None:
    cases[f"{group}/{name}"] = body


def values(shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> Tensor:
    """Small numbers of both signs, zeros among them; exact in every dtype."""
    count = math.prod(shape)
    numbers = (torch.arange(count) * 7 + salt * 3) % 11 - (0 if dtype == torch.uint8 else 5)
    return (numbers % 2 == 0 if dtype == torch.bool else numbers).to(dtype).reshape(shape)


def layouts(dtype: torch.dtype, salt: int = 0) -> Iterator[tuple[str, Callable[[Move], Tensor]]]:
    """The same kinds of tensors, laid out on the device."""
    yield "scalar", lambda to: to(values((), dtype, salt))
    yield "empty", lambda to: to(values((0, 3), dtype, salt))
    yield "vector", lambda to: to(values((37,), dtype, salt))
    yield "matrix", lambda to: to(values((6, 5), dtype, salt))
    yield "transposed", lambda to: to(values((5, 6), dtype, salt)).t()
    yield "strided", lambda to: to(values((6, 15), dtype, salt))[:, 1::3]
    yield "broadcast", lambda to: to(values((1, 5), dtype, salt)).expand(6, 5)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=3),
}  # fmt: skip
COMPARE = {
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
LOGICAL = {
    "and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor,
}  # fmt: skip
BITWISE = {
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip


def pairs(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Move], tuple[Tensor, Tensor]]]]:
    for name, first in layouts(dtype):
        yield name, lambda to, first=first: (first(to), first(lambda t: to(t.flip(0) if t.dim() else t)))
    yield "outer", lambda to: (to(values((6, 1), dtype)), to(values((1, 5), dtype, 1)))
    yield "mixed", lambda to: (to(values((6, 5), dtype)), to(values((5, 6), dtype, 1)).t())


# (tensor, where along its first dimension, as many others) -> tensor
MEETINGS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_add": lambda x, at, y: x.index_add(0, at, y, alpha=2),
    "index_put": lambda x, at, y: x.index_put((at,), y, accumulate=True),
    "index_fill": lambda x, at, y: x.index_fill(0, at, 3),
    "scatter_add": lambda x, at, y: x.scatter_add(0, along(at, y), y),
    "scatter_fill": lambda x, at, y: x.scatter(0, along(at, y), 3, reduce="add"),
    "prod": lambda x, at, y: x.scatter_reduce(0, along(at, y), y, "prod"),
    "amax": lambda x, at, y: x.scatter_reduce(0, along(at, y), y, "amax"),
    "amin": lambda x, at, y: x.scatter_reduce(0, along(at, y), y, "amin"),
}


def along(at: Tensor, other: Tensor) -> Tensor:
    return at.view(-1, *[1] * (other.dim() - 1)).expand_as(other)


def add_binary() -> None:
    for dtype in ALL:
        for layout, pair in pairs(dtype):
            for name, op in itertools.chain(BINARY.items(), COMPARE.items()):
                if dtype == torch.bool and name in ("sub", "add_alpha"):
                    continue
                group = "comparison" if name in COMPARE else "arithmetic"
                case(group, f"{name}-{name_of(dtype)}-{layout}", lambda to, op=op, pair=pair: op(*pair(to)))
    for dtype in (torch.int64, torch.float32, torch.bool):
        for layout, pair in pairs(dtype):
            for name, op in LOGICAL.items():
                case(
                    "logical", f"{name}-{name_of(dtype)}-{layout}", lambda to, op=op, pair=pair: op(*pair(to))
                )
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        for layout, pair in pairs(dtype):
            for name, op in BITWISE.items():
                case(
                    "bitwise", f"{name}-{name_of(dtype)}-{layout}", lambda to, op=op, pair=pair: op(*pair(to))
                )


def add_scalars() -> None:
    ops: dict[str, Callable[[Tensor], Tensor]] = {
        "add": lambda x: x + 3, "radd": lambda x: 3 - x, "mul": lambda x: x * 3, "sub": lambda x: x - 2,
        "eq": lambda x: x == 2, "ne": lambda x: x != 2, "lt": lambda x: x < 2, "le": lambda x: x <= 2,
        "gt": lambda x: x > 2, "ge": lambda x: x >= 2, "truediv": lambda x: x / 4, "floordiv": lambda x: x // 3,
        "mod": lambda x: x % 3, "clamp": lambda x: x.clamp(1, 3), "clamp_min": lambda x: x.clamp(min=1),
        "clamp_max": lambda x: x.clamp(max=1), "pow2": lambda x: x**2, "pow3": lambda x: x**3,
        "mul_float": lambda x: x * 0.5, "rsub": lambda x: torch.rsub(x, 1),
    }  # fmt: skip
    for dtype in NUMBERS:
        for layout, make in layouts(dtype):
            for name, op in ops.items():
                case("scalar", f"{name}-{name_of(dtype)}-{layout}", lambda to, op=op, make=make: op(make(to)))


def add_unary() -> None:
    everywhere: dict[str, Callable[[Tensor], Tensor]] = {
        "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "not": torch.logical_not, "isnan": torch.isnan,
        "isinf": torch.isinf, "isfinite": torch.isfinite, "square": torch.square, "relu": torch.relu,
        "nonnegative_sqrt": lambda x: x.abs().sqrt(), "exp": torch.exp, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
        "reciprocal": lambda x: (x.abs() + 1).reciprocal(), "rsqrt": lambda x: (x.abs() + 1).rsqrt(),
        "log": lambda x: (x.abs() + 1).log(), "clone": torch.clone, "contiguous": lambda x: x.contiguous(),
        "flat": lambda x: x.reshape(-1),
    }  # fmt: skip
    for dtype in NUMBERS:
        for layout, make in layouts(dtype):
            for name, op in everywhere.items():
                case("unary", f"{name}-{name_of(dtype)}-{layout}", lambda to, op=op, make=make: op(make(to)))
    for dtype in FLOATS:
        for name in ("floor", "ceil", "trunc", "round", "sin", "cos", "log1p", "expm1", "log2"):
            op = getattr(torch, name)
            case(
                "unary",
                f"{name}-{name_of(dtype)}",
                lambda to, op=op, dtype=dtype: op(to(values((37,), dtype).abs() / 4)),
            )
    special = torch.tensor([0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 3e38])
    for name in ("isnan", "isinf", "isfinite", "abs", "neg", "sign"):
        op = getattr(torch, name)
        case("unary", f"{name}-special", lambda to, op=op: op(to(special)))


def add_casts() -> None:
    for source, target in itertools.product(ALL, ALL):
        for layout, make in layouts(source):
            case("cast", f"{name_of(source)}-{name_of(target)}-{layout}",
                 lambda to, make=make, target=target: make(to).to(target))  # fmt: skip
    for a, b in itertools.product((torch.int64, torch.float32, torch.bfloat16, torch.bool), repeat=2):
        case("cast", f"add-{name_of(a)}-{name_of(b)}",
             lambda to, a=a, b=b: to(values((6, 5), a)) + to(values((6, 5), b, 1)))  # fmt: skip
        case("cast", f"add-{name_of(a)}-{name_of(b)}-strided",
             lambda to, a=a, b=b: to(values((6, 5), a)) + to(values((5, 6), b, 1)).t())  # fmt: skip


def add_creation() -> None:
    for dtype in ALL:
        case("creation", f"fill-{name_of(dtype)}", lambda to, d=dtype: to(values((7, 3), d)).fill_(1))
        case(
            "creation",
            f"zeros-{name_of(dtype)}",
            lambda to, d=dtype: torch.zeros(33, dtype=d, device=device(to)),
        )
        case(
            "creation",
            f"ones-{name_of(dtype)}",
            lambda to, d=dtype: torch.ones(3, 11, dtype=d, device=device(to)),
        )
        case("creation", f"column-{name_of(dtype)}", lambda to, d=dtype: column(to(values((7, 3), d))))
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16):
        case("creation", f"arange-{name_of(dtype)}",
             lambda to, d=dtype: torch.arange(2, 40, 3, dtype=d, device=device(to)))  # fmt: skip
    case("creation", "full", lambda to: torch.full((4, 4), 2.5, device=device(to)))
    case(
        "creation",
        "eye_mask",
        lambda to: torch.arange(5, device=device(to))[:, None] >= torch.arange(5, device=device(to)),
    )


def device(to: Move) -> torch.device:
    return to(torch.zeros(1)).device


def column(matrix: Tensor) -> Tensor:
    matrix[:, 1] = 1
    return matrix


def add_reductions() -> None:
    whole: dict[str, Callable[[Tensor], object]] = {
        "sum": torch.sum, "max": torch.max, "min": torch.min, "any": torch.any, "all": torch.all,
        "argmax": torch.argmax, "argmin": torch.argmin, "amax": torch.amax, "count": torch.count_nonzero,
    }  # fmt: skip
    by_dim: dict[str, Callable[[Tensor], object]] = {
        "sum0": lambda x: x.sum(0), "sum1": lambda x: x.sum(1), "max0": lambda x: x.max(0), "max1": lambda x: x.max(1),
        "min1": lambda x: x.min(1), "amin": lambda x: x.amin(0), "any1": lambda x: x.any(1), "all0": lambda x: x.all(0),
        "keepdim": lambda x: x.sum(1, keepdim=True), "aminmax": lambda x: x.aminmax(), "sum01": lambda x: x.sum((0, 1)),
        "argmax1": lambda x: x.argmax(1),
    }  # fmt: skip
    for dtype in [*NUMBERS, torch.bool]:
        for layout, make in layouts(dtype):
            if layout == "empty":
                continue
            for name, op in whole.items():
                if dtype == torch.bool and name.startswith("arg"):
                    continue
                case(
                    "reduction",
                    f"{name}-{name_of(dtype)}-{layout}",
                    lambda to, op=op, make=make: op(make(to)),
                )
        for layout in ("matrix", "transposed", "strided", "broadcast"):
            make = dict(layouts(dtype))[layout]
            for name, op in by_dim.items():
                if dtype == torch.bool and name.startswith("arg"):
                    continue
                case(
                    "reduction",
                    f"{name}-{name_of(dtype)}-{layout}",
                    lambda to, op=op, make=make: op(make(to)),
                )
    for dtype in FLOATS:
        norms = {
            "mean": torch.mean,
            "mean1": lambda x: x.mean(-1),
            "norm": torch.linalg.vector_norm,
            "norm1": lambda x: torch.linalg.vector_norm(x, 1),
            "norminf": lambda x: torch.linalg.vector_norm(x, float("inf")),
            "nansum": torch.nansum,
        }
        for name, op in norms.items():
            case(
                "reduction", f"{name}-{name_of(dtype)}", lambda to, op=op, d=dtype: op(to(values((6, 5), d)))
            )
    case("reduction", "sum-empty", lambda to: to(values((0,), torch.float32)).sum())
    case("reduction", "max-long", lambda to: to(torch.arange(8000)).max())
    case("reduction", "sum-rows", lambda to: to(values((100, 70), torch.int64)).sum(1))
    case("reduction", "max-nan", lambda to: to(torch.tensor([1.0, float("nan"), 2.0])).max())
    case("reduction", "any-nan", lambda to: torch.isnan(to(torch.tensor([1.0, float("nan")]))).any())


def add_indexing() -> None:
    for dtype in ALL:
        n = name_of(dtype)
        case("indexing", f"cat-{n}", lambda to, d=dtype: torch.cat([to(values((k,), d)) for k in (3, 1, 5)]))
        case(
            "indexing", f"cat0-{n}", lambda to, d=dtype: torch.cat([to(values((k, 4), d)) for k in (3, 1, 5)])
        )
        case(
            "indexing",
            f"cat1-{n}",
            lambda to, d=dtype: torch.cat([to(values((4, k), d)) for k in (3, 1, 5)], 1),
        )
        case(
            "indexing",
            f"cat_aligned-{n}",
            lambda to, d=dtype: torch.cat([to(values((4, 16), d)), to(values((4, 32), d, 1))], 1),
        )
        case(
            "indexing",
            f"cat_strided-{n}",
            lambda to, d=dtype: torch.cat([to(values((4, 6), d)).t(), to(values((6, 2), d))], 1),
        )
        case(
            "indexing",
            f"cat3-{n}",
            lambda to, d=dtype: torch.cat([to(values((2, 3, 4), d)), to(values((2, 1, 4), d))], 1),
        )
        case(
            "indexing",
            f"stack-{n}",
            lambda to, d=dtype: torch.stack([to(values((5,), d, k)) for k in range(4)]),
        )
        case(
            "indexing", f"index-{n}", lambda to, d=dtype: to(values((9, 4), d))[to(torch.tensor([3, -1, 0]))]
        )
        case(
            "indexing",
            f"index2-{n}",
            lambda to, d=dtype: to(values((9, 4), d))[to(torch.tensor([3, 1])), to(torch.tensor([0, 3]))],
        )
        case(
            "indexing",
            f"index_put-{n}",
            lambda to, d=dtype: put(
                to(values((9, 4), d)), to(torch.tensor([3, 1])), to(values((2, 4), d, 1))
            ),
        )
        case(
            "indexing",
            f"select-{n}",
            lambda to, d=dtype: to(values((9, 4), d)).index_select(1, to(torch.tensor([3, 0, 0]))),
        )
        case(
            "indexing",
            f"select0-{n}",
            lambda to, d=dtype: to(values((9, 16), d)).index_select(0, to(torch.tensor([3, 0, 0]))),
        )
        case(
            "indexing",
            f"gather-{n}",
            lambda to, d=dtype: to(values((3, 4), d)).gather(1, to(torch.tensor([[0], [3], [2]]))),
        )
        case(
            "indexing",
            f"where-{n}",
            lambda to, d=dtype: torch.where(
                to(values((6, 5), torch.bool)), to(values((6, 5), d)), to(values((6, 5), d, 1))
            ),
        )
        case(
            "indexing",
            f"where_scalar-{n}",
            lambda to, d=dtype: torch.where(to(values((6, 5), torch.bool)), to(values((6, 5), d)), 1),
        )
        case(
            "indexing",
            f"masked_fill-{n}",
            lambda to, d=dtype: to(values((6, 5), d)).masked_fill(to(values((6, 5), torch.bool)), 1),
        )
        case(
            "indexing",
            f"scatter-{n}",
            lambda to, d=dtype: to(values((3, 4), d)).scatter(
                1, to(torch.tensor([[0], [3], [2]])), to(values((3, 1), d, 2))
            ),
        )
        case("indexing", f"flip-{n}", lambda to, d=dtype: to(values((6,), d)).roll(2))
        case(
            "indexing",
            f"split-{n}",
            lambda to, d=dtype: [part + part for part in to(values((6, 4), d)).split(2)],
        )
        case("indexing", f"chunk-{n}", lambda to, d=dtype: to(values((6, 4), d)).chunk(2, 1)[1].contiguous())
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64):
        n = name_of(dtype)
        case("indexing", f"cumsum-{n}", lambda to, d=dtype: to(values((50,), d)).cumsum(0))
        case("indexing", f"cumsum1-{n}", lambda to, d=dtype: to(values((6, 5), d)).cumsum(1))
        case("indexing", f"cumsum0-{n}", lambda to, d=dtype: to(values((6, 5), d)).cumsum(0))
    case(
        "indexing",
        "embedding",
        lambda to: torch.nn.functional.embedding(
            to(torch.tensor([[1, 2], [0, 4]])), to(values((5, 8), torch.float32))
        ),
    )
    case("indexing", "nonzero", lambda to: to(values((30,), torch.int64)).nonzero())
    case("indexing", "nonzero2", lambda to: to(values((6, 5), torch.bool)).nonzero())
    case(
        "indexing",
        "masked_select",
        lambda to: to(values((6, 5), torch.int64))[to(values((6, 5), torch.bool))],
    )
    case(
        "indexing",
        "bool_put",
        lambda to: put(to(values((6, 5), torch.float32)), to(values((6, 5), torch.bool)), 7),
    )
    case("indexing", "tril", lambda to: to(values((6, 6), torch.float32)).tril())
    case("indexing", "triu", lambda to: to(values((6, 6), torch.bool)).triu(1))
    case("indexing", "unique", lambda to: to(torch.tensor([3, 1, 3])).unique())
    case(
        "indexing",
        "runs",
        lambda to: to(torch.tensor([3, 3, 1, 3])).unique_consecutive(return_counts=True)[1],
    )
    case("indexing", "counts", lambda to: torch.stack(to(torch.tensor([3, 1, 3])).unique(return_counts=True)))
    case("indexing", "one_hot", lambda to: torch.nn.functional.one_hot(to(torch.tensor([3, 1, 3])), 5))


def add_meetings() -> None:
    # PyTorch has another kernel for more than 16 places.
    for dtype, shape, count, (name, meet) in itertools.product(
        (torch.int64, torch.int32, torch.float32, torch.bfloat16), ((), (6,)), (5, 20), MEETINGS.items()
    ):
        case(
            "meeting",
            f"{name}-{count}-{len(shape)}-{name_of(dtype)}",
            lambda to, d=dtype, s=shape, n=count, meet=meet: meet(
                to(values((4, *s), d)), to(torch.arange(n) * 3 % 4 // 2 * 3), to(values((n, *s), d, 1))
            ),
        )


def put(tensor: Tensor, index: Tensor, value: object) -> Tensor:
    tensor[index] = value
    return tensor


def add_lists() -> None:
    def tensors(to: Move, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [to(values((k,), dtype, k)) for k in (1, 5, 33)]

    case("foreach", "add", lambda to: torch._foreach_add(tensors(to), 1))
    case("foreach", "mul", lambda to: torch._foreach_mul(tensors(to), 0.5))
    case("foreach", "add_list", lambda to: torch._foreach_add(tensors(to), tensors(to), alpha=2))
    case("foreach", "mul_scalars", lambda to: torch._foreach_mul(tensors(to), [1.0, 2.0, 3.0]))
    case("foreach", "zero", lambda to: zero(tensors(to)))
    case("foreach", "unscale_finite", lambda to: unscale(to, tensors(to)))
    case(
        "foreach",
        "unscale_infinite",
        lambda to: unscale(to, [*tensors(to), to(torch.tensor([1.0, float("inf")]))]),
    )


def zero(tensors: list[Tensor]) -> list[Tensor]:
    torch._foreach_zero_(tensors)
    return tensors


def unscale(to: Move, gradients: list[Tensor]) -> Tensor:
    found = to(torch.zeros(1))
    if found.is_cuda:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, to(torch.tensor(0.5)))
    else:
        found[0] = float(any(not bool(torch.isfinite(g).all()) for g in gradients))
    return found


def add_idioms() -> None:
    """What frameworks really do with small tensors before they decide something."""
    case(
        "idiom",
        "object_sizes",
        lambda to: torch.cat([to(torch.tensor([k])) for k in (17, 5, 9)]).max().item(),
    )
    case("idiom", "loss_is_nan", lambda to: bool(torch.isnan(to(torch.tensor(3.25))).any().item()))
    case("idiom", "loss_check", lambda to: bool((~torch.isfinite(to(torch.tensor([3.25])))).any()))
    case("idiom", "sum_to_item", lambda to: to(torch.tensor([2, 3, 5])).sum().item())
    case(
        "idiom",
        "flags",
        lambda to: [int(flag.item()) for flag in to(torch.tensor([1, 0, 1], dtype=torch.int32))],
    )
    case(
        "idiom",
        "tokens",
        lambda to: (to(torch.ones(2, 300)) * to(values((2, 300), torch.float32))).sum().long().item(),
    )
    case(
        "idiom",
        "position_ids",
        lambda to: torch.arange(64, device=device(to)).unsqueeze(0).expand(3, -1).contiguous(),
    )
    case("idiom", "broadcast_data", megatron_sizes)
    case(
        "idiom",
        "bytes_round_trip",
        lambda to: bytes(to(torch.tensor(list(b"maya"), dtype=torch.uint8)).cpu().numpy().tobytes()).decode(),
    )
    case("idiom", "clip_coefficient", lambda to: torch.clamp(1.0 / (to(torch.tensor(4.0)) + 1e-6), max=1.0))
    case("idiom", "print", lambda to: str(to(torch.tensor([1.5, 2.25])).cpu().tolist()))
    case(
        "idiom",
        "tensor_repr",
        lambda to: repr(to(values((3, 4), torch.int64)) * 2).split(", device")[0].rstrip(")"),
    )
    case("idiom", "equal", lambda to: torch.equal(to(torch.tensor([1, 2])), to(torch.tensor([1, 2]))))
    case("idiom", "python_loop", lambda to: [int(v) for v in to(torch.arange(5)) * 2])


def megatron_sizes(to: Move) -> list[int]:
    """The first half of Megatron's broadcast_data: sizes packed into one tensor, sent, unpacked."""
    sizes = [0] * 25
    for at, size in enumerate((4, 2, 1024)):
        sizes[at] = size
    sent = to(torch.tensor(sizes, dtype=torch.int64))
    received = torch.empty_like(sent)
    received.copy_(sent)
    return [int(v) for v in received.cpu().tolist() if v > 0]


def differences(expected: object, found: object) -> str | None:
    if isinstance(expected, tuple | list):
        assert isinstance(found, tuple | list)
        pairs = itertools.zip_longest(expected, found)
        return next((d for d in (differences(*pair) for pair in pairs) if d), None)
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        try:
            torch.testing.assert_close(found.cpu(), expected, equal_nan=True, rtol=None, atol=None)
        except AssertionError as error:
            return f"{error}; expected {expected.flatten()[:8].tolist()}, found {found.cpu().flatten()[:8].tolist()}"
        return None
    return None if expected == found else f"expected {expected}, found {found}"


def run(body: Case) -> str | None:
    try:
        expected = body(lambda t: t.clone())
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None  # not an operation of that dtype
    try:
        return differences(expected, body(lambda t: t.cuda()))
    except (RuntimeError, AssertionError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def failures(groups: list[str]) -> dict[str, str]:
    """The cases of the groups that do not compute on the device what they compute on the CPU, and how."""
    for add in (
        add_binary, add_scalars, add_unary, add_casts, add_creation, add_reductions, add_indexing, add_meetings,
        add_lists, add_idioms,
    ):  # fmt: skip
        add()
    chosen = {name: body for name, body in cases.items() if not groups or name.split("/")[0] in groups}
    assert chosen, groups
    return {name: error for name, body in chosen.items() if (error := run(body))}


if __name__ == "__main__":
    print(json.dumps(failures(sys.argv[1:])))
