"""Keeps what a launch yielded: a `Job` and a cluster come in, the trace recorded of the same work before goes out.

An entry is found by what was asked (script, arguments, world, device, versions) and believed when the files and
the environment variables that its ranks had read are still the same.
The room must not know how a trace is recorded, and nothing of durations, networks or searches.
"""

from maya.cache.store import Recorded, TraceCache

__all__ = ["Recorded", "TraceCache"]
