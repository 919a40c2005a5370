"""Can this machine run Maya, and how much of what its PyTorch imports from NVIDIA does the emulator cover?"""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from maya.launch.environment import LaunchError, emulator_library, installed_torch, require_cuda_build

# What the behaviours of the emulator's ABI table come down to for a user.
COVERAGE = {
    "implemented": "implemented",
    "alias": "implemented",
    "host": "accepted",  # runs in the real library, which needs no device for it
    "handle-create": "accepted",
    "handle-destroy": "accepted",
    "succeed": "accepted",
    "unsupported": "refused",
}

# Elf64_Sym (System V ABI, "Symbol Table").
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
# Elf64_Shdr.
SECTION = np.dtype(
    [
        ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
        ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("alignment", "<u8"), ("entry", "<u8"),
    ]
)  # fmt: skip
SHT_DYNSYM = 11


@dataclass(frozen=True)
class Findings:
    python: str
    torch: str  # version, or why there is none
    cuda: str | None
    coverage: dict[str, int]  # implemented, accepted, refused -> how many imported symbols
    refused: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def usable(self) -> bool:
        return not self.problems


def examine() -> Findings:
    """Looks at this interpreter's PyTorch without importing it."""
    build = installed_torch()
    problems = []
    try:
        require_cuda_build()
    except LaunchError as error:
        problems.append(str(error))
    behaviours = abi_table()
    imported = _imported_symbols(build.root / "lib") & behaviours.keys() if build else set()
    coverage = dict.fromkeys(("implemented", "accepted", "refused"), 0)
    for symbol in imported:
        coverage[behaviours[symbol]] += 1
    refused = tuple(sorted(symbol for symbol in imported if behaviours[symbol] == "refused"))
    return Findings(
        python=platform.python_version(),
        torch=build.version if build else "not installed",
        cuda=build.cuda if build else None,
        coverage=coverage,
        refused=refused,
        problems=tuple(problems),
    )


def render(findings: Findings, console: Console) -> None:
    table = Table(show_header=False, box=None)
    table.add_row("Python", f"{findings.python} ({sys.executable})")
    table.add_row("PyTorch", f"{findings.torch}, CUDA {findings.cuda or 'none'}")
    total = sum(findings.coverage.values())
    for kind, count in findings.coverage.items():
        table.add_row(f"  {kind}", f"{count} of the {total} NVIDIA symbols it imports")
    console.print(table)
    for problem in findings.problems:
        console.print(f"[red]problem[/red] {problem}", highlight=False)
    if findings.usable:
        console.print("This machine can run Maya.")


def abi_table() -> dict[str, str]:
    """Symbol -> implemented, accepted or refused, as the emulator itself states it.

    Asked of a process of its own: the emulator bears libcuda's SONAME and must not stay loaded here.
    """
    program = (
        "import ctypes, sys\n"
        "table = ctypes.CDLL(sys.argv[1]).maya_abi_table\n"
        "table.restype = ctypes.c_char_p\n"
        "sys.stdout.write(table().decode())\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, str(emulator_library())], capture_output=True, text=True, check=True
    )
    rows = (line.split("\t") for line in completed.stdout.splitlines() if line)
    return {row[0]: COVERAGE[row[2].partition(":")[0]] for row in rows}


def _imported_symbols(libraries: Path) -> set[str]:
    names: set[str] = set()
    for path in sorted(libraries.glob("lib*torch*.so")) + sorted(libraries.glob("libc10*.so")):
        names |= _undefined_symbols(path)
    return names


def _undefined_symbols(path: Path) -> set[str]:
    image = np.memmap(path, np.uint8, mode="r")
    sections = _sections(image)
    symbols = sections[sections["type"] == SHT_DYNSYM][0]
    strings = sections[symbols["link"]]
    table = _slice(image, symbols).view(SYMBOL)
    text = _slice(image, strings).tobytes()
    undefined = table[(table["section"] == 0) & (table["name"] != 0)]
    return {text[at : text.index(b"\0", at)].decode() for at in undefined["name"].tolist()}


def _sections(image: np.memmap) -> np.ndarray:
    offset = int(image[0x28:0x30].view("<u8")[0])  # Elf64_Ehdr.e_shoff
    count = int(image[0x3C:0x3E].view("<u2")[0])  # Elf64_Ehdr.e_shnum
    return np.frombuffer(image[offset : offset + count * SECTION.itemsize].tobytes(), SECTION)


def _slice(image: np.memmap, section: np.void) -> np.ndarray:
    return np.array(image[int(section["offset"]) : int(section["offset"] + section["size"])])
