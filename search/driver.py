"""The search itself, without processes: it says what to run next and takes in what came of it.

Whatever order trials finish in, the search is the same function of space, seed and outcomes:

* trials are numbered as the sampler proposes them, and the sampler is told a batch when all of it is settled;
* whether a trial is pruned depends only on trials numbered before it, so one that a running trial may yet
  spare is held back until that one is done, while later ones go ahead;
* the stopper sees trials in the order of their numbers, and trials after the one it stops at do not count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from maya.report.labels import counted
from maya.search.algorithms import Sampler
from maya.search.dominance import Dominance
from maya.search.journal import Journal
from maya.search.objective import Objective
from maya.search.revisions import Revision
from maya.search.space import Point, Space
from maya.search.stopper import Stopper
from maya.search.types import Assignment, Outcome, Trial

_BATCHES_WITHOUT_NEWS = 1000  # a sampler that goes on repeating itself has nothing left to say


@dataclass
class Counts:
    """What became of the points a sampler proposed."""

    asked: int = 0
    duplicates: int = 0
    inadmissible: int = 0
    replayed: int = 0  # taken from the journal
    launched: int = 0  # whose script ran now
    reused: int = 0  # judged now, by a trace from the cache
    verdicts: Counter[str] = field(default_factory=Counter)
    together: int = 0  # trials judged once more, by all recordings
    alone: Counter[str] = field(default_factory=Counter)  # those that could not be, by the reason


class Search:
    """Drive with `next` and `finish` until `ended` says why it is over.

    `settled` is called once for each trial, when it is settled; the journal has it by then.
    """

    def __init__(
        self,
        space: Space,
        sampler: Sampler,
        objective: Objective,
        journal: Journal,
        settled: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.space = space
        self.objective = objective
        self.dominance = Dominance(space)
        self.counts = Counts()
        self.ended: str | None = None
        self._sampler = sampler
        self._journal = journal
        self._stopper = Stopper(space.file.stop, objective)
        self._settled = settled
        self._trials: list[Trial] = []
        self._number: dict[Point, int] = {}  # canonical point -> trial
        self._families: dict[Point, list[int]] = defaultdict(list)
        self._running: set[int] = set()
        self._batch: list[Point] = []
        self._open: list[int] = []  # trials of the batch that are not settled
        self._observed = 0  # trials the stopper has seen
        self._quiet = 0  # batches in a row that brought no new trial

    # -- the loop ----------------------------------------------------------------------------------------

    def next(self) -> Assignment | None:
        """The next configuration to judge; None when one has to finish first, or all is over."""
        number = self.replay()
        if number is None:
            return None
        self._running.add(number)
        return self.assignment(number)

    def replay(self) -> int | None:
        """Settles what the journal has, up to the next trial that has to run and may, which is returned."""
        while self.ended is None:
            number = self._first_runnable()
            if number is not None or self._open:
                return number
            self._turn_batch()
        return None

    def finish(self, number: int, outcome: Outcome) -> None:
        """Take in what a judge said of a trial that `next` handed out.

        One that ends after the search did is journalled, for a search that goes on from here, and no more.
        """
        self._running.discard(number)
        if self.ended is None:
            self.counts.reused += outcome.reused
            self.counts.launched += not outcome.reused
            self._settle(number, outcome)
        else:
            self._journal.record(replace(self._trials[number], outcome=outcome))

    def assignment(self, number: int) -> Assignment:
        point = self._trials[number].point
        return Assignment(number, self.space.argv(point), self.space.world(point))

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Settled trials that count, by number."""
        counted = self._trials[: self._observed] if self.ended else self._trials
        return tuple(trial for trial in counted if trial.verdict)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def unchanged(self) -> int:
        return self._stopper.unchanged

    def ranking(self) -> list[Trial]:
        """Trials that ran and fit, best first; equal ones in the order of their numbers."""
        found = [trial for trial in self.trials if trial.ran_and_fits]
        return sorted(
            found, key=lambda trial: (self.objective.better_first(trial.objective or 0.0), trial.number)
        )

    # -- once more, together -----------------------------------------------------------------------------

    def revise(self, outcomes: Mapping[int, Outcome | str], recordings: int = 0) -> None:
        """Takes what judges say once all trials are known, by so many `recordings` of the script, or why one says
        nothing; what follows from a trial follows. What an earlier part of the search said by more of them stands.
        The journal keeps what was said first."""
        self.counts.together, self.counts.alone = 0, Counter()
        revisions: dict[Point, Revision] = {}
        for number, said in {**{trial.number: "" for trial in self.ranking()}, **outcomes}.items():
            point = self._trials[number].point
            now = None if isinstance(said, str) else Revision(said, recordings)
            if revision := self._journal.revisions.best(point, now):
                revisions[point] = revision
                self._trials[number] = self._judged(number, revision.outcome)
            elif isinstance(said, str) and said:
                self.counts.alone[said] += 1
        self.counts.together = len(revisions)
        for trial in self.trials:
            if trial.pruning:
                self._trials[trial.number] = self._implied(trial)
        self._journal.revisions.keep(revisions)

    # -- batches -----------------------------------------------------------------------------------------

    def _turn_batch(self) -> None:
        """Tell the sampler of the batch that is done and ask for the next."""
        if self._batch:
            self._sampler.tell(self._batch, [self._loss(point) for point in self._batch])
        if len(self._trials) >= self.space.file.search.max_trials:
            self.ended = f"{counted(len(self._trials), 'trial')}, as many as wanted"
            return
        self._batch = self._sampler.ask()
        if not self._batch or self._quiet >= _BATCHES_WITHOUT_NEWS:
            self.ended = (
                "every admissible configuration is known" if self._trials else "no configuration found"
            )
            return
        before = len(self._trials)
        # What may spare others goes first, however the sampler put them.
        for point in sorted(self._batch, key=self.dominance.rank):
            self._enter(point)
        self._quiet = 0 if len(self._trials) > before else self._quiet + 1

    def _enter(self, asked: Point) -> None:
        self.counts.asked += 1
        point = self.space.canonical(asked)
        if point in self._number:
            self.counts.duplicates += 1
        elif not self.space.admissible(point):
            self.counts.inadmissible += 1
        elif len(self._trials) < self.space.file.search.max_trials:
            self.objective.work(point)  # raises before anything runs where it has none
            number = len(self._trials)
            self._trials.append(Trial(number, point, self.space.configuration(point)))
            self._number[point] = number
            self._families[self.dominance.family(point)].append(number)
            self._open.append(number)

    def _loss(self, asked: Point) -> float:
        point = self.space.canonical(asked)
        if point in self._number:
            trial = self._trials[self._number[point]]
            source = self._trials[trial.pruning.by] if trial.pruning else None
            return self.objective.loss(trial, source)
        return self.objective.inadmissible(self.space.violation(point))

    # -- trials ------------------------------------------------------------------------------------------

    def _first_runnable(self) -> int | None:
        """The first open trial that has to run and may; those that need not run are settled on the way."""
        for number in list(self._open):
            if number in self._running or self._held_back(number):
                continue
            if not self._settle_without_running(number):
                return number
            if self.ended:
                break
        return None

    def _held_back(self, number: int) -> bool:
        """Whether a trial before it, yet unsettled, may spare it."""
        point = self._trials[number].point
        return any(
            earlier.verdict is None and self.dominance.related(earlier.point, point)
            for earlier in self._family_before(number)
        )

    def _settle_without_running(self, number: int) -> bool:
        point = self._trials[number].point
        pruning = self.dominance.pruning(point, self._family_before(number))
        if pruning:
            self._close(self._implied(replace(self._trials[number], pruning=pruning)))
            return True
        if point in self._journal.outcomes:
            self.counts.replayed += 1
            self._settle(number, self._journal.outcomes[point])
            return True
        return False

    def _family_before(self, number: int) -> Iterator[Trial]:
        for other in self._families[self.dominance.family(self._trials[number].point)]:
            if other < number:
                yield self._trials[other]

    def _settle(self, number: int, outcome: Outcome) -> None:
        self._close(self._judged(number, outcome))

    def _judged(self, number: int, outcome: Outcome) -> Trial:
        time = outcome.iteration_time_s if outcome.verdict in ("FITS", "INCOMPLETE") else None
        trial = replace(self._trials[number], outcome=outcome, iteration_time_s=time)
        return replace(trial, objective=self.objective.value(trial.point, time, outcome))

    def _implied(self, trial: Trial) -> Trial:
        """A pruned trial, with what follows from the trial that it was pruned by."""
        assert trial.pruning is not None
        source = self._trials[trial.pruning.by]
        time = source.iteration_time_s if trial.pruning.implies == "FITS" else None
        value = self.objective.value(trial.point, time, source.outcome)
        return replace(trial, iteration_time_s=time, objective=value)

    def _close(self, trial: Trial) -> None:
        self._journal.record(trial)
        self._trials[trial.number] = trial
        self._open.remove(trial.number)
        self.counts.verdicts[trial.verdict or ""] += 1
        self._settled(trial)
        self._observe()

    def _observe(self) -> None:
        """Show the stopper what has become a gapless sequence of settled trials."""
        while self.ended is None and self._observed < len(self._trials):
            trial = self._trials[self._observed]
            if trial.verdict is None:
                return
            self._observed += 1
            self.ended = self._stopper.observe(trial)
