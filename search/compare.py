"""Two searches side by side: what each found, and how the configurations that both judged differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from maya.errors import MayaError
from maya.report.labels import duration, number
from maya.search.expression import show

_ROWS = 10


def render_comparison(a: Path, b: Path, console: Console) -> None:
    """Raises MayaError when a directory holds no finished search."""
    both = (_Finished(a), _Finished(b))
    console.print(_found(both))
    common = _common(both)
    if common.empty:
        console.print("No configuration was judged to fit in both.")
        return
    console.print(_differences(common, both))
    change = common.ratio.median()
    fit = "1 configuration fits" if len(common) == 1 else f"{len(common):,} configurations fit"
    console.print(
        f"{fit} in both; {b} takes {change:.3g} times as long as {a} (median), "
        f"from {common.ratio.min():.3g} to {common.ratio.max():.3g}",
        highlight=False,
    )


class _Finished:
    """The files that a search left in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        try:
            self.trials = pd.read_parquet(directory / "trials.parquet")
        except (OSError, ValueError) as error:
            raise MayaError(f"{directory} holds no finished search: {error}") from None
        best = directory / "best.json"
        self.best: dict[str, Any] = json.loads(best.read_text(encoding="utf-8")) if best.is_file() else {}
        self.knobs = [name for name in self.trials.columns if name.startswith("knob.")]

    def facts(self) -> dict[str, str]:
        verdicts = self.trials.verdict.value_counts()
        facts = {"trials": ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())}
        if not self.best:
            return facts | {"best": "nothing fits"}
        objective, search = self.best["objective"], self.best["search"]
        memory = (self.best["prediction"] or {}).get("peak_memory_bytes", {}).get("max")
        return facts | {
            "cluster": f"{self.best['cluster']}, {self.best['gpus']} GPUs",
            "algorithm": f"{search['algorithm']}, seed {search['seed']}",
            "best": f"{number(objective['value'])} {objective['unit']} ({objective['metric'].replace('_', ' ')})",
            "iteration": duration(self.best["iteration_time_s"], 4),
            "memory": f"{memory / 2**30:.1f} GiB" if memory else "",
            **{name: show(value) for name, value in self.best["configuration"].items()},
            "searched for": f"{search['wall_s']:.0f} s",
        }


def _found(both: tuple[_Finished, _Finished]) -> Table:
    table = Table("", both[0].name, both[1].name)
    facts = [finished.facts() for finished in both]
    for name in dict.fromkeys((*facts[0], *facts[1])):
        values = [each.get(name, "") for each in facts]
        table.add_row(name, *values, style="bold" if values[0] != values[1] else None)
    return table


def _common(both: tuple[_Finished, _Finished]) -> pd.DataFrame:
    """Configurations that fit in both, `time_a`, `time_b` (s) and their ratio, the greatest change first."""
    knobs = [name for name in both[0].knobs if name in both[1].knobs]
    fitting = [
        finished.trials[finished.trials.iteration_time_s.notna()][[*knobs, "iteration_time_s"]].astype(
            dict.fromkeys(knobs, str)
        )
        for finished in both
    ]
    common = fitting[0].merge(fitting[1], on=knobs, suffixes=("_a", "_b"))
    common = common.rename(columns={"iteration_time_s_a": "time_a", "iteration_time_s_b": "time_b"})
    common["ratio"] = common.time_b / common.time_a
    distance = (common.ratio - 1).abs()
    return common.loc[distance.sort_values(ascending=False, kind="stable").index]


def _differences(common: pd.DataFrame, both: tuple[_Finished, _Finished]) -> Table:
    knobs = [name for name in common.columns if name.startswith("knob.")]
    table = Table(both[0].name, both[1].name, "ratio", title="Largest differences")
    table.add_column("configuration", overflow="fold")
    for row in common.head(_ROWS).to_dict("records"):
        text = " ".join(f"{name.removeprefix('knob.')}={row[name]}" for name in knobs)
        table.add_row(duration(row["time_a"], 4), duration(row["time_b"], 4), f"{row['ratio']:.3f}", text)
    return table
