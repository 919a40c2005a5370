"""When do iterations repeat? Segments lie between optimizer steps; a few of them are one iteration."""

from __future__ import annotations

from collections.abc import Sequence

# A script may take several optimizer steps an iteration (a GAN takes two), or do something every second iteration; more
# steps than this are neither.
MAX_PERIOD = 8


def steady_period(hashes: Sequence[Sequence[int]], iterations: int) -> int | None:
    """The fewest segments after which every rank's stream repeats, seen `iterations` times in a row.

    `hashes[r]` are the segment hashes of rank r from its first step on, all of one length. The first segment holds
    initialisation and never counts. None while no period shows.
    """
    steps = len(hashes[0])
    for period in range(1, MAX_PERIOD + 1):
        if period * iterations > steps - 1:
            return None
        if all(_repeats(rank[-period * iterations :], period) for rank in hashes):
            return period
    return None


def repetitions(hashes: Sequence[Sequence[int]], period: int) -> int:
    """How often in a row the last `period` segments of every rank's stream have been seen, the first one left out."""
    count = 1
    while steady_period(hashes, count + 1) == period:
        count += 1
    return count


def whole_iterations(steps: int, period: int) -> int:
    """Steps of the whole iterations that `steps` take, the last one to its end; of one at the least."""
    return max(1, -(-steps // period)) * period


def _repeats(tail: Sequence[int], period: int) -> bool:
    return all(tail[at] == tail[at - period] for at in range(period, len(tail)))


def classes(hashes: Sequence[int]) -> list[int]:
    """For each, the first place that has the same hash."""
    first: dict[int, int] = {}
    return [first.setdefault(value, place) for place, value in enumerate(hashes)]
