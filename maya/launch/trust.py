"""What jobs of one script had in common is taken to be so in those that follow: fewer ranks run, and not as long."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from maya.launch.forkserver import ForkServer
from maya.launch.roles import Role
from maya.launch.types import Job, Known, Run

SEVERAL_JOBS = 3  # of one script: enough to take what they had in common to be so in those that follow
_INFERRING_PAYS = 4  # ranks, from which it takes fewer to infer classes than there are, once unchecked
_DOUBTED = 8  # every so manieth job, axes along which all ranks are alike are looked at again
_AS_BEFORE = "as in the jobs of this script before"


class Trust:
    """What all of a script's first `jobs` had in common, so that later ones need not show it again.

    If they repeated from their second iteration on, a third is not waited for. If their ranks' first iterations told
    which of them work alike, and every check agreed, ranks are compared by the first, and not checked. If all ranks
    along an axis did nearly the same, only the first of these runs; each time that they did not, it takes twice as
    many jobs to be sure again, for what they differ in may be little in a longer one (an optimizer's shards in an
    iteration of more micro-batches).
    """

    def __init__(self, jobs: int = SEVERAL_JOBS) -> None:
        self._jobs = jobs
        self._begin(("", False))

    def _begin(self, script: tuple[str, bool]) -> None:
        self._script = script
        self._steady = 0
        self._telling = 0
        self._trusting = 0
        self._alike: Counter[Role] = Counter()  # in how many jobs since one where they were not
        self._enough: dict[Role, float] = defaultdict(lambda: self._jobs)  # of these

    def run(self, server: ForkServer, job: Job, directory: Path) -> Run:
        if job.iterations is not None:
            return server.run(job, directory)
        if (job.script, job.module) != self._script:
            self._begin((job.script, job.module))
        if job.ranks == "auto" and job.world >= _INFERRING_PAYS:
            job = replace(job, ranks="representatives")
        steady, telling = self._steady >= self._jobs, self._telling >= self._jobs
        alike = self._roles_alike()
        asked = replace(job, iterations=1) if steady else job
        run = server.run(asked, directory, Known(telling, alike))
        self._learn_axes(run, alike)
        if run.status != "traced":
            return run
        if not steady:
            self._steady = self._steady + 1 if (run.steady[0], run.period) == (1, 1) else 0
        else:
            run = run.with_note(f"its second iteration is taken as steady without a third, {_AS_BEFORE}")
        if job.launching == "representatives":
            if telling:
                run = run.with_note(f"first iterations tell which ranks work alike, unchecked, {_AS_BEFORE}")
            elif not alike:  # else there was little to tell apart
                self._telling = self._telling + 1 if run.first_iteration_tells else 0
        return run

    def _roles_alike(self) -> frozenset[Role]:
        alike = {role for role, jobs in self._alike.items() if jobs >= self._enough[role]}
        self._trusting += bool(alike)
        return frozenset() if self._trusting % _DOUBTED == 0 else frozenset(alike)

    def _learn_axes(self, run: Run, trusted: frozenset[Role]) -> None:
        if run.repeated:
            self._enough.update(dict.fromkeys(trusted, math.inf))
        for role, alike in run.alike_along.items():
            self._alike[role] = self._alike[role] + 1 if alike else 0
            self._enough[role] *= 1 if alike else 2
