"""What jobs of one script had in common is taken to be so in those that follow: fewer ranks run, and not as long."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from maya.launch.forkserver import ForkServer
from maya.launch.lessons import Lesson, Lessons, identity
from maya.launch.roles import Role
from maya.launch.types import Job, Known, Run

SEVERAL_JOBS = 3  # of one script: enough to take what they had in common to be so in those that follow
_INFERRING_PAYS = 4  # ranks, from which it takes fewer to infer classes than there are, once unchecked
_DOUBTED = 8  # every so manieth job, axes along which all ranks are alike are looked at again
_AS_BEFORE = "as in the jobs of this script before"


@dataclass
class _Taught:
    """By all jobs of a script so far."""

    enough: dict[Role, float]  # jobs that must have been alike along an axis
    steady: int = 0
    telling: int = 0
    trusting: int = 0
    alike: Counter[Role] = field(default_factory=Counter)  # in how many jobs since one where they were not

    def learn(self, lesson: Lesson) -> None:
        if lesson.steady is not None:
            self.steady = self.steady + 1 if lesson.steady else 0
        if lesson.telling is not None:
            self.telling = self.telling + 1 if lesson.telling else 0
        self.trusting += lesson.knew
        self.enough.update(dict.fromkeys(lesson.missed, math.inf))
        for role, alike in lesson.alike_along:
            self.alike[role] = self.alike[role] + 1 if alike else 0
            self.enough[role] *= 1 if alike else 2

    @property
    def roles_alike(self) -> frozenset[Role]:
        return frozenset(role for role, jobs in self.alike.items() if jobs >= self.enough[role])

    @property
    def doubted(self) -> bool:
        return (self.trusting + 1) % _DOUBTED == 0


class Trust:
    """What all of a script's first `jobs` had in common, so that later ones need not show it again.

    If they repeated from their second iteration on, a third is not waited for. If their ranks' first iterations told
    which of them work alike, and every check agreed, ranks are compared by the first, and not checked. If all ranks
    along an axis did nearly the same, only the first of these runs; each time that they did not, it takes twice as
    many jobs to be sure again, for what they differ in may be little in a longer one (an optimizer's shards in an
    iteration of more micro-batches).
    """

    def __init__(self, jobs: int = SEVERAL_JOBS, lessons: Path | None = None) -> None:
        """`lessons`: the file of the run, to which others may add."""
        self._jobs = jobs
        self._lessons = Lessons(lessons)
        self._taught: dict[str, _Taught] = defaultdict(lambda: _Taught(defaultdict(lambda: float(jobs))))

    def run(self, server: ForkServer, job: Job, directory: Path) -> Run:
        if job.iterations is not None:
            return server.run(job, directory)
        for lesson in self._lessons.new():
            self._taught[lesson.script].learn(lesson)
        script = identity(job)
        taught = self._taught[script]
        steady, telling = taught.steady >= self._jobs, taught.telling >= self._jobs
        roles = taught.roles_alike
        known = Known(telling, frozenset() if taught.doubted else roles)
        if job.ranks == "auto" and job.world >= _INFERRING_PAYS:
            job = replace(job, ranks="representatives")
        run = server.run(replace(job, iterations=1) if steady else job, directory, known)
        traced, inferring = run.status == "traced", job.launching == "representatives"
        much_to_tell = inferring and not telling and not known.alike_along
        self._lessons.add(
            Lesson(
                script,
                steady=(run.steady[0], run.period) == (1, 1) if traced and not steady else None,
                telling=run.first_iteration_tells if traced and much_to_tell else None,
                alike_along=tuple(run.alike_along.items()),
                knew=bool(roles),
                missed=frozenset(known.alike_along) if run.repeated else frozenset(),
            )
        )
        if traced and steady:
            run = run.with_note(f"its second iteration is taken as steady without a third, {_AS_BEFORE}")
        if traced and telling and inferring:
            run = run.with_note(f"first iterations tell which ranks work alike, unchecked, {_AS_BEFORE}")
        return run
