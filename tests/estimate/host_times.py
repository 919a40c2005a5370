"""What calls of a job take, for the tests of what disturbs them."""

from __future__ import annotations

import numpy as np

from maya.estimate.host import BEFORE, CallTimes, tally
from maya.trace.types import JobTrace

SOFTWARE = "CPython 3.11, PyTorch 2.11"


def times_of(job: JobTrace, recording: float = 0.1, script: float = 0.1, before: int = 0) -> CallTimes:
    """Of calls after so many others as BEFORE has of that number."""
    told = tally(job)
    alike, first = np.unique(told.alike[:, before], return_index=True)
    return CallTimes(SOFTWARE, alike, told.host_ns[first], recording, (script,) * len(BEFORE))


def host_s(job: JobTrace) -> float:
    return float(sum(rank.records["host_ns"].sum() for rank in job.ranks)) * 1e-9
