"""Matrix products: a wave-quantised tile model fitted per device, corrected by the measured grid near by.

A product is cut into output tiles, the tiles into waves over the multiprocessors; a wave costs its
multiply-adds at the tile's fitted efficiency plus a fixed part; cuBLAS takes the cheapest tile and split of
k. The memory bound and a launch floor come on top. (Wave quantisation: NVIDIA Deep Learning Performance
guide, "Matrix Multiplication Background".)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from maya.clusters import Device
from maya.estimate.fits import Fit, fit_for
from maya.estimate.tables import FloatArray, GemmTable, gemm_table
from maya.estimate.types import Provenance
from maya.trace.types import Gemm

Sizes = TypeVar("Sizes", float, FloatArray)
Grid = tuple[FloatArray, FloatArray, FloatArray, FloatArray]  # log m, log n, log k, log(measured / model)

# Tile shapes that cuBLAS and CUTLASS kernels of Volta to Blackwell use, and splits of k.
TILES = np.array([(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128)])
SPLITS = np.array([1, 2, 4, 8, 16])
CHOICES = np.array([(m, n, split) for m, n in TILES for split in SPLITS], dtype=np.float64)

# Of 16-bit products by Ampere's kernels, a clock and multiprocessor (NVIDIA A100 whitepaper, table 4).
_AMPERE_FLOPS = 2048

SMALLEST_FITTED = 16  # tokens, features and contraction

ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "int32": 4}


@dataclass(frozen=True)
class TileModel:
    """Fitted coefficients; `efficiency` and `overhead_s` per tile of TILES."""

    efficiency: tuple[float, ...]  # share of the peak rate that a full wave of this tile reaches
    overhead_s: tuple[float, ...]  # per wave: prologue, epilogue
    memory_efficiency: float  # share of the memory bandwidth
    split_s: float  # per split of k: the reduction of partial sums
    launch_s: float


@dataclass(frozen=True)
class Rates:
    """What of a device a matrix product depends on; `peak` in FLOP/s, `bandwidth` in B/s."""

    multiprocessors: int
    peak: float
    bandwidth: float
    item_bytes: float

    @staticmethod
    def of(device: Device, dtype: str) -> Rates:
        peak = device.peak_flops.get(dtype, device.vector_flops)
        return Rates(device.multiprocessors, peak, device.memory_bandwidth, ITEM_BYTES.get(dtype, 2))

    @staticmethod
    def of_narrow(device: Device, dtype: str) -> Rates:
        """Of kernels with narrow loads, which on Hopper and later are still Ampere's."""
        rates = Rates.of(device, dtype)
        ampere = _AMPERE_FLOPS * device.multiprocessors * device.clock_hz
        return replace(rates, peak=min(rates.peak, ampere))

    def moved_bytes(self, m: Sizes, n: Sizes, k: Sizes, batch: Sizes) -> Sizes:
        """Each of the three matrices once."""
        return self.item_bytes * (m * k + k * n + m * n) * batch


def tile_seconds(
    model: TileModel, rates: Rates, m: FloatArray, n: FloatArray, k: FloatArray, batch: FloatArray
) -> FloatArray:
    """Seconds of `batch` products each; all arrays of one shape [...]."""
    m_, n_, k_, batch_ = (a[..., None] for a in (m, n, k, batch))
    tile_m, tile_n, split = CHOICES.T
    efficiency, overhead = _of_choices(model)
    tiles = np.ceil(m_ / tile_m) * np.ceil(n_ / tile_n) * split * batch_
    waves = np.ceil(tiles / rates.multiprocessors)
    rate = rates.peak / rates.multiprocessors * efficiency
    wave = 2 * tile_m * tile_n * np.ceil(k_ / split / 32) * 32 / rate + overhead
    compute = (waves * wave + model.split_s * (split - 1)).min(axis=-1)
    memory = rates.moved_bytes(m, n, k, batch) / (rates.bandwidth * model.memory_efficiency)
    # A smooth maximum: loads and multiply-adds overlap, but not perfectly where both matter.
    return np.asarray(model.launch_s + (compute**4 + memory**4) ** 0.25)


@lru_cache
def _of_choices(model: TileModel) -> tuple[FloatArray, FloatArray]:
    """Efficiency and seconds a wave of each of CHOICES."""
    return np.repeat(model.efficiency, SPLITS.size), np.repeat(model.overhead_s, SPLITS.size)


def flops(gemm: Gemm) -> float:
    return 2.0 * gemm.m * gemm.n * gemm.k * gemm.batch


def math_dtype(gemm: Gemm, device: Device) -> str:
    """The key of `Device.peak_flops` and of the fits that this product runs at."""
    dtype = gemm.dtype.split("_")[0]
    if dtype == "fp32" and gemm.compute in ("tf32", "fast_tf32") and "tf32" in device.peak_flops:
        return "tf32"
    return dtype


def share_left(gemm: Gemm, device: Device) -> float:
    """Of the device's multiprocessors, what its caller leaves the product."""
    return min((gemm.multiprocessors or device.multiprocessors) / device.multiprocessors, 1.0)


def aligned(gemm: Gemm) -> bool:
    """Whether the rows of all three matrices begin at multiples of 16 bytes, as far as sizes tell; of other types than
    the 16-bit ones it is not asked."""
    dtype = gemm.dtype.split("_")[0]
    return dtype not in ("fp16", "bf16") or all(size * ITEM_BYTES[dtype] % 16 == 0 for size in _rows(gemm))


def _rows(gemm: Gemm) -> tuple[int, int, int]:
    """Elements from one row of each matrix to the next."""
    return (gemm.k if gemm.transpose_a else gemm.m, gemm.n if gemm.transpose_b else gemm.k, gemm.m)


def narrowness(gemm: Gemm) -> str:
    """Which rows of a product that is not `aligned` have an odd length: the variant of its fit."""
    if gemm.m % 2:
        return "odd output, transposed" if gemm.transpose_a else "odd output"
    return "odd operand" if any(size % 2 for size in _rows(gemm)) else "even"


def narrow_note(narrow: Set[Gemm]) -> tuple[str, ...]:
    """Names the largest of the products that padding would speed up; nothing where there is none."""
    if not narrow:
        return ()
    largest = max(narrow, key=lambda gemm: (flops(gemm), gemm.m, gemm.n, gemm.operator.name))
    shape = f"{largest.m} x {largest.n} x {largest.k} of {largest.operator.name or 'no operator'}"
    return (
        f"{len(narrow)} 16-bit matrix products have rows of no multiple of 16 bytes (the largest: {shape}): padded "
        "to 8 elements they may be up to five times as fast; they take what cuBLAS' kernels for such took on an "
        "A100 and an H200",
    )


class GemmEstimator:
    """Durations of matrix products on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def estimate(self, gemm: Gemm) -> tuple[float, Provenance]:
        """Seconds: the measured entry, else the model of that device, else one borrowed from the nearest.

        As of aligned rows; what others take, `narrow` says. On fewer multiprocessors than there are a product takes as
        much longer as the model says."""
        seconds, provenance = self._on_all(gemm)
        left = share_left(gemm, self._device)
        if left == 1:
            return seconds, provenance
        model_only = Provenance.LEARNED if provenance == Provenance.PROFILED else provenance
        return seconds * self._slower(gemm, left), model_only

    def narrow(self, gemm: Gemm) -> tuple[float, Provenance] | None:
        """Seconds of a 16-bit product that is not `aligned`: its operands cannot be loaded by whole vectors, nor, on
        Hopper and later, by the tensor memory accelerator, so that cuBLAS takes a kernel of Ampere's with narrow loads.
        None of all other products, and of smaller ones than the fits have seen."""
        if aligned(gemm) or min(gemm.m, gemm.n, gemm.k) < SMALLEST_FITTED or gemm.batch <= 0:
            return None
        fit = fit_for("gemm", self._device, narrowness(gemm))
        rates = Rates.of_narrow(self._device, math_dtype(gemm, self._device))
        return float(model_seconds(fit, rates, gemm.n, gemm.m, gemm.k, gemm.batch)), fit.provenance

    def _slower(self, gemm: Gemm, left: float) -> float:
        dtype = math_dtype(gemm, self._device)
        fit, rates = self._fit(gemm, dtype), Rates.of(self._device, dtype)
        fewer = replace(rates, multiprocessors=gemm.multiprocessors, peak=rates.peak * left)
        sizes = (gemm.n, gemm.m, gemm.k, gemm.batch)
        return float(model_seconds(fit, fewer, *sizes) / model_seconds(fit, rates, *sizes))

    def _on_all(self, gemm: Gemm) -> tuple[float, Provenance]:
        device = self._device
        if min(gemm.m, gemm.n, gemm.k, gemm.batch) <= 0:
            return device.launch_latency_s, Provenance.ROOFLINE
        dtype = math_dtype(gemm, device)
        # Column-major m x n is row-major n x m: cuBLAS' n counts tokens, the table's m.
        tokens, features = gemm.n, gemm.m
        table = gemm_table(device.key, dtype)
        forward = gemm.transpose_a and not gemm.transpose_b  # the only layout that the tables hold
        if table is not None and gemm.batch == 1 and forward:
            measured = table.exact(tokens, features, gemm.k)
            if measured is not None:
                return measured, Provenance.PROFILED
        fit, rates = self._fit(gemm, dtype), Rates.of(device, dtype)
        seconds = float(model_seconds(fit, rates, tokens, features, gemm.k, gemm.batch))
        if gemm.batch == 1:
            seconds *= self._correction(fit, dtype, tokens, features, gemm.k)
        if min(gemm.m, gemm.n) == 1:
            seconds = min(seconds, vector_seconds(gemm, fit, rates))
        return seconds - self._timed_launch(fit), fit.provenance

    def _fit(self, gemm: Gemm, dtype: str) -> Fit:
        """That of batches where the device has one: a V100's kernels for them reach three quarters of the others'."""
        fit = fit_for("gemm", self._device, dtype)
        if gemm.batch == 1:
            return fit
        batched = fit_for("gemm", self._device, f"{fit.variant} batched")
        alike = (batched.device, batched.variant) == (fit.device, f"{fit.variant} batched")
        return batched if alike else fit

    def _timed_launch(self, fit: Fit) -> float:
        """What the launch of a product adds in NeuSight's tables, whose clock is the host's: 34 us on a V100, where
        DeepBench has small products of 10 us in all."""
        if not fit.source.startswith("NeuSight"):
            return 0.0
        launched = tile_model(fit_for("gemm", self._device, "fp16")).launch_s
        return max(tile_model(fit).launch_s - launched, 0.0)

    def _correction(self, fit: Fit, dtype: str, m: int, n: int, k: int) -> float:
        """measured / model near that shape: trilinear in the logarithms, clamped at the grid's edge."""
        grid = _measured_grid(self._device.key, dtype, Rates.of(self._device, dtype), tile_model(fit))
        return 1.0 if grid is None else float(np.exp(interpolate(grid, np.log([m, n, k]))))


def model_seconds(fit: Fit, rates: Rates, m: float, n: float, k: float, batch: float = 1.0) -> FloatArray:
    """The tile model alone, of m tokens and n features."""
    arrays = (np.asarray(value, dtype=np.float64) for value in (m, n, k, batch))
    return tile_seconds(tile_model(fit), rates, *arrays)


def vector_seconds(gemm: Gemm, fit: Fit, rates: Rates) -> float:
    """Products with a vector and dot products: cuBLAS has kernels for them that split k as far as there are
    multiprocessors, and what they take is their bytes."""
    model = tile_model(fit)
    moved = rates.moved_bytes(float(gemm.m), float(gemm.n), float(gemm.k), float(gemm.batch))
    return model.launch_s + moved / (rates.bandwidth * model.memory_efficiency)


@lru_cache
def tile_model(fit: Fit) -> TileModel:
    c = fit.coefficients
    rest = (float(c[name]) for name in ("memory_efficiency", "split_s", "launch_s"))
    return TileModel(tuple(c["efficiency"]), tuple(c["overhead_s"]), *rest)


_CORRECTED_FROM = 16.0  # tokens; below, launch effects dominate and the clamped edge serves


@lru_cache
def _measured_grid(device_key: str, dtype: str, rates: Rates, model: TileModel) -> Grid | None:
    table = gemm_table(device_key, dtype)
    return None if table is None else residual_grid(table, rates, model)


def residual_grid(table: GemmTable, rates: Rates, model: TileModel) -> Grid:
    """How far the model is off on the measured shapes; where none was measured, not at all."""
    rows = table.m >= _CORRECTED_FROM
    m, n, k = np.meshgrid(table.m[rows], table.n, table.k, indexing="ij")
    ratio = np.log(table.seconds[rows] / tile_seconds(model, rates, m, n, k, np.ones_like(m)))
    return np.log(table.m[rows]), np.log(table.n), np.log(table.k), np.where(np.isnan(ratio), 0.0, ratio)


def interpolate(grid: Grid, point: FloatArray) -> float:
    """Trilinear interpolation of grid[3] at one point [3]; beyond the grid, as at its edge."""
    (i, a), (j, b), (k, c) = (_cell(axis, at) for axis, at in zip(grid[:3], point, strict=True))
    corners = grid[3][i : i + 2, j : j + 2, k : k + 2]
    lines = corners[..., 0] * (1 - c) + corners[..., 1] * c
    ends = lines[:, 0] * (1 - b) + lines[:, 1] * b
    return float(ends[0] * (1 - a) + ends[1] * a)


def _cell(axis: FloatArray, at: float) -> tuple[int, float]:
    """The interval of `axis` that holds `at`, and where in it; scalars, as an estimate asks for one point at a time."""
    below = min(max(bisect_right(axis, at) - 1, 0), axis.size - 2)
    share = (at - axis[below]) / (axis[below + 1] - axis[below])
    return below, min(max(float(share), 0.0), 1.0)
