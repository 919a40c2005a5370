"""The control file: what the launcher and every rank share (emulator/core/trace_format.h)."""

from __future__ import annotations

import mmap
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAGIC = b"MAYACTL1"
VERSION = 1
PAGE = 4096
SEGMENT_RING = 64
MAILBOX_BYTES = 1 << 30  # sparse: only messages that are sent take memory


class RankState(IntEnum):
    ABSENT = 0
    RUNNING = 1
    PAUSED = 2
    WAITING = 3
    ENDED = 4
    EXITED = 5


HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("world", "<u4"),
        ("step_limit", "<u8"),
        ("silent_from", "<u8"),
        ("mismatch_count", "<u8"),
        ("mismatch", "S2048"),
    ]
)

SLOT = np.dtype(
    {
        "names": ["state", "representative", "steps", "segment_hash", "wait_site"],
        "formats": ["<u4", "<u4", "<u8", ("<u8", SEGMENT_RING), "S256"],
        "offsets": [0, 4, 8, 16, 16 + 8 * SEGMENT_RING],
        "itemsize": 1024,
    }
)


class Control:
    """A job's control file, created by the launcher and mapped by every rank."""

    def __init__(self, path: Path, world: int) -> None:
        self.path = path
        self.world = world
        size = PAGE + world * SLOT.itemsize + MAILBOX_BYTES
        with path.open("wb+") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._header: NDArray[np.void] = np.frombuffer(self._map, HEADER, 1)
        self._slots: NDArray[np.void] = np.frombuffer(self._map, SLOT, world, PAGE)
        self._slots["representative"] = np.arange(world)
        self._header["version"], self._header["world"] = VERSION, world
        self._header["magic"] = MAGIC

    def close(self) -> None:
        """Unmaps and removes the file; traces do not need it."""
        del self._header, self._slots
        self._map.close()
        self.path.unlink(missing_ok=True)

    @property
    def step_limit(self) -> int:
        return int(self._header["step_limit"][0])

    @step_limit.setter
    def step_limit(self, steps: int) -> None:
        self._header["step_limit"] = steps

    def observe_no_more(self, steps: int) -> None:
        """Ranks that rest at so many steps do not observe PyTorch's operators from there on."""
        self._header["silent_from"] = steps

    @property
    def mismatch(self) -> str:
        """What two ranks called at the same place, when it was not the same thing; else empty."""
        if not self._header["mismatch_count"][0]:
            return ""
        return bytes(self._header["mismatch"][0]).decode(errors="replace")

    def state(self, rank: int) -> RankState:
        return RankState(int(self._slots["state"][rank]))

    def steps(self, rank: int) -> int:
        return int(self._slots["steps"][rank])

    def wait_site(self, rank: int) -> str:
        return bytes(self._slots["wait_site"][rank]).decode(errors="replace")

    def segment_hashes(self, rank: int) -> list[int]:
        """Hashes of the rank's segments 1..steps; needs steps <= SEGMENT_RING."""
        return [int(value) for value in self._slots["segment_hash"][rank][: self.steps(rank)]]

    def start(self, rank: int) -> None:
        """Others wait for what it sends from now on, though its process may take a while to come up."""
        self._slots["representative"][rank] = rank
        self._slots["state"][rank] = RankState.RUNNING

    def end(self, rank: int, representative: int) -> None:
        """`representative` answers for `rank` from now on."""
        self._slots["representative"][rank] = representative
        self._slots["state"][rank] = RankState.ENDED

    def answer_for_absent(self, representative: NDArray[np.int64]) -> None:
        """[world] Who answers for each rank that was not started."""
        absent = self._slots["state"] == RankState.ABSENT
        self._slots["representative"][absent] = representative[absent]

    def exited(self, rank: int) -> None:
        self._slots["state"][rank] = RankState.EXITED
