from typing import Any

from numpy.typing import NDArray

ACTIVITIES: int
ONE: int
DEMAND_UNIT: int

def run(
    program: dict[str, NDArray[Any] | int],  # the fields of Program (core/program.h)
    results: dict[str, NDArray[Any]],  # those of Results
) -> tuple[
    int,  # events
    list[tuple[int, int, int]],  # rank, call, stream of who is stuck
    list[tuple[int, int, int, int]],  # begin, end, call, stretch of the critical path, last first
]: ...
