"""The errors as a table."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.table import Table

from maya.validate.statistics import HEADINGS, SourceErrors, summarise_errors


def render_errors(predicted: pd.DataFrame, console: Console) -> None:
    """One line a source, of the rows that nothing was fitted on and of the others; then why rows have none."""
    for title, part in (("fit share", predicted[predicted["fit"]]), ("report", predicted[~predicted["fit"]])):
        if len(part):
            console.print(_table(title, summarise_errors(part)))
    without = predicted[predicted["predicted_iteration_time_s"].isna()]
    for (verdict, reason), rows in without.groupby(["verdict", "reason"], dropna=False):
        because = f": {reason}" if isinstance(reason, str) else ""
        console.print(f"{len(rows)} x {verdict}{because}", highlight=False, markup=False)


def _table(title: str, errors: list[SourceErrors]) -> Table:
    table = Table(*HEADINGS, title=title)
    for it in errors:
        table.add_row(*it.cells())
    return table
