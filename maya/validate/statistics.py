"""Errors of predictions against measurements, by source, and whether the best configuration was chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

PREDICTED, MEASURED = "predicted_iteration_time_s", "measured_iteration_time_s"

# Configurations of one such group compete: equal work on equal devices, different ways of doing it.
GROUP = ["source", "gpu", "model", "layers", "hidden", "seq", "gpus", "gbs"]
# Rows that are equal in these were measured with the same configuration, on other days, hosts or releases.
CONFIGURATION = [
    "tp", "pp", "dp", "cp", "ep", "vp", "mbs", "precision", "recompute", "seq_parallel", "dist_opt", "sharding",
    "comm_overlap", "attention",
]  # fmt: skip


HEADINGS = (
    "source", "rows", "predicted", "MAPE", "median", "p90", "bias", "rank correlation", "selection", "groups",
)  # fmt: skip


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
    rank_correlation: (
        float  # mean Spearman's rho over groups of three configurations or more; NaN without one
    )
    selection: (
        float  # measured time of the configuration ranked first over the best measured; mean over groups
    )
    groups: int

    def cells(self) -> tuple[str, ...]:
        """Below HEADINGS; empty where there is none."""
        return (
            self.source, str(self.rows), str(self.predicted), _shown(self.mape, ".1%"), _shown(self.median, ".1%"),
            _shown(self.p90, ".1%"), _shown(self.bias, "+.1%"), _shown(self.rank_correlation, ".2f"),
            _shown(self.selection, ".3f"), str(self.groups or ""),
        )  # fmt: skip


def _shown(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)


def summarise_errors(table: pd.DataFrame) -> list[SourceErrors]:
    """`table` has one line a row: the columns of GROUP and CONFIGURATION, `predicted_iteration_time_s` (NaN: none) and
    `measured_iteration_time_s`. One entry per source, then one named `all`."""
    parts = [(str(source), part) for source, part in table.groupby("source")]
    return [_summarise(source, part) for source, part in [*parts, ("all", table)]]


def _summarise(source: str, table: pd.DataFrame) -> SourceErrors:
    known = table[table[PREDICTED].notna()]
    errors = known[PREDICTED] / known[MEASURED] - 1
    absolute = errors.abs()
    groups = [configurations(group) for _, group in known.groupby(GROUP, dropna=False)]
    groups = [group for group in groups if len(group) >= 3]
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


def configurations(group: pd.DataFrame) -> pd.DataFrame:
    """One line a configuration, with the mean of what it was measured and predicted to take."""
    return group.groupby(CONFIGURATION, dropna=False)[[PREDICTED, MEASURED]].mean()


def _rank_correlation(group: pd.DataFrame) -> float:
    """Spearman's rho: Pearson's of the ranks; 1 where every configuration is as good as any other."""
    predicted, measured = (group[name].rank().to_numpy(np.float64) for name in (PREDICTED, MEASURED))
    if np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return 1.0
    return float(np.corrcoef(predicted, measured)[0, 1])


def _selection(group: pd.DataFrame) -> float:
    """Of configurations that are predicted alike any may be chosen: their mean."""
    predicted, measured = (group[name].to_numpy(np.float64) for name in (PREDICTED, MEASURED))
    return float(measured[predicted == predicted.min()].mean() / measured.min())
