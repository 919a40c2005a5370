"""A search on a Ray cluster of several nodes (raylets on this machine), of which one dies."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maya.search.journal import NAME

PROGRAM = Path(__file__).with_name("search_program.py")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs of its own and two nodes that run a trial each."""
    monkeypatch.chdir(tmp_path)  # workers import from where their node was started: not from a checkout
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    made = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20},
    )
    try:
        made.nodes = [made.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
        yield made
    finally:
        made.shutdown()


def records(directory: Path) -> list[dict[str, Any]]:
    path = directory / NAME
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()[1:]]


def undisturbed(directory: Path) -> Any:
    """What the search finds when nothing is killed."""
    command = [sys.executable, "-P", str(PROGRAM), str(directory), "inline"]
    return found(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def found(printed: str) -> Any:
    return json.loads(printed.splitlines()[-1])


def nothing_is_lost_or_repeated(directory: Path, in_flight: int) -> None:
    """But for `in_flight` trials that were killed while they ran."""
    assert not [line for line in records(directory) if line["verdict"] == "FAILED"]
    points = [tuple(line["point"]) for line in records(directory)]
    assert points != []
    assert len(points) == len(set(points))
    runs = (directory / "judged").read_text().splitlines()
    judged = [line for line in records(directory) if line["verdict"] != "PRUNED"]
    assert len(runs) <= len(judged) + in_flight


def test_a_node_that_dies_loses_only_what_it_ran(tmp_path: Path, cluster: Any) -> None:
    expected = undisturbed(tmp_path / "undisturbed")
    directory = tmp_path / "search"
    command = [sys.executable, "-P", str(PROGRAM), str(directory), "ray", "0.1", cluster.address]
    search = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def kill_a_node() -> None:
        while len(records(directory)) < 8 and search.poll() is None:
            time.sleep(0.02)
        os.kill(cluster.nodes[0].all_processes["raylet"][0].process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    printed, _ = search.communicate(timeout=240)
    killer.join()
    assert found(printed) == expected
    nothing_is_lost_or_repeated(directory, in_flight=1)  # the one that the node took with it


def test_a_trial_that_kills_each_worker_fails_and_the_others_go_on(tmp_path: Path, cluster: Any) -> None:
    undisturbed(tmp_path / "undisturbed")
    judged = (tmp_path / "undisturbed" / "judged").read_text().splitlines()
    directory = tmp_path / "search"
    directory.mkdir()
    (directory / "deadly").write_text(judged[3])
    command = [sys.executable, "-P", str(PROGRAM), str(directory), "ray", "0.1", cluster.address]
    subprocess.run(command, check=True, timeout=240)
    (failed,) = [line for line in records(directory) if line["verdict"] == "FAILED"]
    deaths = (directory / "judged").read_text().splitlines().count(judged[3])
    assert failed["prediction"]["message"] == f"the worker that ran it died {deaths} times"
    assert len(records(directory)) > len(judged) / 2


class Victims:
    """A search on a cluster, its workers and its nodes, to be killed one at a time."""

    def __init__(self, directory: Path, cluster: Any) -> None:
        self.directory = directory
        self._cluster = cluster
        self._command = [sys.executable, "-P", str(PROGRAM), str(directory), "ray", "0.3", cluster.address]
        self.search = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def kill(self, victim: str) -> None:
        if victim == "driver":
            self.search.kill()
            self.search.communicate()
            self.search = self._start()
        elif victim == "worker":
            with contextlib.suppress(ProcessLookupError):  # it went with its node
                os.kill(int((self.directory / "worker").read_text()), signal.SIGKILL)
        else:
            node = self._cluster.nodes.pop(0)
            os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
            self._cluster.nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20))

    def wait_for(self, more: int) -> bool:
        """Until so many more trials are on record; False when the search ends first."""
        wanted = len(records(self.directory)) + more
        while len(records(self.directory)) < wanted:
            if self.search.poll() is not None:
                return False
            time.sleep(0.02)
        return True


def test_ten_kills_at_random_moments_lose_and_repeat_nothing(tmp_path: Path, cluster: Any) -> None:
    expected = undisturbed(tmp_path / "undisturbed")
    moments = random.Random(3)
    directory = tmp_path / "search"
    victims = Victims(directory, cluster)
    for victim in moments.sample(["driver", "worker", "raylet"] * 4, 10):
        before = records(directory)
        assert victims.wait_for(moments.randint(1, 3)), "the search ended before its last kill"
        time.sleep(moments.uniform(0.0, 0.3))
        victims.kill(victim)
        assert records(directory)[: len(before)] == before
    printed, _ = victims.search.communicate(timeout=300)
    assert found(printed) == expected
    nothing_is_lost_or_repeated(directory, in_flight=2 * 10)  # two at a time
