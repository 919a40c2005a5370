"""Run by tests as a process that can be killed: a search of the synthetic space in DIR.

usage: search_program.py DIR inline|ray [SECONDS a trial [ADDRESS of a Ray cluster]]
Prints the best trial, and how many there were. Whoever judges the arguments in DIR/deadly is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from synthetic import analytic, make_search, run_inline

from maya.search.journal import NAME
from maya.search.types import Assignment, Judge
from maya.simulate.types import Prediction


def main(directory: Path, runner: str, seconds: float = 0.0, address: str | None = None) -> None:
    deadly = directory / "deadly"

    def judge(assignment: Assignment) -> Prediction:
        with (directory / "judged").open("a") as judged:
            judged.write(f"{' '.join(assignment.argv)}\n")
        (directory / "worker").write_text(str(os.getpid()))
        if deadly.exists() and deadly.read_text() == " ".join(assignment.argv):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)
        return analytic(assignment)

    directory.mkdir(exist_ok=True)
    search = make_search(directory, resume=(directory / NAME).exists(), search__max_trials=60)
    if runner == "inline":
        run_inline(search, judge)
    else:
        from maya.search.tuning import run_search

        @contextlib.contextmanager
        def judges() -> Iterator[Judge]:
            sys.path.insert(0, str(Path(__file__).parent))
            yield judge

        run_search(search, judges, concurrency=2, address=address)
    best = search.ranking()[0]
    print(json.dumps({"best": best.number, "objective": best.objective, "trials": len(search.trials)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:4]), *sys.argv[4:])
