"""Profile: a script and this machine's GPU come in, measured durations of its operations go into a database.

The script runs twice: on a virtual device, which tells its operations as an estimate will ask for them, and on the real
one under PyTorch's profiler, which tells how long each kernel took; the two are matched operator by operator.
The room knows nothing of clusters beyond the one device, and nothing of how durations are used.
"""

from maya.profile.run import Profiled, profile

__all__ = ["Profiled", "profile"]
