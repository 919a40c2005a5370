"""Entries of the files in maya/estimate/fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from maya.clusters import Device
from maya.estimate import fits
from maya.estimate.tables import FloatArray as FloatArray  # for the others of this folder, too

SHORTEST_S = 2e-6  # no kernel in a busy stream takes less, the gap to its successor included


class Entry(TypedDict):
    """What maya.estimate.fits.Fit is read from."""

    device: str
    compute_capability: list[int]
    variant: str
    coefficients: dict[str, Any]
    source: str
    licence: str
    error: dict[str, Any]
    both_passes: NotRequired[bool]


def entry(
    device: Device, variant: str, coefficients: dict[str, float], error: FloatArray, source: str, licence: str
) -> Entry:
    """`error` [points]: relative, each of a fit that had not seen the point."""
    launch_s = fits.fit_for("gemm", device, "bf16").coefficients["launch_s"]
    return {
        "device": device.key,
        "compute_capability": list(device.compute_capability),
        "variant": variant,
        "coefficients": {"floor_s": max(launch_s, SHORTEST_S)} | coefficients,
        "source": source,
        "licence": licence,
        "error": {"method": "5 folds", "points": int(error.size), "median": round(float(np.median(abs(error))), 4),
                  "mean": round(float(abs(error).mean()), 4), "bias": round(float(error.mean()), 4)},
    }  # fmt: skip


def replace(path: Path, entries: list[Entry]) -> None:
    """Writes these in place of those of the same device and variant; the others stay, as other scripts wrote them."""
    old: list[Entry] = json.loads(path.read_text())["entries"] if path.exists() else []
    new = {(each["device"], each["variant"]) for each in entries}
    kept = [each for each in old if (each["device"], each["variant"]) not in new]
    entries = sorted(
        [*kept, *entries], key=lambda each: (each["compute_capability"], each["device"], each["variant"])
    )
    path.write_text(json.dumps({"entries": entries}, indent=1) + "\n")
