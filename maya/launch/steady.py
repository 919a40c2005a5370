"""When do iterations repeat? Segments lie between optimizer steps; a few of them are one iteration."""

from __future__ import annotations

from collections.abc import Sequence

# A script may take several optimizer steps an iteration (a GAN takes two), or do something every second iteration; more
# steps than this are neither.
MAX_PERIOD = 8


def steady_period(hashes: Sequence[Sequence[int]], iterations: int) -> int | None:
    """The fewest segments after which every rank's stream repeats, seen for `iterations` segments in a row, and twice.

    `hashes[r]` are the segment hashes of rank r from its first step on, all of one length. The first segment holds
    initialisation and never counts. Of periods longer than MAX_PERIOD only those are looked for that `iterations` hold
    twice. Of several iterations there are no fewer than there were unlike ones before: of batches of unlike lengths two
    in a row are alike by chance. None while no period shows.
    """
    for period in range(1, max(MAX_PERIOD, iterations // 2) + 1):
        times = repetitions(hashes, period)
        wanted = max(min(iterations, 2), -(-iterations // period))
        if times >= wanted and (iterations < 2 or times * period >= _most_unlike(hashes, times * period)):
            return period
    return None


def _most_unlike(hashes: Sequence[Sequence[int]], repeated: int) -> int:
    """Different segments of a rank between the first one and the last `repeated`."""
    return max(len(set(rank[1 : len(rank) - repeated])) for rank in hashes)


def repetitions(hashes: Sequence[Sequence[int]], period: int) -> int:
    """How often in a row the last `period` segments of every rank's stream have been seen, the first one left out."""
    most = (len(hashes[0]) - 1) // period
    return min(_repetitions(rank[len(rank) - period * most :], period) for rank in hashes) if most else 0


def steady_steps(hashes: Sequence[Sequence[int]], period: int) -> tuple[int, int]:
    """(first, last]: the steps whose segments have been seen to repeat so, up to the last of all."""
    last = len(hashes[0])
    return last - period * repetitions(hashes, period), last


def longest_period(hashes: Sequence[Sequence[int]]) -> int | None:
    """The fewest segments that repeat, twice at the least, for the most segments up to the last. None where none do."""
    repeating = [
        (times * period, -period)
        for period in range(1, (len(hashes[0]) - 1) // 2 + 1)
        if (times := repetitions(hashes, period)) >= 2
    ]
    return -max(repeating)[1] if repeating else None


def seen_at_most(hashes: Sequence[Sequence[int]], iterations: int) -> tuple[int, int] | None:
    """(the `steady_period` of the most iterations for which there is one, these iterations); None of not even one."""
    for fewer in range(iterations, 0, -1):
        if (period := steady_period(hashes, fewer)) is not None:
            return period, fewer
    return None


def whole_iterations(steps: int, period: int) -> int:
    """Steps of the whole iterations that `steps` take, the last one to its end; of one at the least."""
    return max(1, -(-steps // period)) * period


def _repetitions(tail: Sequence[int], period: int) -> int:
    last = len(tail) - 1
    alike = next(
        (last - at for at in range(last, period - 1, -1) if tail[at] != tail[at - period]), len(tail) - period
    )
    return 1 + alike // period


def classes(hashes: Sequence[int]) -> list[int]:
    """For each, the first place that has the same hash."""
    first: dict[int, int] = {}
    return [first.setdefault(value, place) for place, value in enumerate(hashes)]
