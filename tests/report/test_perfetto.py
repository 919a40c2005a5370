"""Against the Trace Event Format: required keys, phases, order within a track, names of processes and tracks."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import pytest

from maya.clusters import load
from maya.report import write_perfetto
from maya.trace.types import RecordKind

REQUIRED = {
    "X": {"ts", "dur", "tid"},
    "M": {"args"},
    "C": {"ts", "args"},
    "i": {"ts", "tid", "s"},
    "s": {"ts", "tid", "id"},
    "f": {"ts", "tid", "id", "bp"},
}


@pytest.fixture(scope="module")
def events(sample, tmp_path_factory):
    path = tmp_path_factory.mktemp("perfetto") / "trace.json"
    write_perfetto(sample.trace, sample.timeline, path, sample.estimates, load("dgx-h100").device)
    return json.loads(path.read_text())["traceEvents"]


def test_every_event_has_the_keys_its_phase_requires(events):
    for event in events:
        assert {"ph", "pid", "name"} <= event.keys()
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0


def test_slices_of_a_track_are_in_order_and_do_not_overlap(events):
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    for slices in tracks.values():
        for (ts, dur), (following, _) in pairwise(slices):
            assert following >= ts + dur - 1e-6


def test_a_process_a_rank_and_a_named_track_a_stream(events):
    names = ("process_name", "thread_name")
    named = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] in names}
    assert named[0, None] == "rank 0 (and 1 alike)" and named[2, None] == "rank 2 (and 1 alike)"
    assert {named[0, tid] for tid in (0, 1, 8, 10)} == {"host", "default stream", "stream 7", "stream 9"}
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    assert used <= named.keys()


def test_multiprocessors_in_use_are_a_counter_of_each_rank(sample, events):
    counted = [event for event in events if event["ph"] == "C" and event["pid"] == 0]
    assert [event["ts"] for event in counted] == [1000.0 * number for number in range(120)]
    assert all(0 <= event["args"]["value"] <= 1 for event in counted)
    assert max(event["args"]["value"] for event in counted) == 1


def test_every_device_operation_of_every_iteration_is_there(sample, events):
    work = sum(int((rank.records["operation"] >= 0).sum()) for rank in sample.trace.ranks)
    slices = [event for event in events if event["ph"] == "X" and event["tid"] > 0]
    assert len(slices) == work * len(sample.timeline.iteration_end_ns)


def test_slices_carry_shape_bytes_and_provenance(events):
    gemm = next(event for event in events if event["name"].startswith("GEMM"))
    assert gemm["args"]["m"] == 4096 and gemm["args"]["operator"] == "aten::addmm"
    assert gemm["args"]["provenance"] == "learned"
    collective = next(event for event in events if event["name"].startswith("all_reduce"))
    assert collective["args"]["bytes"] == 4 << 20 and collective["cat"] == "communication"


def test_host_waits_are_slices_of_the_host_track(events):
    waits = {event["name"] for event in events if event.get("cat") == "wait"}
    assert waits == {"cudaDeviceSynchronize", "wait for the copy", "wait for the collective"}


def test_host_slices_are_as_long_as_the_clusters_host_works(sample, events):
    """Not as the reference host does, which is twice as fast."""
    own = sample.timeline.ranks[0]
    works = sum(event["dur"] for event in events if event["pid"] == own.rank and event.get("cat") == "host")
    iterations = len(sample.timeline.iteration_end_ns)
    assert works == pytest.approx(iterations * own.host_ns.sum() / 1000, rel=1e-3)


def test_arrows_lead_from_recorded_work_to_the_work_that_waits(sample, events):
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    waits = sum(
        int((rank.records["kind"] == RecordKind.STREAM_WAIT_EVENT).sum()) for rank in sample.trace.ranks
    )
    assert starts.keys() == ends.keys() and len(starts) == waits * len(sample.timeline.iteration_end_ns)
    assert all(starts[number]["ts"] <= ends[number]["ts"] for number in starts)


def test_name_ending_in_gz_is_compressed(sample, tmp_path):
    write_perfetto(sample.trace, sample.timeline, tmp_path / "t.json.gz")
    with gzip.open(tmp_path / "t.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]
