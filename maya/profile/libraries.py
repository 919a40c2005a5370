"""Which of an operator's recorded library calls the kernels of one measured call serve, as far as their names tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from maya.profile.names import direction, layout, precision
from maya.profile.types import Activity
from maya.trace.types import Convolution, Gemm, Operation

Served = dict[Operation, list[Activity]]

# Convolutions as plain products of pixels and channels. A and B are transposed as cuBLAS has it: column-major.
_OF_PRODUCT = {
    "nhwc": {"TN": "forward", "NN": "backward_data", "NT": "backward_filter"},
    "nchw": {"NN": "forward", "NT": "backward_data", "TN": "backward_filter"},
}
# Conversions around a kernel that wants the other layout.
_INPUTS = {"nhwc": "nhwcToNchw", "nchw": "nchwToNhwc"}
_OUTPUTS = {"nhwc": "nchwToNhwc", "nchw": "nhwcToNchw"}
_AROUND = ("nhwcAddPadding", "scalePackedTensor")  # before or after


def serve(candidates: Sequence[Operation], call: Sequence[Activity]) -> Served:
    """The call's kernels by the candidate that they serve; empty where their names do not tell."""
    products = [each for each in candidates if isinstance(each, Gemm)]
    convolutions = [each for each in candidates if isinstance(each, Convolution)]
    if len(candidates) == 1:
        possible = [each for each in candidates if _may_serve(each, call)]
    elif len(products) == len(candidates):
        possible = [each for each in products if _may_serve(each, call)]
    elif len(convolutions) == len(candidates):
        return _serve_convolutions(convolutions, call)
    else:
        possible = []
    return {possible[0]: list(call)} if len(possible) == 1 else {}


def _may_serve(operation: Operation, call: Iterable[Activity]) -> bool:
    """Whether no kernel's name says that it does other work."""
    names = [kernel.name for kernel in call]
    match operation:
        case Gemm():
            transposes = "NT"[operation.transpose_a] + "NT"[operation.transpose_b]
            dtype = "tf32" if operation.compute == "tf32" else operation.dtype
            return all(
                layout(name) in (None, transposes) and precision(name) in (None, dtype) for name in names
            )
        case Convolution():
            return all(direction(name) in (None, operation.direction) for name in names)
        case _:
            return True


def _serve_convolutions(candidates: Sequence[Convolution], call: Sequence[Activity]) -> Served:
    """A call may make several passes, of tensors of one layout."""
    ways: list[Served] = []
    for tensors in sorted({candidate.layout for candidate in candidates}):
        same = [candidate for candidate in candidates if candidate.layout == tensors]
        of_direction = {candidate.direction: candidate for candidate in same}
        passes = _passes(call, tensors)
        if passes and len(of_direction) == len(same) and passes.keys() <= of_direction.keys():
            ways.append(
                {each: passes[towards] for towards, each in of_direction.items() if towards in passes}
            )
    return ways[0] if len(ways) == 1 else {}


def _passes(call: Sequence[Activity], tensors: str) -> dict[str, list[Activity]]:
    """The call's kernels by direction, if its tensors have that layout; empty where names do not tell, or tell that
    they have not."""
    if tensors not in _OF_PRODUCT:
        return {}
    passes: dict[str, list[Activity]] = defaultdict(list)
    for kernel, towards in zip(call, _directions(call, tensors), strict=True):
        if towards is None:
            return {}
        passes[towards].append(kernel)
    if not all(_suits(kernels, tensors) for kernels in passes.values()):
        return {}
    # Two passes, of which one has its inputs converted and the other wants them so too: whose are the conversions?
    bare = [kernels for kernels in passes.values() if not _converted(kernels, tensors)]
    shared = len(bare) < len(passes) and any(not _is_product(kernels) for kernels in bare)
    return {} if shared else passes


def _directions(call: Sequence[Activity], tensors: str) -> list[str | None]:
    """Of each kernel. What surrounds one that does the work belongs to it: fills and conversions of its inputs come
    before it, sums of its parts and conversions of its outputs after it."""
    told = [direction(each.name) or _OF_PRODUCT[tensors].get(layout(each.name) or "") for each in call]
    for place, kernel in enumerate(call):
        if told[place] is not None:
            continue
        before = next((each for each in reversed(told[:place]) if each), None)
        after = next((each for each in told[place:] if each), None)
        if kernel.kind == "memset" or _INPUTS[tensors] in kernel.name:
            told[place] = after
        elif _OUTPUTS[tensors] in kernel.name or "splitk" in kernel.name.lower():
            told[place] = before
        elif any(name in kernel.name for name in _AROUND) and (not before or not after or before == after):
            told[place] = before or after
    return told


def _suits(kernels: Iterable[Activity], tensors: str) -> bool:
    """Whether a pass's kernels may work on tensors of that layout. Products of converted ones are not known of."""
    if _converted(kernels, tensors):
        return not _is_product(kernels)
    named = [{each for each in _OF_PRODUCT if each in kernel.name.lower()} for kernel in kernels]
    return all(tensors in layouts for layouts in named if layouts)


def _converted(kernels: Iterable[Activity], tensors: str) -> bool:
    return any(_INPUTS[tensors] in kernel.name for kernel in kernels)


def _is_product(kernels: Iterable[Activity]) -> bool:
    return any(layout(kernel.name) for kernel in kernels)
