"""Samplers: each proposes points of a space in batches and learns from their losses.

Batches in, losses back; a sampler does not know how a loss comes about.
"""

from maya.search.algorithms.base import Sampler
from maya.search.algorithms.cma import CmaSampler
from maya.search.algorithms.grid import GridSampler
from maya.search.algorithms.random import RandomSampler
from maya.search.algorithms.tpe import TpeSampler
from maya.search.space import Space


def sampler_for(space: Space) -> Sampler:
    """The sampler that the space asks for."""
    seed = space.file.search.seed
    match space.file.search.algorithm:
        case "cma":
            return CmaSampler(space, seed)
        case "random":
            return RandomSampler(space, seed)
        case "grid":
            return GridSampler(space)
        case "tpe":
            return TpeSampler(space, seed)


__all__ = ["Sampler", "sampler_for"]
