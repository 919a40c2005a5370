"""Processes that a script starts, that are no ranks, and that work on a device all the same.

The emulator writes the command of each to the file that a variable names (emulator/core/unrecorded.cpp).
"""

from __future__ import annotations

import textwrap
from pathlib import Path

VARIABLE = "MAYA_UNRECORDED"
SUFFIX = ".unrecorded"


def unrecorded_note(directory: Path) -> list[str]:
    """Names the processes that the ranks of a launch started, each command once."""
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    lines = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
    commands = dict.fromkeys(textwrap.shorten(line, 120, placeholder=" ...") for line in lines)
    if not commands:
        return []
    return [
        "what processes that the script starts do on a device is not recorded, and in no figure: "
        + "; ".join(commands)
    ]
