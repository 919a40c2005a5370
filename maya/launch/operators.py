"""Has the emulator observe PyTorch's operators with their shapes."""

from __future__ import annotations

import ctypes

from maya.launch.environment import LaunchError


def observe(wanted: bool = True) -> None:
    """From here on every operator of this process and its forks is observed, or none.

    Raises LaunchError when this PyTorch cannot be asked (emulator/core/observer.cpp).
    """
    if ctypes.CDLL(None).maya_observe_operators(int(wanted)) != 0:
        raise LaunchError("this PyTorch does not announce its operators: Maya runs PyTorch 2.6 and newer")
