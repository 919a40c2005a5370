"""Ranks are spread evenly over cores, and so are those of them that matter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.launch.placement import Placement


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_ranks_of_every_power_of_two_are_spread(stride: int):
    placement = Placement((3, 5))
    core_of = {rank: placement.place(rank, range(rank)) for rank in range(16)}
    assert Counter(core_of[rank] for rank in range(0, 16, stride)) == {3: 8 // stride, 5: 8 // stride}


@given(cores=st.integers(1, 5), ranks=st.sets(st.integers(0, 40), min_size=1))
def test_no_core_has_two_ranks_more_than_another(cores: int, ranks: set[int]):
    placement = Placement(tuple(range(cores)))
    working: list[int] = []
    load: Counter[int] = Counter()
    for rank in sorted(ranks):
        load[placement.place(rank, working)] += 1
        working.append(rank)
    assert max(load.values()) - min(load[core] for core in range(cores)) <= 1


def test_survivors_on_one_core_are_moved_apart():
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    placement = Placement(cores)
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    processes = {rank: subprocess.Popen(sleeper) for rank in range(4)}
    try:
        core_of = {}
        for rank, process in processes.items():
            core_of[rank] = placement.place(rank, range(rank))
            os.sched_setaffinity(process.pid, {core_of[rank]})
        survivors = [rank for rank in processes if core_of[rank] == cores[0]]
        assert len(survivors) == 2
        placement.spread({rank: processes[rank].pid for rank in survivors})
        assert {core for rank in survivors for core in os.sched_getaffinity(processes[rank].pid)} == set(
            cores
        )
        processes[survivors[0]].kill()
        processes[survivors[0]].wait()
        placement.spread({rank: processes[rank].pid for rank in processes})  # one is gone: no error
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
