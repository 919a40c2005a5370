import numpy as np
from numpy.typing import NDArray

ACTIVITIES: int

def run(
    *,
    action: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    stream: NDArray[np.uint32],
    link: NDArray[np.int32],
    count: NDArray[np.int32],
    host: NDArray[np.int64],
    duration: NDArray[np.int64],
    rank_begin: NDArray[np.uint32],
    stream_begin: NDArray[np.uint32],
    stream_flags: NDArray[np.uint8],
    transfers: NDArray[np.uint32],
    party_begin: NDArray[np.uint32],
    party_stream: NDArray[np.uint32],
    transfer_duration: NDArray[np.int64],
    events: int,
    iterations: int,
    queue_depth: int,
    launch_call: int,
    launch_latency: int,
    issued: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    iteration_end: NDArray[np.int64],
    activity: NDArray[np.int64],
) -> tuple[int, list[tuple[int, int, int]]]: ...
