"""Matrix products that were timed: the tables in the package, what others published, what scripts/measure measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import cookbook
import numpy as np
import numpy.typing as npt
import pandas as pd
from entries import FloatArray

from maya import clusters
from maya.estimate import gemm, tables
from maya.estimate.profiles import Profiles, operation_of
from maya.trace.types import Gemm

MEASURED = Path(__file__).parents[1] / "measure"
COOKBOOK = "EleutherAI/cookbook, sizing/results"
NARROW = ("even", "odd operand", "odd output", "odd output, transposed")  # gemm.narrowness
Timed = tuple[Gemm, float]  # a product and its seconds

L40S = clusters.Device(
    name="NVIDIA L40S",
    key="l40s",
    compute_capability=(8, 9),
    multiprocessors=142,
    clock_hz=2.52e9,
    memory_bytes=47810936832,
    context_bytes=450_000_000,
    memory_bandwidth=864e9,
    l2_bytes=100663296,
    shared_memory_per_block=101376,
    peak_flops={"fp32": 91.6e12, "tf32": 183e12, "fp16": 362e12, "bf16": 362e12, "fp8": 733e12},
    vector_flops=91.6e12,
    launch_latency_s=3e-6,
    pcie_bandwidth=32e9,
)  # fmt: skip  (NVIDIA L40S datasheet)


@dataclass
class Data:
    device: clusters.Device
    dtype: str
    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    seconds: FloatArray
    source: str
    licence: str
    variant: str = ""  # of the entry; the dtype without one

    def __getitem__(self, rows: npt.NDArray[np.bool_ | np.integer]) -> Data:
        m, n, k, batch, seconds = (a[rows] for a in (self.m, self.n, self.k, self.batch, self.seconds))
        return replace(self, m=m, n=n, k=k, batch=batch, seconds=seconds)

    @staticmethod
    def of(
        device: clusters.Device,
        products: Iterable[Timed],
        source: str,
        variant: str = "",
        dtype: str = "fp16",
    ) -> Data:
        seen = [(p, seconds) for p, seconds in products if min(p.n, p.m, p.k) >= gemm.SMALLEST_FITTED]
        sizes = [(p.n, p.m, p.k, p.batch, seconds) for p, seconds in seen]
        m, n, k, batch, seconds = np.array(sizes, dtype=float).T
        return Data(device, dtype, m, n, k, batch, seconds, source, "Apache-2.0", variant)

    @property
    def rates(self) -> gemm.Rates:
        narrow = self.variant in NARROW
        return (gemm.Rates.of_narrow if narrow else gemm.Rates.of)(self.device, self.dtype)


def sources(folder: Path | None) -> list[Data]:
    devices = {name: clusters.load(name).device for name in clusters.names()}
    found = [
        table_data(device, dtype, table)
        for device in (
            devices["dgx-a100"],
            devices["dgx-h100"],
            devices["dgx-h200"],
            L40S,
            devices["dgx-b200"],
        )
        for dtype in ("bf16", "fp8")
        if (table := tables.gemm_table(device.key, dtype)) is not None
    ]
    if folder is not None:
        found += [v100(folder, devices["dgx-v100"]), v100_batched(folder, devices["dgx-v100"])]
        found += [neusight(folder, devices["dgx-v100"], "Tesla V100-PCIE-32GB")]
        found += [neusight(folder, devices["dgx-a100"], "NVIDIA A100-PCIE-40GB")]
        found += [vidur(folder, devices["a40-8"], "a40")]
    return found


def table_data(device: clusters.Device, dtype: str, table: tables.GemmTable) -> Data:
    m, n, k = (a.ravel() for a in np.meshgrid(table.m, table.n, table.k, indexing="ij"))
    seconds = table.seconds.ravel()
    rows = ~np.isnan(seconds) & (m >= gemm.SMALLEST_FITTED)
    fp8 = "trtllm's linear layers less their input's quantisation"
    read = fp8 if dtype == "fp8" else "sglang and trtllm GEMM tables"
    return Data(device, dtype, m[rows], n[rows], k[rows], np.ones(rows.sum()), seconds[rows],
                f"aiconfigurator-core 0.12.0, {read}", "Apache-2.0")  # fmt: skip


def measured(folder: Path, dtype: str) -> Data:
    """All layouts, in a script's own order; none of unaligned rows."""
    device = clusters.load(str(folder / "cluster.yaml")).device
    alike = [
        (product, seconds)
        for product, seconds in products_of(folder)
        if product.dtype == "fp32" and gemm.math_dtype(product, device) == dtype
    ]
    return Data.of(device, alike, f"scripts/measure: operations and jobs on one {device.name}", dtype=dtype)


def products_of(folder: Path) -> list[Timed]:
    entries = Profiles.read(folder / "fit.parquet").entries
    timed = ((operation_of(identity), each.median) for (_, identity, _), each in entries.items())
    return [(operation, seconds) for operation, seconds in timed if isinstance(operation, Gemm)]


def smaller_a100() -> clusters.Device:
    """EleutherAI's, of 40 GB (NVIDIA A100 datasheet): what writes much reaches 1.39 TB/s."""
    return clusters.load("dgx-a100").device.model_copy(update={"memory_bandwidth": 1.555e12})


def of_kind(kind: str, timed: list[Timed]) -> list[Timed]:
    return [each for each in timed if not gemm.aligned(each[0]) and gemm.narrowness(each[0]) == kind]


def v100(folder: Path, device: clusters.Device) -> Data:
    """Of aligned rows, each on its own."""
    timed = [*deepbench(folder), *cookbook.products(folder / "cookbook", "v100")]
    alone = [each for each in timed if each[0].batch == 1 and gemm.aligned(each[0])]
    return Data.of(device, alone, f"Baidu DeepBench, V100 results; {COOKBOOK}")


def v100_batched(folder: Path, device: clusters.Device) -> Data:
    timed = cookbook.products(folder / "cookbook", "v100")
    return Data.of(device, (each for each in timed if each[0].batch > 1), COOKBOOK, "fp16 batched")


def deepbench(folder: Path) -> Iterable[Timed]:
    rows = pd.read_csv(folder / "deepbench" / "v100_gemm.csv")
    rows["time_ms"] = pd.to_numeric(rows.time_ms, errors="coerce")  # a few say that the call failed
    for row in rows[(rows.math == "fp16_in_fp32_acc") & (rows.time_ms > 0)].to_dict("records"):
        layout = {"transpose_a": row["transA"] == "T", "transpose_b": row["transB"] == "T"}
        # Column-major M x N: cuBLAS' n counts tokens.
        yield (
            Gemm(row["M"], row["N"], row["K"], dtype="fp16", compute="fp32", **layout),
            row["time_ms"] * 1e-3,
        )


def neusight(folder: Path, device: clusters.Device, label: str) -> Data:
    """fp32 without TF32; the contraction of a bmm row is N: B x [M, N] x [N, K]; of a linear row N too."""
    frames = []
    for kind in ("bmm", "linear"):
        for file in (folder / "neusight" / "train" / "collect" / kind).glob(
            f"*/{label.replace(chr(32), chr(95))}.csv.gz"
        ):
            frames.append(pd.read_csv(file))
    rows = pd.concat(frames)
    rows = rows[rows[["M", "N", "K"]].min(axis=1) >= gemm.SMALLEST_FITTED]
    m, n, k, batch = (rows[c].to_numpy(float) for c in ("M", "K", "N", "B"))
    seconds = rows.Latency.to_numpy() * 1e-3
    return Data(device, "fp32", m, n, k, batch, seconds, f"NeuSight, {label}", "MIT")


def vidur(folder: Path, device: clusters.Device, name: str) -> Data:
    columns: list[list[float]] = []
    for file in sorted((folder / "vidur" / "compute" / name).glob("*/*/mlp.csv.gz")):
        for _, row in pd.read_csv(file).iterrows():
            tp, hidden, tokens = row.num_tensor_parallel_workers, row.n_embd, row.num_tokens
            head = hidden / row.n_head
            qkv = (row.n_head + 2 * row.n_kv_head) * head / tp
            up = row.n_expanded_embd * (2 if row.use_gated_mlp else 1) / tp
            for part, n, k in (
                ("attn_pre_proj", qkv, hidden), ("attn_post_proj", hidden, hidden / tp),
                ("mlp_up_proj", up, hidden), ("mlp_down_proj", hidden, row.n_expanded_embd / tp),
            ):  # fmt: skip
                columns.append([tokens, n, k, row[f"time_stats.{part}.median"] * 1e-3])
    data = np.array(columns)
    data = data[(data[:, 0] >= 64) & ~np.isnan(data).any(axis=1) & (data[:, 3] > 0)]
    data = data[np.random.default_rng(0).permutation(len(data))[:20000]]
    m, n, k, seconds = data.T
    return Data(device, "fp16", m, n, k, np.ones(len(data)), seconds, f"microsoft/vidur, {name}", "MIT")
