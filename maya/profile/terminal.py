"""What `maya profile` prints."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from maya.profile.run import Profiled

SHOWN = 5


def render(profiled: Profiled, database: Path, console: Console) -> None:
    matched = profiled.matched
    console.print(
        f"{database}: {len(matched.samples)} operations measured over {profiled.iterations} iterations on "
        f"{profiled.device} ({profiled.versions}): {matched.share:.0%} of the device's time",
        highlight=False,
    )
    console.print(
        f"  an iteration takes {profiled.iteration_s * 1e3:.2f} ms, and PyTorch reserves "
        f"{profiled.peak_reserved_bytes / 2**30:.2f} GiB",
        highlight=False,
    )
    for name, seconds in sorted(matched.unmatched.items(), key=lambda item: -item[1])[:SHOWN]:
        console.print(f"  not matched: {name}, {seconds * 1e3:.2f} ms", highlight=False, markup=False)
    if matched.unmeasured:
        console.print(f"  {len(matched.unmeasured)} recorded operations were not measured", highlight=False)
