"""What the scripts' arguments have in common: sizes that a row leaves to its model, and flags as words."""

from __future__ import annotations

from typing import Any

from maya.validate.rows import Row


class MappingError(Exception):
    """Why nothing can be run for a row."""


def flat(flags: dict[str, Any]) -> tuple[str, ...]:
    words: list[str] = []
    for flag, value in flags.items():
        if value is True:
            words.append(flag)
        else:
            words += [flag, *(map(str, value) if isinstance(value, list) else [str(value)])]
    return tuple(words)


def ffn_size(row: Row) -> int:
    if row.values["ffn"] is not None:
        return row.number("ffn")
    if "internlm" in row.text("model").lower():
        return 256 * round(8 / 3 * row.number("hidden") / 256 + 0.4999)  # 8/3 hidden, to a multiple of 256
    return 4 * row.number("hidden")


def vocabulary(row: Row) -> int:
    """The source's, or the tokenizer's of the model family."""
    families = {"llama": 128256, "nemotron": 256000, "internlm": 103168, "megatron": 51200, "turing": 51200}
    for family, size in families.items():
        if family in row.text("model").lower():
            return row.number("vocab", size)
    return row.number("vocab", 50257)
