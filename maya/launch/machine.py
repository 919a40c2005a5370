"""What the machine that ranks run on says of them: how a process ended, whether memory and disk suffice, time used."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

RECORDED_AT_A_TIME = 1 << 20  # bytes by which a trace grows (emulator/core/trace_file.cpp)
SHORT = 0.02  # of the memory is free
STALLED = 0.1  # of the time


def how_it_ended(code: int) -> str:
    if code == 0:
        return "the process ended with status 0 before its script did (os._exit, os.exec of another program)"
    if code > 0:
        return f"the process ended with status {code}"
    return f"the process ended by signal {-code} ({signal.strsignal(-code)})"


def was_killed(code: int) -> bool:
    return code == -signal.SIGKILL


def memory_is_short(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether processes get on slowly or not at all for want of memory. Linux kills none at first: it drops
    the pages of their code, and reads them again and again."""
    free, total = _host_memory(proc, cgroups)
    return free < SHORT * total or _stalled_for_memory(proc) > STALLED


def who_holds_memory(
    pids: Iterable[int], proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> str:
    """The arithmetic of memory that ran out, of the ranks whose processes are left."""
    free, total = (size / 2**30 for size in _host_memory(proc, cgroups))
    held = [size for pid in pids if (size := _private_bytes(pid, proc))]
    of_each = sum(held) / max(len(held), 1) / 2**30
    ranks = (
        f"{len(held)} running ranks hold {of_each:.1f} GiB each that they share with nobody, " if held else ""
    )
    return f"{ranks}{free:.1f} GiB of this machine's {total:.1f} GiB are free now"


def _host_memory(proc: Path, cgroups: Path) -> tuple[float, float]:
    """Bytes that are free, and all: of the machine or, if less, of the container."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    kib = {line[0]: int(line[1]) for line in lines}
    free, total = kib["MemAvailable:"] << 10, kib["MemTotal:"] << 10
    try:
        limit = int((cgroups / "memory.max").read_text())
        used = int((cgroups / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroups / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such container, or one without a limit ("max")
        return free, total
    return min(free, limit - used + int(statistics.get("inactive_file", 0))), min(total, limit)


def _stalled_for_memory(proc: Path) -> float:
    """The share of the last minute in which every process waited for memory (Linux' PSI)."""
    try:
        full = (proc / "pressure" / "memory").read_text().rpartition("full ")[2]
        return float(full.partition("avg60=")[2].split()[0]) / 100
    except (OSError, ValueError, IndexError):
        return 0.0  # a kernel that does not tell


def _private_bytes(pid: int, proc: Path) -> int:
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def require_room(directory: Path) -> None:
    """Raises OSError where a rank could not go on recording: no fault of the job."""
    free = shutil.disk_usage(directory).free
    if free < RECORDED_AT_A_TIME:
        raise OSError(
            errno.ENOSPC,
            f"No space left on device: {free / 2**20:.2f} MiB free where ranks record, "
            f"{RECORDED_AT_A_TIME >> 20} MiB at a time; make room or set TMPDIR",
            str(directory),
        )


def cpu_ticks(pid: int) -> int:
    """User and system time of a process and its ended children, in clock ticks (proc(5))."""
    return _ticks(_status(Path(f"/proc/{pid}/stat")))


def cpu_ticks_of_started(pids: Iterable[int]) -> int:
    """The same of all that the processes have started and that lives, however far down."""
    of = {int(path.parent.name): _status(path) for path in Path("/proc").glob("[0-9]*/stat")}
    waiting, found = set(pids), set[int]()
    while waiting:
        waiting = {pid for pid, status in of.items() if status and int(status[1]) in waiting} - found
        found |= waiting
    return sum(_ticks(of[pid]) for pid in found)


def disk_bytes(pid: int) -> int:
    """What a process has had read from a disk, a library's pages among it, and written to one (proc(5))."""
    told = dict(line.split(": ") for line in _told(Path(f"/proc/{pid}/io")).splitlines())
    return int(told.get("read_bytes", 0)) + int(told.get("write_bytes", 0))


def rests(pid: int) -> int:
    """How often a thread of a process has gone to sleep by itself (voluntary context switches, proc(5))."""
    tasks = (_told(path) for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(told.partition("\nvoluntary_ctxt_switches:")[2].partition("\n")[0] or 0) for told in tasks)


def _told(path: Path) -> str:
    """Nothing, where the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _status(path: Path) -> list[str]:
    """The fields of a process behind its name; none where it has ended."""
    return _told(path).rpartition(")")[2].split()


def _ticks(status: list[str]) -> int:
    return sum(int(field) for field in status[11:15]) * 100 // os.sysconf("SC_CLK_TCK")
