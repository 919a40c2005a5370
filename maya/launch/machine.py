"""What the machine that ranks run on says of them: how a process ended, whether memory and disk suffice, time used."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

RECORDED_AT_A_TIME = 1 << 20  # bytes by which a trace grows (emulator/core/trace_file.cpp)


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"the process ended with status {code}"
    if code != -signal.SIGKILL:
        return f"the process ended by signal {-code} ({signal.strsignal(-code)})"
    running = "what ranks keep on the host is real; --ranks representatives runs the fewest at once"
    return f"the process was killed, as Linux does where memory runs out ({_host_memory()}): {running}"


def _host_memory() -> str:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {line[0]: int(line[1]) for line in lines}
    free, total = kib["MemAvailable:"] / 2**20, kib["MemTotal:"] / 2**20
    return f"{free:.1f} GiB of this machine's {total:.1f} GiB are free now"


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
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15]) * 100 // os.sysconf("SC_CLK_TCK")
