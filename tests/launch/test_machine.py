"""What the machine says of its memory, from files as Linux writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from maya.launch.machine import disk_bytes, memory_is_short, who_holds_memory

GIB = 1 << 20  # KiB


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    files = {
        "meminfo": f"MemTotal: {24 * GIB} kB\nMemFree: 1 kB\nMemAvailable: {12 * GIB} kB\n",
        "pressure/memory": "some avg10=0.00 avg60=50.00 avg300=0.00 total=1\n"
        "full avg10=0.00 avg60=1.00 avg300=0.00 total=1\n",
        "7/smaps_rollup": f"0-1 ---p 0 00:00 0 [rollup]\nRss: {9 * GIB} kB\nPss: {4 * GIB} kB\n"
        f"Shared_Clean: {6 * GIB} kB\nPrivate_Clean: {GIB} kB\nPrivate_Dirty: {2 * GIB} kB\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_rank_holds_what_it_shares_with_nobody(proc: Path) -> None:
    said = who_holds_memory([7, 8], proc, proc)  # 8 has ended
    assert said.startswith("1 running ranks hold 3.0 GiB each") and "12.0 GiB of this machine's 24.0" in said


def test_memory_is_short_where_little_is_free(proc: Path) -> None:
    assert not memory_is_short(proc, proc)
    (proc / "meminfo").write_text(f"MemTotal: {24 * GIB} kB\nMemAvailable: {GIB // 4} kB\n")
    assert memory_is_short(proc, proc)


def test_memory_is_short_where_all_wait_for_it(proc: Path) -> None:
    (proc / "pressure" / "memory").write_text("some avg60=90.00\nfull avg10=0.00 avg60=30.00 total=1\n")
    assert memory_is_short(proc, proc)


def test_a_container_has_less_memory_than_its_machine(proc: Path) -> None:
    (proc / "memory.max").write_text(f"{4 << 30}\n")
    (proc / "memory.current").write_text(f"{(4 << 30) - 4096}\n")
    (proc / "memory.stat").write_text(f"anon 1\ninactive_file {1 << 30}\n")
    assert "1.0 GiB of this machine's 4.0 GiB" in who_holds_memory([], proc, proc)
    (proc / "memory.stat").write_text("inactive_file 0\n")
    assert memory_is_short(proc, proc)


def test_what_is_written_to_disk_is_seen(tmp_path: Path) -> None:
    before = disk_bytes(os.getpid())
    (tmp_path / "file").write_bytes(b"x" * 2**20)
    if before == disk_bytes(os.getpid()):
        pytest.skip("no disk lies behind this directory")
    assert disk_bytes(os.getpid()) >= before + 2**20
    assert disk_bytes(2**22 + 1) == 0  # nobody's
