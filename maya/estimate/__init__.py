"""The estimate room: distinct operations and a cluster come in, durations with their provenance go out.

Each answer is an exact measurement of that device, a model fitted on its measurements, or a roofline of its
datasheet with efficiencies borrowed from the nearest generation, in that order, and says which.
It must not know of traces' order, ranks' timelines or the simulation.
"""

from maya.estimate.embedding import UNIFORM, Reuse
from maya.estimate.estimator import Estimator
from maya.estimate.lookups import read_lookups
from maya.estimate.types import Estimates, Provenance

__all__ = ["UNIFORM", "Estimates", "Estimator", "Provenance", "Reuse", "read_lookups"]
