"""The end of a search: what was recorded of its trials is judged once more, together.

Ray runs it, each trial where it was recorded. Imported by `maya.search.tuning`, which sets Ray up first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from maya.estimate.recordings import Recording, ScriptTimes
from maya.search.driver import Search
from maya.search.types import Assignment, Outcome, Recordings


class Together:
    """Judges the trials that fit once more when all are recorded, each where it was recorded, if `nodes` has that."""

    def __init__(self, search: Search, recordings: Recordings, nodes: dict[int, str]) -> None:
        self._search = search
        self._recordings = ray.put(recordings)
        self._nodes = nodes

    def run(self) -> ScriptTimes | None:
        """Revises the search; what the recordings tell of the script, None where that is nothing."""
        outcomes = {trial.number: trial.outcome for trial in self._search.ranking() if trial.outcome}
        if len(outcomes) < 2:
            self._search.revise({})
            return None
        told = self._each("recording", outcomes)
        recorded = {number: each for number, each in told.items() if isinstance(each, Recording)}
        said: dict[int, Outcome | str] = {
            number: why for number, why in told.items() if number not in recorded
        }
        script = ScriptTimes.of(list(recorded.values()))
        if script is not None:
            note = f"the host's time is that of {script.recordings} recordings of the script, judged together"
            for number, now in self._each("judge", recorded, ray.put(script)).items():
                said[number] = now if isinstance(now, str) else outcomes[number].revised(now, note)
        self._search.revise(said, script.recordings if script else 0)
        return script

    def _each(self, method: str, numbers: Iterable[int], *given: Any) -> dict[int, Any]:
        """What `method` of the recordings answers for each trial, or why it does not."""
        task = ray.remote(num_cpus=1, max_retries=0)(_answer)
        pending = {}
        for number in numbers:
            node = self._nodes.get(number)
            where = NodeAffinitySchedulingStrategy(node, soft=True) if node else "DEFAULT"
            of = task.options(scheduling_strategy=where)
            pending[number] = of.remote(method, self._recordings, self._search.assignment(number), *given)
        return {number: _awaited(answer) for number, answer in pending.items()}


def _answer(method: str, recordings: Recordings, assignment: Assignment, *given: Any) -> Any:
    try:
        return getattr(recordings, method)(assignment, *given)
    except Exception as error:  # what was judged first stands, and the search says why
        return str(error.args[0] if isinstance(error, LookupError) and error.args else repr(error))


def _awaited(answer: Any) -> Any:
    try:
        return ray.get(answer)
    except ray.exceptions.RayError as error:  # its worker or node died
        return type(error).__name__
