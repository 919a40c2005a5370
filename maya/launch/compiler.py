"""PyTorch's compiler where devices are virtual: made ready once for all ranks, and choosing without timing."""

from __future__ import annotations

import fcntl
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from maya.launch.on_import import change_on_import

# Where the compiler makes a fused kernel of its candidates.
_CANDIDATES = "torch._inductor.runtime.triton_heuristics"

# Elements of two bytes in what memory moves at once (32 bytes): a block that has as many side by side reads no others.
_SIDE_BY_SIDE = 16

# Where "max-autotune" chooses between a library's kernel and Triton's templates for a product or a convolution.
_TEMPLATES = "torch._inductor.select_algorithm"

# What torch.compile imports when it decorates (the first) and when it compiles.
COMPILER = (
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.triton",
    "torch._inductor.async_compile",
    _CANDIDATES,
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.fx_passes.pad_mm",
    "sympy.combinatorics",
    "triton.compiler.code_generator",
)

# The sources by which PyTorch's compiler and Triton key their caches (libtriton.so among them, 0.4 GB), and
# what the compiler may trace.
_REMEMBERED = (
    ("torch._inductor.codecache", "torch_key"),
    ("triton.runtime.cache", "triton_key"),
    ("triton.compiler.compiler", "triton_key"),  # until Triton 3.4
    ("torch.overrides", "get_overridable_functions"),
)


def with_compiler(modules: list[str]) -> Iterator[str]:
    """`modules`, and the rest of PyTorch's compiler where one of them has brought a part."""
    yield from modules
    if COMPILER[0] in sys.modules:
        yield from COMPILER


def ready_compiler() -> None:
    """Works out what is remembered from then on: once, not at every rank's first torch.compile."""
    for module, name in _REMEMBERED:
        if function := getattr(sys.modules.get(module), name, None):
            function()


def choose_untimed() -> None:
    """Has the compiler take one candidate for a fused kernel, and the library's for a product, and compile each kernel
    once for all ranks, in this process and its forks.

    It would compile several and time them, on a device that takes no time at all, in the first rank that finds its
    cache empty: that rank alone would record hundreds of calls that are not the script's.
    """
    change_on_import(_CHANGES)


def _choose_untimed(heuristics: Any) -> None:
    """PyTorch's kernels are made of lists of candidates by `cached_autotune`, of one without timing it; that one stays
    where its neighbours would be compiled and timed in turn ("max-autotune", `coordinate_descent_tuning`)."""
    among = getattr(heuristics, "cached_autotune", None)
    if among is None:
        return

    def chosen(size_hints: Any, configs: list[Any], *rest: Any, **named: Any) -> Any:
        return among(size_hints, [_likely(configs, named.get("inductor_meta") or {})], *rest, **named)

    def found(self: Any, launcher: Any, *_: Any, **__: Any) -> Any:
        launcher.config.found_by_coordesc = True  # or each call of the kernel would ask again
        return launcher

    heuristics.cached_autotune = chosen
    heuristics.CachingAutotuner.coordinate_descent_tuning = found


def _likely(configs: list[Any], about: dict[str, Any]) -> Any:
    """The first; of a reduction whose rows lie apart in memory, and what is kept side by side, the first that reads
    what lies so. The first of all would ask for 32 bytes for each two, and no device would have it chosen. Which way
    memory goes is PyTorch's own analysis, where it makes one: the bytes in order along each dimension
    (`tiling_scores`)."""
    scores = about.get("tiling_scores") or {}
    reduced = [int(score) for name, score in scores.items() if name.startswith("r")]
    if reduced and int(scores.get("x", 0)) > sum(reduced):
        aside = (each for each in configs if each.kwargs.get("XBLOCK", 0) >= _SIDE_BY_SIDE)
        return next(aside, configs[0])
    return configs[0]


def _select_untimed(selection: Any) -> None:
    """A product's candidates with "max-autotune" are the library's and dozens of Triton's templates, to be compiled and
    timed."""
    cache = getattr(selection, "AlgorithmSelectorCache", None)
    if cache is None:
        return
    among = cache.__call__

    def first(self: Any, name: str, choices: list[Any], *rest: Any, **named: Any) -> Any:
        if not named.get("return_choice"):
            extern = [choice for choice in choices if isinstance(choice, selection.ExternKernelCaller)]
            choices = (extern or choices)[:1]
        return among(self, name, choices, *rest, **named)

    cache.__call__ = first


def _share_kernels(directories: Any) -> None:
    """PyTorch's compiler keeps Triton's kernels of each device's index apart, though those of equal devices are the
    same: every rank would compile every kernel."""
    of_device = getattr(directories, "triton_cache_dir", None)
    if of_device is not None:
        directories.triton_cache_dir = lambda device: of_device(0)


def _compile_once(compiler: Any) -> None:
    """Ranks come to a kernel at about the same time: one compiles it, and the others then find it in the cache."""
    compile_kernel = compiler.compile
    locks = tempfile.TemporaryFile()  # noqa: SIM115 (every rank's, as long as it runs)

    def alone(source: Any, *rest: Any, **named: Any) -> Any:
        if not hasattr(source, "hash"):
            return compile_kernel(source, *rest, **named)
        place = int(source.hash()[:12], 16)
        fcntl.lockf(locks, fcntl.LOCK_EX, 1, place)
        try:
            return compile_kernel(source, *rest, **named)
        finally:
            fcntl.lockf(locks, fcntl.LOCK_UN, 1, place)

    compiler.compile = alone


_CHANGES = {
    _CANDIDATES: _choose_untimed,
    _TEMPLATES: _select_untimed,
    "torch._inductor.runtime.cache_dir_utils": _share_kernels,
    "triton.compiler.compiler": _compile_once,
}
