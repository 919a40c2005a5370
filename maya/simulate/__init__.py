"""In come a `JobTrace`, a duration for each of its operations and a cluster; out go a `Timeline` (every
call's place in time) and a `Prediction` (iteration time, breakdown, utilisation).
The semantics are CUDA's (docs/simulation.md); where the durations came from is not known here.
"""

from maya.simulate.network import build_network
from maya.simulate.placement import place
from maya.simulate.simulation import simulate, simulate_without_host
from maya.simulate.summary import summarise
from maya.simulate.types import INSTANT, HostCosts, SimulationError

__all__ = [
    "INSTANT",
    "HostCosts",
    "SimulationError",
    "build_network",
    "place",
    "simulate",
    "simulate_without_host",
    "summarise",
]
