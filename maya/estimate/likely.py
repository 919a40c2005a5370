"""How far off a prediction is likely to be: what those of measured iterations were that are made of the like.

What tells them apart most is the device and how much of the time is the host's (docs/accuracy.md). The table is written
by `scripts/fit/likely_error` from the rows that nothing was fitted on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from maya.clusters import Device

TABLE = Path(__file__).parent / "likely_error.json"

# Fewer iterations of a device say less of it than those of all devices.
FEWEST = 20


@dataclass(frozen=True)
class LikelyError:
    """Of the absolute error (predicted - measured) / measured, over measured iterations."""

    median: float
    p90: float
    iterations: int  # how many these figures rest on
    own: bool  # whether they are of this device, not of all


def likely_error(device: Device, provenance: Mapping[str, float]) -> LikelyError | None:
    """Of a prediction on `device` with those shares of time; None of what has no share of anything."""
    if not provenance:
        return None
    host = provenance.get("measured_host", 0.0)
    alike = [entry for entry in table() if entry["host"][0] <= host <= entry["host"][1]]
    own = [entry for entry in alike if entry["device"] == device.key and entry["iterations"] >= FEWEST]
    entry = (own or [entry for entry in alike if not entry["device"]])[-1]
    return LikelyError(entry["median"], entry["p90"], entry["iterations"], bool(own))


@cache
def table() -> list[dict[str, Any]]:
    """Entries: the device (empty: all of them), the host's share of time from and to, iterations, median, p90."""
    text = TABLE.read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["entries"]
    return entries
