"""The judge of a real search: a prediction of the script with a configuration's arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from maya.clusters.types import Cluster
from maya.estimate import Reuse
from maya.estimate.recordings import Recording, ScriptTimes
from maya.launch.trust import Trust
from maya.launch.types import Job
from maya.search.types import Assignment, Judge
from maya.simulate.types import Prediction
from maya.trace.types import JobTrace

if TYPE_CHECKING:
    from maya.predict import Judgement


@dataclass(frozen=True)
class ScriptJudges:
    """Opens judges of one script on one cluster; each holds a fork server of its own. Of what they recorded, the trace
    cache has the `maya.search.types.Recordings`."""

    script: str
    cluster: Cluster
    directory: str  # where the script runs
    module: bool = False
    timeout_s: float = 600.0
    cache: bool = True  # judge what is recorded of the same work already
    reuse: Reuse = field(default_factory=dict)  # what the space's lookups file tells
    lessons: Path | None = None  # the file of what trials told of the script, for those that follow

    def __call__(self) -> AbstractContextManager[Judge]:
        return self._open()

    @contextmanager
    def _open(self) -> Iterator[Judge]:
        from maya.cache import TraceCache
        from maya.predict import Predictor  # loads the emulator: only where trials run

        cache = TraceCache.default() if self.cache else None
        trust = Trust(lessons=self.lessons)
        with Predictor(self.cluster, cache=cache, trust=trust, reuse=self.reuse) as predictor:

            def judge(assignment: Assignment) -> Prediction:
                os.chdir(self.directory)  # Tune moves a reused worker to a directory of each trial's
                if assignment.cores:
                    predictor.pin(assignment.cores)
                return predictor.predict(self.job(assignment)).prediction

            yield judge

    def recording(self, assignment: Assignment) -> Recording:
        return Recording.of(self._trace(assignment))

    def judge(self, assignment: Assignment, script: ScriptTimes) -> Prediction:
        return self.judgement(assignment, script).prediction

    def judgement(self, assignment: Assignment, script: ScriptTimes | None) -> Judgement:
        """Of what the cache has recorded. Raises LookupError where it has nothing (any more)."""
        from maya.predict import judge_trace

        judgement = judge_trace(self._trace(assignment), self.cluster, reuse=self.reuse, script=script)
        command = self.job(assignment).command
        return replace(judgement, prediction=replace(judgement.prediction, command=command))

    def _trace(self, assignment: Assignment) -> JobTrace:
        from maya.cache import TraceCache

        os.chdir(self.directory)
        cache = TraceCache.default() if self.cache else None
        if cache is None:
            raise LookupError("there is no trace cache")
        recorded = cache.find(self.job(assignment), self.cluster)
        if recorded is None or recorded.trace is None:
            raise LookupError("its trace is not in the cache")
        return recorded.trace

    def job(self, assignment: Assignment) -> Job:
        return Job(
            script=self.script,
            argv=assignment.argv,
            world=assignment.world,
            module=self.module,
            timeout_s=self.timeout_s,
        )
