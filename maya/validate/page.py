"""The accuracy page: what was predicted, how far off, and on which rows nothing was fitted."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from maya.validate.picture import scatter
from maya.validate.statistics import HEADINGS, MEASURED, PREDICTED, summarise_errors

BEGIN, END = "<!-- iterations: maya validate --page -->", "<!-- end of iterations -->"
PICTURE = "accuracy.svg"
SHARES = ("profiled", "learned", "borrowed", "roofline", "measured_host", "unknown")


def write_page(predicted: pd.DataFrame, page: Path) -> None:
    """Replaces the section of `page` between its two marks, and draws PICTURE beside it.

    `predicted` is what `validate` returns. Everything outside the marks is left alone.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else f"# Accuracy\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    report = predicted[~predicted["fit"]]
    page.write_text(f"{before}{BEGIN}\n{section(predicted)}{END}{after}", encoding="utf-8")
    page.with_name(PICTURE).write_text(scatter(report), encoding="utf-8")


def section(predicted: pd.DataFrame) -> str:
    """Markdown from the heading to the last table."""
    fit, report = predicted[predicted["fit"]], predicted[~predicted["fit"]]
    parts = [
        "## Whole iterations",
        "",
        "Each row is a published measurement of one training iteration; an example script with that row's",
        "configuration ran on virtual devices, and its trace was simulated on that row's cluster. Error is",
        "(predicted - measured) / measured.",
        "",
        f"**Split.** Rows whose `sha256(\"maya:\" + id)` is a multiple of ten ({len(fit)} of {len(predicted)} here)",
        "may be looked at while fitting; the first table is of the others, on which nothing was fitted: no",
        "coefficient was chosen by their errors. *Selection* is the measured time of the configuration that",
        "Maya ranks first over the best measured, averaged over groups of three or more configurations of",
        "equal model, GPUs and batch, a configuration that was measured several times by its mean.",
        "",
        f"![Predicted against measured iteration times]({PICTURE})",
        "",
        "### Rows that nothing was fitted on",
        "",
        *_table(report),
        "",
        *_not_predicted(report),
        "### Error by provenance",
        "",
        "The mean absolute error of the same rows, each weighted by the share of its time that came from there,",
        "and the share of all time. A prediction that stands on a roofline deserves less trust than one that stands",
        "on measurements of its device; `maya predict` prints the shares of each.",
        "",
        *_by_provenance(report),
        "",
        "### The fit share",
        "",
        *_table(fit),
        "",
        *_whole_groups(predicted),
    ]  # fmt: skip
    return "\n".join(parts)


def _table(part: pd.DataFrame) -> list[str]:
    if not len(part):
        return ["None."]
    rows = [
        HEADINGS,
        ("---", *["---:"] * (len(HEADINGS) - 1)),
        *(it.cells() for it in summarise_errors(part)),
    ]
    return ["| " + " | ".join(row) + " |" for row in rows]


def _whole_groups(predicted: pd.DataFrame) -> list[str]:
    """Selection where no group has lost configurations to the other share; nothing if there is no such group."""
    both = summarise_errors(predicted)[-1]
    if not both.groups:
        return []
    return [
        "The split takes configurations out of groups, and either table knows those of its own share alone. Of",
        f"whole groups, rows of both shares together, selection is {both.selection:.3f}, over {both.groups} groups.",
        "",
    ]


def _not_predicted(part: pd.DataFrame) -> list[str]:
    without = part[part[PREDICTED].isna()]
    if not len(without):
        return []
    lines = ["Without a prediction:", ""]
    for (source, verdict, reason), rows in without.groupby(["source", "verdict", "reason"], dropna=False):
        because = f": {reason}" if isinstance(reason, str) and reason else ""
        lines.append(f"- {len(rows)} of {source}, {verdict}{because}")
    return [*lines, ""]


def _by_provenance(part: pd.DataFrame) -> list[str]:
    known = part[part[PREDICTED].notna()]
    error = (known[PREDICTED] / known[MEASURED] - 1).abs()
    lines = [
        "| provenance | share of time | weighted error | rows where it is the most |",
        "| --- | ---: | ---: | ---: |",
    ]
    names = [name for name in SHARES if name in known]
    largest = known[names].fillna(0.0).idxmax(axis=1) if len(known) and names else pd.Series(dtype=object)
    for name in names:
        share = known[name].fillna(0.0)
        if share.sum() > 0:
            weighted = float((share * error).sum() / share.sum())
            lines.append(f"| {name} | {share.mean():.1%} | {weighted:.1%} | {int((largest == name).sum())} |")
    return lines
