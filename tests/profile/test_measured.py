"""What is shipped of measured GPUs (scripts/measure), and that estimates keep to it."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from maya.clusters import load
from maya.estimate import Estimator
from maya.estimate.profiles import Profiles, operation_of
from maya.estimate.types import Provenance

ROOT = Path(__file__).parents[2]
HOME = ROOT / "scripts/measure"
DEVICES = ("h100", "h200")


def jobs() -> dict[str, list[str]]:
    return {
        name: shlex.split(line) for name, line in yaml.safe_load((HOME / "jobs.yaml").read_text()).items()
    }


def test_every_job_has_its_script() -> None:
    for words in jobs().values():
        script = next(word for word in words if "=" not in word)
        assert (ROOT / script).is_file()


@pytest.mark.parametrize("device", DEVICES)
def test_measured_jobs_are_known_and_on_their_cluster(device: str) -> None:
    name = load(str(HOME / device / "cluster.yaml")).device.name
    rows = list(csv.DictReader((HOME / device / "jobs.csv").open()))
    assert {row["job"] for row in rows} <= set(jobs()) and {row["device"] for row in rows} == {name}
    databases = [Profiles.read(HOME / device / f"{part}.parquet") for part in ("fit", "report")]
    assert {where for database in databases for where, _, _ in database.entries} == {name}


@pytest.mark.parametrize(("device", "median"), [("h100", 0.16), ("h200", 0.15)])
def test_operations_that_nothing_was_fitted_on_come_out_as_measured(device: str, median: float) -> None:
    entries = Profiles.read(HOME / device / "report.parquet").entries
    measured = np.array([entry.median for entry in entries.values()])
    weight = np.array([entry.count for entry in entries.values()])
    estimator = Estimator(load(str(HOME / device / "cluster.yaml")), profiles=Profiles())
    answer = estimator.estimate([operation_of(identity) for _, identity, _ in entries])
    assert Provenance.UNKNOWN not in answer.provenance
    assert np.median(np.abs(answer.seconds / measured - 1)) < median
    assert (weight * answer.seconds).sum() / (weight * measured).sum() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("device", DEVICES)
def test_measured_operations_are_answered_from_the_database(device: str) -> None:
    database = Profiles.read(HOME / device / "report.parquet")
    (identity, entry), *_ = ((identity, entry) for (_, identity, _), entry in database.entries.items())
    answer = Estimator(load(f"dgx-{device}"), profiles=database).estimate([operation_of(identity)])
    assert answer.provenance[0] == Provenance.PROFILED and answer.seconds[0] == entry.median
