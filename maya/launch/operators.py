"""Has the emulator observe PyTorch's operators with their shapes, and told what that costs a script's host time."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable

from maya.launch.environment import LaunchError

ROUNDS = 60
# Where the work's own tensors lie can make it half as slow again: it is done in several places. Others' work on this
# machine comes and goes in bursts of tens of ms, which time between places tells, and of seconds, which RECENT does.
PLACES = 5
APART_SECONDS = 0.03
# Times that the speed was measured at, of which the fastest counts: before and after each run, so ten runs.
RECENT = 20
# Undisturbed, by a core of an AMD EPYC with 32 MiB of L3 cache a pair: the host whose `host_speed` is 1.
REFERENCE_WORK_NS = 160_000


def observe(wanted: bool = True) -> None:
    """From here on every operator of this process and its forks is observed, or none.

    Raises LaunchError when this PyTorch cannot be asked (emulator/core/observer.cpp).
    """
    if ctypes.CDLL(None).maya_observe_operators(int(wanted)) != 0:
        raise LaunchError("this PyTorch does not announce its operators: Maya runs PyTorch 2.6 and newer")


class HostSpeed:
    """How fast a thread of this machine is, over the reference, and what observing an operator costs it.

    The fastest of what was measured recently counts: recorded host time, too, is what calls took undisturbed
    (maya/trace), and a machine that others use is slow for seconds on end. Not to be made before PyTorch is imported.
    """

    def __init__(self) -> None:
        self._places = [_varied_work() for _ in range(PLACES)]
        self._recent: deque[int] = deque(maxlen=RECENT)  # ns

    def calibrate(self) -> None:
        """Measures what observing an operator costs the host time that the emulator records, and has the records of
        this process and of its forks leave it out: between the least that work took with and without in ROUNDS of
        both. Less of them than that may all be disturbed, and would have too much left out."""
        import torch

        silent, observed = [], []
        with torch.no_grad():
            for work in self._places:
                time.sleep(APART_SECONDS)
                work()
                for _ in range(ROUNDS // PLACES):
                    silent.append(_account(work)[1])
                    observe()
                    operators, ns = _account(work)
                    observed.append(ns)
                    observe(False)
        cost = max(round((min(observed) - min(silent)) / operators), 0)
        ctypes.CDLL(None).maya_set_range_cost(ctypes.c_int64(cost))
        self._recent.append(min(silent))

    def measure(self) -> float:
        """Once more, in a few ms; returns the fastest of the RECENT times."""
        import torch

        with torch.no_grad():
            self._recent.append(min(_account(work)[1] for work in self._places for _ in range(2)))
        return REFERENCE_WORK_NS / max(min(self._recent), 1)


def _varied_work() -> Callable[[], object]:
    """Some 250 operators, one unlike the other: one repeated would find its code in the processor's caches, which
    a training script does not. On the host: observing costs the same there, and no device may be touched before
    the fork.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    tokens, labels, logits = torch.ones(2, 3, 16), torch.zeros(3, dtype=torch.long), torch.ones(3, 7)
    parameters = [torch.ones(4) for _ in range(8)]

    def work() -> None:
        hidden = layer(tokens).transpose(0, 1).contiguous().view(-1)
        hidden.double().float().sum()
        torch._foreach_add_(parameters, 1.0)
        torch.cat(parameters)[:4].unsqueeze(0).expand(2, 4).mul(2).softmax(-1).argmax()
        functional.cross_entropy(logits, labels)

    return work


def _account(work: Callable[[], object]) -> tuple[int, int]:
    """Operators observed while this thread does `work`, and its host time in ns (emulator/core/observer.cpp)."""
    totals = []
    for call in (None, work):
        if call is not None:
            call()
        ns, operators = ctypes.c_int64(), ctypes.c_uint64()
        ctypes.CDLL(None).maya_thread_account(ctypes.byref(ns), ctypes.byref(operators))
        totals.append((operators.value, ns.value))
    (operators_before, ns_before), (operators_after, ns_after) = totals
    return operators_after - operators_before, ns_after - ns_before
