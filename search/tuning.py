"""Ray Tune runs the trials of a `Search`: a searcher that hands them out, a trainable that judges them.

Actors are reused, so a judge (and the fork server it may hold) is opened once a worker, not once a trial.
Tune's own experiment files are thrown away; the journal is the record.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import logging
import os
import platform
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

_QUIET = {  # read by Ray when it is imported and by the processes it starts
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_WARN_THRESHOLD_S": "60",
}
for _name, _value in _QUIET.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402
from ray import tune  # noqa: E402
from ray.tune.search import Searcher  # noqa: E402

from maya.errors import NO_ROOM  # noqa: E402
from maya.estimate.recordings import ScriptTimes  # noqa: E402
from maya.search.cores import NodeCores  # noqa: E402
from maya.search.driver import Search  # noqa: E402
from maya.search.together import Together  # noqa: E402
from maya.search.types import Assignment, Judge, JudgeFactory, Outcome, Recordings  # noqa: E402
from maya.simulate.types import Prediction  # noqa: E402

_DEATHS = 5  # of workers, after which their trial has failed
# Before a trial whose worker died is tried again, twice as long each time: for as long as a node's death is not known,
# what is sent there dies in no time.
_PAUSE_SECONDS = 0.5
_OBJECT_STORE_BYTES = 100 * 2**20  # assignments and outcomes are small


def run_search(
    search: Search,
    judges: JudgeFactory,
    concurrency: int,
    address: str | None = None,
    recordings: Recordings | None = None,
) -> ScriptTimes | None:
    """Drive `search` to its end, `concurrency` trials at a time; with `recordings` those that fit are then judged once
    more, by all that these tell of the script, which is returned. Raises OSError when a disk is full, here or at a
    worker, and what `search` raises."""
    adapter = _SearchAdapter(search)
    with _ray(concurrency, address), tempfile.TemporaryDirectory(prefix="maya-tune-") as scratch:
        trainable = tune.with_parameters(_JudgeTrainable, judges=judges, concurrency=concurrency)
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            tune_config=tune.TuneConfig(
                search_alg=adapter,
                num_samples=-1,
                max_concurrent_trials=concurrency,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                storage_path=scratch,
                name="search",
                verbose=0,
            ),
        )
        tuner.fit()
        if adapter.failure is not None:
            raise adapter.failure
        return Together(search, recordings, adapter.nodes).run() if recordings else None


@contextlib.contextmanager
def _ray(concurrency: int, address: str | None) -> Iterator[None]:
    """A Ray of our own on this machine, or the one at `address`."""
    for name in ("ray", "ray.tune", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    here, scratch = Path.cwd(), contextlib.ExitStack()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address:
        ray.init(address=address, **quiet)
    else:
        # Ray puts the directory it starts in on its workers' path; a checkout of Maya there would be imported
        # in place of the installed package.
        os.chdir(scratch.enter_context(tempfile.TemporaryDirectory(prefix="maya-ray-")))
        ray.init(
            num_cpus=max(concurrency, os.cpu_count() or 1),
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",  # works without a network
            **quiet,
        )
    os.chdir(here)
    try:
        yield
    finally:
        ray.shutdown()
        scratch.close()


class _SearchAdapter(Searcher):
    """Tune's view of a `Search`; lives in the driver process."""

    def __init__(self, search: Search) -> None:
        super().__init__()
        self._search = search
        self._given: dict[str, Assignment] = {}  # by Tune's trial id
        # When to try a trial whose worker died again; its number, as no two fall due together.
        self._again: list[tuple[float, int, Assignment]] = []
        self._deaths: Counter[int] = Counter()  # of workers, by trial
        self.nodes: dict[int, str] = {}  # that judged a trial, and may have its recording
        self.failure: Exception | None = None  # ends the search; Tune goes on after what a searcher raises

    def suggest(self, trial_id: str) -> Any:
        assignment = None
        try:
            assignment = self._next() if self.failure is None else None
        except Exception as failure:
            self.failure = failure
        if assignment is None:
            return Searcher.FINISHED if self._search.ended or self.failure else None
        self._given[trial_id] = assignment
        return {"assignment": asdict(assignment)}

    def _next(self) -> Assignment | None:
        if self._again and self._again[0][0] <= time.monotonic() and not self._search.ended:
            return heapq.heappop(self._again)[2]
        return self._search.next()

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A trial has one result, its last."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        assignment = self._given.pop(trial_id, None)
        if assignment is None:
            return
        try:
            self._finish(assignment, None if error else result)
        except Exception as failure:
            self.failure = failure

    def _finish(self, assignment: Assignment, result: dict[str, Any] | None) -> None:
        if result and "no_room" in result:
            raise OSError(errno.ENOSPC, result["no_room"])  # says nothing of the configuration
        if result and "outcome" in result:
            self.nodes[assignment.trial] = result["node"]
            self._search.finish(assignment.trial, Outcome(**json.loads(result["outcome"])))
            return
        self._deaths[assignment.trial] += 1
        if (deaths := self._deaths[assignment.trial]) < _DEATHS:
            pause = _PAUSE_SECONDS * 2 ** (deaths - 1)
            heapq.heappush(self._again, (time.monotonic() + pause, assignment.trial, assignment))
            return
        message = f"the worker that ran it died {_DEATHS} times"
        self._search.finish(assignment.trial, Outcome("FAILED", {"verdict": "FAILED", "message": message}))

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its searcher for a restore of its own, which nothing here uses."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """The journal is the record."""

    def restore(self, checkpoint_path: str) -> None:
        """The journal is the record."""


class _JudgeTrainable(tune.Trainable):
    """One judge, in a worker process, for one assignment after the other."""

    def setup(self, config: dict[str, Any], judges: JudgeFactory | None = None, concurrency: int = 1) -> None:
        assert judges is not None, "given by tune.with_parameters"
        self._judges = judges
        self._cores = NodeCores(concurrency)
        self._open = contextlib.ExitStack()
        self._judge: Judge | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        return True

    def step(self) -> dict[str, Any]:
        given = self.config["assignment"]
        began = time.monotonic()
        try:
            self._judge = self._judge or self._open.enter_context(self._judges())
            with self._cores.lease() as cores:
                assignment = Assignment(given["trial"], tuple(given["argv"]), given["world"], cores)
                prediction = self._judge(assignment)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                return {"no_room": f"{platform.node()}: {error}", "done": True}
            prediction = Prediction("FAILED", message=traceback.format_exc())
        outcome = Outcome.of(prediction, time.monotonic() - began)
        node = ray.get_runtime_context().get_node_id()
        return {"outcome": json.dumps(asdict(outcome)), "node": node, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """A trial is one step; there is nothing to go on from."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """See `save_checkpoint`."""

    def cleanup(self) -> None:
        self._open.close()
