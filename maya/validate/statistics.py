"""Errors of predictions against measurements, by source, and whether the best configuration was chosen."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

# Configurations of one such group compete: equal work, different ways of doing it.
GROUP = ["source", "model", "layers", "hidden", "seq", "gpus", "gbs"]


@dataclass(frozen=True)
class SourceErrors:
    """Errors are (predicted - measured) / measured; MAPE is the mean of their absolute values."""

    source: str
    rows: int
    predicted: int
    mape: float
    median: float
    p90: float
    bias: float  # mean signed error
    rank_correlation: float  # mean Spearman's rho over groups of three or more; NaN without such a group
    selection: (
        float  # measured time of the configuration ranked first over the best measured; mean over groups
    )
    groups: int


def summarise_errors(table: pd.DataFrame) -> list[SourceErrors]:
    """`table` has one line a row: GROUP's columns, `predicted_iteration_time_s` (NaN: none) and
    `measured_iteration_time_s`. One entry per source, then one named `all`."""
    parts = [(str(source), part) for source, part in table.groupby("source")]
    return [_summarise(source, part) for source, part in [*parts, ("all", table)]]


def _summarise(source: str, table: pd.DataFrame) -> SourceErrors:
    known = table[table["predicted_iteration_time_s"].notna()]
    errors = known["predicted_iteration_time_s"] / known["measured_iteration_time_s"] - 1
    absolute = errors.abs()
    groups = [group for _, group in known.groupby(GROUP, dropna=False) if len(group) >= 3]
    nan = float("nan")
    return SourceErrors(
        source=source,
        rows=len(table),
        predicted=len(known),
        mape=float(absolute.mean()),
        median=float(absolute.median()),
        p90=float(absolute.quantile(0.9)),
        bias=float(errors.mean()),
        rank_correlation=sum(map(_rank_correlation, groups)) / len(groups) if groups else nan,
        selection=sum(map(_selection, groups)) / len(groups) if groups else nan,
        groups=len(groups),
    )


def _rank_correlation(group: pd.DataFrame) -> float:
    """Spearman's rho: Pearson's of the ranks."""
    ranks = group[["predicted_iteration_time_s", "measured_iteration_time_s"]].rank()
    rho = ranks.corr().iloc[0, 1]
    return 1.0 if pd.isna(rho) else float(rho)


def _selection(group: pd.DataFrame) -> float:
    chosen = group.loc[group["predicted_iteration_time_s"].idxmin(), "measured_iteration_time_s"]
    return float(chosen / group["measured_iteration_time_s"].min())
