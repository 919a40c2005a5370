"""Predicted against measured iteration times as an SVG, on logarithmic axes."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

import pandas as pd

from maya.validate.statistics import MEASURED, PREDICTED

WIDTH, HEIGHT, LEFT, TOP, SIDE = 800, 520, 64, 20, 440  # the plot is a square of SIDE
# Okabe and Ito's colours: told apart with any colour vision.
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a6d00", "#7f7f7f",
    "#a05195", "#2f4b7c", "#665191", "#f95d6a",
)  # fmt: skip
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333; } .line { stroke: #999; fill: none; }
  .band { fill: #8882; } svg { background: #fff; }
  @media (prefers-color-scheme: dark) { text { fill: #ddd; } svg { background: #16181d; } }
"""


def scatter(table: pd.DataFrame) -> str:
    """`table` has columns source, PREDICTED and MEASURED in seconds; rows without a prediction are left out."""
    known = table[table[PREDICTED].notna()]
    times = [*known[PREDICTED], *known[MEASURED]] or [1.0]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)) + 1e-9)
    axes = _Axes(low, max(high, low + 1))
    sources = sorted({str(source) for source in known["source"]})
    colour = {source: COLOURS[index % len(COLOURS)] for index, source in enumerate(sources)}
    points = [
        f'<circle cx="{axes.x(measured):.1f}" cy="{axes.y(predicted):.1f}" r="3" fill="{colour[str(source)]}" '
        'fill-opacity="0.6"/>'
        for source, predicted, measured in zip(
            known["source"], known[PREDICTED], known[MEASURED], strict=True
        )
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Predicted against measured iteration times">'
    )
    parts = [head, f"<style>{STYLE}</style>", *axes.drawn(), *points, *_legend(colour, known)]
    return "\n".join([*parts, "</svg>", ""])


class _Axes:
    """Both from 10^low to 10^high seconds."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def _along(self, seconds: float) -> float:
        return (math.log10(seconds) - self.low) / (self.high - self.low) * SIDE

    def x(self, seconds: float) -> float:
        return LEFT + self._along(seconds)

    def y(self, seconds: float) -> float:
        return TOP + SIDE - self._along(seconds)

    def drawn(self) -> list[str]:
        """Frame, ticks at powers of ten, the diagonal and a band of ten percent around it."""
        first, last = 10.0**self.low, 10.0**self.high
        corners = ((first, first * 1.1), (last, last * 1.1), (last, last * 0.9), (first, first * 0.9))
        band = " ".join(f"{self.x(m):.1f},{self.y(p):.1f}" for m, p in corners)
        parts = [
            f'<polygon class="band" points="{band}"/>',
            f'<rect class="line" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>',
            f'<line class="line" x1="{LEFT}" y1="{TOP + SIDE}" x2="{LEFT + SIDE}" y2="{TOP}"/>',
            f'<text x="{LEFT + SIDE / 2}" y="{HEIGHT - 12}" text-anchor="middle">measured, s</text>',
            f'<text transform="translate(16 {TOP + SIDE / 2}) rotate(-90)" text-anchor="middle">predicted, s</text>',
        ]
        for power in range(self.low, self.high + 1):
            at, text = 10.0**power, f"{10.0**power:g}"
            parts.append(
                f'<text x="{self.x(at):.1f}" y="{TOP + SIDE + 18}" text-anchor="middle">{text}</text>'
            )
            parts.append(f'<text x="{LEFT - 8}" y="{self.y(at) + 4:.1f}" text-anchor="end">{text}</text>')
        return parts


def _legend(colour: dict[str, str], known: pd.DataFrame) -> list[str]:
    parts = []
    for index, (source, fill) in enumerate(colour.items()):
        y = TOP + 12 + 20 * index
        rows = int((known["source"] == source).sum())
        parts.append(f'<circle cx="{LEFT + SIDE + 18}" cy="{y - 4}" r="4" fill="{fill}"/>')
        parts.append(f'<text x="{LEFT + SIDE + 28}" y="{y}">{escape(source)} ({rows})</text>')
    return parts
