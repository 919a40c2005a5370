"""Measured GEMM and NCCL tables of `aiconfigurator-core` as dense arrays, cached after the first reading.

The package (Apache-2.0) carries Parquet tables per system. Only what an exact answer or an interpolation
needs is kept, in one small .npz a table under the user's cache directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_PACKAGE = "aiconfigurator_core"
_GEMM_DTYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8"}  # tensor cores run bf16 and fp16 alike
_DISTURBED = 1.15  # one framework's reading this far above the other's, for the same call, is not used


@dataclass(frozen=True)
class GemmTable:
    """`seconds[i, j, l]` for C[m, n] = A[m, k] B[k, n] at m[i], n[j], k[l]; NaN where not measured.

    m counts tokens and n output features (the table's convention); all axes are sorted. `exact` is None for all where
    the seconds are differences of readings (`_fp8_latency`).
    """

    m: FloatArray
    n: FloatArray
    k: FloatArray
    seconds: FloatArray
    differences: bool = False

    def exact(self, m: int, n: int, k: int) -> float | None:
        """The measured duration in seconds, or None where there is no such entry."""
        if self.differences:
            return None
        at = []
        for axis, value in ((self.m, m), (self.n, n), (self.k, k)):
            index = int(np.searchsorted(axis, value))
            if index == axis.size or axis[index] != value:
                return None
            at.append(index)
        seconds = float(self.seconds[tuple(at)])
        return None if np.isnan(seconds) else seconds


def gemm_table(device_key: str, dtype: str) -> GemmTable | None:
    """The table of that device and dtype (`bf16 fp16 fp8`), or None where nothing was measured."""
    label = _GEMM_DTYPES.get(dtype)
    return None if label is None else _gemm_table(device_key, label)


@lru_cache
def _gemm_table(device_key: str, label: str) -> GemmTable | None:
    if not _system(device_key).is_dir():
        return None
    arrays = _cached(f"gemm-{device_key}-{label}", lambda: _read_gemm(device_key, label))
    if arrays["seconds"].size == 0:
        return None
    return GemmTable(arrays["m"], arrays["n"], arrays["k"], arrays["seconds"], differences=label == "fp8")


@lru_cache
def collective_table(device_key: str) -> dict[tuple[str, int], tuple[FloatArray, FloatArray]]:
    """(collective, ranks) -> (bytes, seconds), ascending, within one node. Empty where nothing was measured.

    `bytes` is the larger of one rank's send and receive buffer, as in `maya.trace.Collective`.
    """
    if not _system(device_key).is_dir():
        return {}
    arrays = _cached(f"nccl-{device_key}", lambda: _read_collectives(device_key))
    curves: dict[tuple[str, int], tuple[FloatArray, FloatArray]] = {}
    for name, ranks in sorted(
        {(str(c), int(r)) for c, r in zip(arrays["name"], arrays["ranks"], strict=True)}
    ):
        rows = (arrays["name"] == name) & (arrays["ranks"] == ranks)
        curves[name, ranks] = (arrays["bytes"][rows], arrays["seconds"][rows])
    return curves


def _system(device_key: str) -> Path:
    return Path(str(resources.files(_PACKAGE))) / "systems" / "data" / device_key


def _cached(name: str, read: Any) -> dict[str, NDArray[Any]]:
    """The arrays of that name from the cache; `read` and keep them when they are not there yet."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maya"
    path = home / f"{name}-{metadata.version('aiconfigurator-core')}-2.npz"
    try:
        with np.load(path) as stored:
            return dict(stored)
    except (OSError, ValueError):
        arrays: dict[str, NDArray[Any]] = read()
    try:
        home.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.stem}-{os.getpid()}.npz")
        np.savez(partial, **arrays)  # type: ignore[arg-type]
        partial.replace(path)
    except OSError:
        pass  # a read-only home only costs the next start the reading
    return arrays


def _readings(device_key: str, kind: str, framework: str, label: str, shape: list[str]) -> Any:
    """`shape` -> latency in ms of the newest version of that framework's table; rows of m = 0 left out."""
    import pandas as pd

    operation, dtype = _FILES[kind]
    files = sorted((_system(device_key) / operation / framework).glob(f"*/{kind}_perf.parquet"))
    if not files:
        return None
    rows = pd.read_parquet(files[-1], columns=[dtype, *shape, "latency"])
    read = (
        rows.latency > 0 if kind == "gemm" else rows.latency >= 0
    )  # what finding a scale adds may be nothing
    return rows[(rows[dtype] == label) & (rows.m > 0) & read].groupby(shape).latency.median()


# Kind of table -> its folder, the column that names the type.
_FILES = {
    "gemm": ("gemm", "gemm_dtype"),
    "computescale": ("quantize", "quant_dtype"),
    "scale_matrix": ("quantize", "quant_dtype"),
}


def _read_gemm(device_key: str, label: str) -> dict[str, NDArray[Any]]:
    latency = _fp8_latency(device_key) if label == "fp8" else _latency(device_key, label)
    if latency is None:
        return {axis: np.empty(0) for axis in ("m", "n", "k", "seconds")}
    axes = [np.unique(latency.index.get_level_values(level).to_numpy(np.float64)) for level in range(3)]
    seconds = np.full([axis.size for axis in axes], np.nan)
    at = [np.searchsorted(axis, latency.index.get_level_values(level)) for level, axis in enumerate(axes)]
    seconds[tuple(at)] = latency.to_numpy() * 1e-3
    return {"m": axes[0], "n": axes[1], "k": axes[2], "seconds": seconds}


def _latency(device_key: str, label: str) -> Any:
    """sglang's readings (torch.nn.functional.linear, hence PyTorch's own cuBLAS call), trtllm's beside."""
    import pandas as pd

    shape = ["m", "n", "k"]
    first, second = (_readings(device_key, "gemm", name, label, shape) for name in ("sglang", "trtllm"))
    if first is None or second is None:
        return second if first is None else first
    both = pd.concat([first, second], axis=1, keys=["first", "second"])
    disturbed = both["first"].isna() | (both["first"] > _DISTURBED * both["second"])
    return both["second"].where(disturbed, both["first"])


def _fp8_latency(device_key: str) -> Any:
    """What trtllm's linear layer takes (cuBLAS' product, as PyTorch's) less what it takes to bring its input to FP8.

    Every framework's reading of an FP8 product holds both. trtllm's second part was read by itself: to find the scale
    (`computescale`, what that adds) and to apply it (`scale_matrix`). sglang's and vLLM's products are CUTLASS'."""
    layer = _readings(device_key, "gemm", "trtllm", "fp8", ["m", "n", "k"])
    parts = [
        _readings(device_key, kind, "trtllm", "fp8", ["m", "k"]) for kind in ("computescale", "scale_matrix")
    ]
    if layer is None or any(part is None for part in parts):
        return None
    input_ms = parts[0].add(parts[1]).reindex(layer.index.droplevel("n"))
    product = layer - input_ms.to_numpy()
    return product[product > 0]


_COLLECTIVES = {"alltoall": "all_to_all"}


def _read_collectives(device_key: str) -> dict[str, NDArray[Any]]:
    import pandas as pd

    files = sorted((_system(device_key) / "comm" / "nccl").glob("*/nccl_perf.parquet"))
    if not files:
        return {name: np.empty(0) for name in ("name", "ranks", "bytes", "seconds")}
    rows = pd.read_parquet(files[-1])
    rows = rows[rows.nccl_dtype == "half"]
    curve = rows.groupby(["op_name", "num_gpus", "message_size"]).latency.median().reset_index()
    return {
        "name": np.array([_COLLECTIVES.get(name, name) for name in curve.op_name], dtype=np.str_),
        "ranks": curve.num_gpus.to_numpy(np.int64),
        "bytes": curve.message_size.to_numpy(np.float64) * 2,  # message_size counts elements of 2 bytes
        "seconds": curve.latency.to_numpy(np.float64) * 1e-3,
    }
