"""Launch: a `Job` comes in, its ranks run on virtual devices, a `Run` with their traces goes out.

A fork server pays for the heavy imports once; every rank is forked from it, pinned to a core, watched through the
control file, and stopped when its iterations repeat.
The room knows nothing of durations, and nothing of searches.
"""

from maya.launch.environment import LaunchError, emulator_library
from maya.launch.forkserver import ForkServer
from maya.launch.types import Job, OutOfMemory, Run

__all__ = ["ForkServer", "Job", "LaunchError", "OutOfMemory", "Run", "emulator_library"]
