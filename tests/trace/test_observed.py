"""What a rank is compared by while it waits at an optimizer step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maya.launch.observed import observe


def test_what_a_compiler_calls_before_the_iteration_does_not_count(rank_writer: Any, tmp_path: Path) -> None:
    for rank, tried in enumerate((0, 500)):  # kernels that the first iteration times to choose among them
        writer = rank_writer(rank, 2)
        for _ in range(tried):
            writer.kernel("candidate")
        writer.step()
        writer.kernel("chosen")
        writer.step()
        writer.write(tmp_path)
    cached, compiled = (observe(tmp_path, rank, segment_hash=1) for rank in range(2))
    assert cached == compiled
    assert cached.times() == compiled.times()
    assert cached.blocks() == compiled.blocks()
    assert cached.calls == 2


def test_all_of_a_first_iteration_counts(rank_writer: Any, tmp_path: Path) -> None:
    writer = rank_writer(0, 1)
    writer.kernel("a")
    writer.kernel("b")
    writer.step()
    writer.write(tmp_path)
    assert observe(tmp_path, 0, segment_hash=1).calls == 3
