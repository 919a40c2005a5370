"""In come rank traces of a launch; out goes a `JobTrace`: one steady iteration of each unique rank,
communicators joined, every rank in a class, also as files (`write_job`, `read_job`).
Which calls ran on which stream is known here; how long anything takes is not.
"""

from maya.trace.collate import collate
from maya.trace.format import RawRank, TraceError, read_rank
from maya.trace.period import find_period, find_repetition
from maya.trace.store import holds_job, read_job, write_job

__all__ = [
    "RawRank",
    "TraceError",
    "collate",
    "find_period",
    "find_repetition",
    "holds_job",
    "read_job",
    "read_rank",
    "write_job",
]
