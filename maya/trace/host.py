"""What a call costs the host when nothing disturbs it: the like calls of all iterations and ranks tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Other processes of this machine only ever add to a call's time: caches gone cold, a core shared, its other thread
# busy. The least of many like calls is what they cost alone; of the same job recorded again and again it varies half as
# much as their lowest tenth. The least of few lies above it, as far as that of as few of many does; that of more below
# it, so of those it is what the least of _MANY of them is expected to be.
_MANY = 256
_EACH = 8  # calls for each of those few, at the least, to tell how far
_ENOUGH = 8  # calls alike; of fewer, each keeps its own time, less what disturbs a call alone
_FEWER = 2 ** np.arange(9)  # 1 to _MANY
_SAMPLES = 4_000_000  # calls looked at, spread evenly over ranks; more tell nothing new
STRIDE = np.int64(0x9E3779B97F4A7C15 - (1 << 64))  # odd: a hash of several calls multiplies by it


def calls_alike(kind: NDArray[np.integer], operation: NDArray[np.integer]) -> NDArray[np.int64]:
    """[records] What equals for calls of the same kind and operation after the same kind and operation: the host's
    time before them is that of the same Python."""
    own = operation.astype(np.int64) * 64 + kind
    before = np.concatenate([[-1], own[:-1]]) if len(own) else own
    with np.errstate(over="ignore"):
        alike: NDArray[np.int64] = own * STRIDE ^ before
    return alike


def places(
    ascending: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """(where each of `wanted` stands in `ascending`, which is not empty; whether it does)"""
    place = np.searchsorted(ascending, wanted).clip(max=len(ascending) - 1)
    return place, ascending[place] == wanted


@dataclass(frozen=True)
class UndisturbedTimes:
    """What calls that are alike cost the host alone."""

    alike: NDArray[np.int64]  # [kinds] ascending
    host_ns: NDArray[np.int64]  # [kinds]
    enough: NDArray[np.bool_]  # [kinds] there are enough of them to tell
    disturbed: float  # a call's usual time over what it costs alone

    @staticmethod
    def of(samples: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> UndisturbedTimes:
        """From (alike, host_ns), both [records], of any number of ranks and iterations."""
        share = _SAMPLES // max(len(samples), 1)
        alike = np.concatenate([kinds[-share:] for kinds, _ in samples])
        host_ns = np.concatenate([times[-share:] for _, times in samples])
        order = np.lexsort((host_ns, alike))
        kinds, first, count = np.unique(alike[order], return_index=True, return_counts=True)
        ascending = host_ns[order]
        above = _least_of_fewer(ascending, first, count)
        least = _expected_least(ascending, first, count, _MANY) / np.interp(
            np.log(count), np.log(_FEWER), above
        )
        return UndisturbedTimes(kinds, least.astype(np.int64), count >= _ENOUGH, float(above[0]))

    def applied(self, alike: NDArray[np.int64], host_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """[records] What their like cost alone."""
        if not len(self.alike):
            return host_ns
        place, known = places(self.alike, alike)
        told = known & self.enough[place]
        result: NDArray[np.int64] = np.where(told, self.host_ns[place], host_ns / self.disturbed)
        return result.astype(host_ns.dtype)


def _least_of_fewer(
    ascending: NDArray[np.int64], first: NDArray[np.int64], count: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[_FEWER] How far the least of so few calls lies above the least of _MANY, as the kinds of which there are enough
    tell it for each doubling; 1 where none does.

    `ascending` [records] holds the times of one kind after another, each from `first` on, `count` long.
    """
    above = np.ones(len(_FEWER))
    for at in reversed(range(len(_FEWER) - 1)):
        fewer = int(_FEWER[at])
        enough = count >= min(_EACH * fewer, _MANY)
        least, least_of_twice = (
            (_expected_least(ascending, first, count, of) * count)[enough].sum() for of in (fewer, 2 * fewer)
        )
        above[at] = above[at + 1] * (least / least_of_twice if least_of_twice else 1.0)
    return above


def _expected_least(
    ascending: NDArray[np.int64], first: NDArray[np.int64], count: NDArray[np.int64], of: int
) -> NDArray[np.int64]:
    """[kinds] The least that is expected of `of` of each kind's times: where one of `of` + 1 lies below."""
    least: NDArray[np.int64] = ascending[first + (count - 1) // (of + 1)]
    return least
