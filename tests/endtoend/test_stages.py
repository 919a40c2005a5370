"""Megatron's pipeline with stages that do not run, against the same with all of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from maya.clusters import load
from maya.launch import ForkServer, Job
from maya.launch.stages import Between
from maya.trace import collate

SCRIPT = Path(__file__).resolve().parents[2] / "examples/megatron/pretrain_gpt.py"
ARGUMENTS = """
    --num-layers 8 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --micro-batch-size 1 --global-batch-size 24 --train-iters 100 --bf16 --mock-data --no-bias-gelu-fusion
    --no-bias-dropout-fusion --pipeline-model-parallel-size 8
"""


def test_stages_in_between_are_as_if_they_had_run(tmp_path: Path) -> None:
    job = Job(str(SCRIPT), tuple(ARGUMENTS.split()), 16, ranks="representatives")
    with ForkServer(load("dgx-a100")) as server:
        few = server.run(job, tmp_path / "few")
        every = server.run(replace(job, ranks="dedup"), tmp_path / "every")
    assert few.status == every.status == "traced", few.traceback + every.traceback
    assert len(few.inferred) == 2 and {rank // 2 for rank in few.inferred} < {
        2,
        3,
        5,
    }  # one of them is checked
    for rank, line in few.inferred.items():
        assert line == Between(2, 8, Fraction(rank // 2 - 1, 3))
    assert "2 pipeline stages did not run" in " ".join(few.notes)
    assert few.launched < every.launched == 16
    inferred, recorded = collate(few), collate(every)
    assert len(inferred.ranks) == len(recorded.ranks) == 8
    for one, other in zip(inferred.ranks, recorded.ranks, strict=True):
        assert one.rank == other.rank
        for field in ("kind", "blocking", "stream", "size", "wait", "sequence"):
            assert np.array_equal(one.records[field], other.records[field]), (one.rank, field)
        assert _numbered_as_met(one.records["group"]) == _numbered_as_met(other.records["group"])
        assert _operations(inferred, one) == _operations(recorded, other)
        assert _met(inferred, one) == _met(recorded, other)


def _numbered_as_met(groups: np.ndarray) -> list[int]:
    number: dict[int, int] = {0: 0}
    return [number.setdefault(group, len(number)) for group in groups.tolist()]


def _operations(trace, rank) -> list[object]:
    rows = rank.records["operation"]
    return [trace.operations[row] if row >= 0 else None for row in rows.tolist()]


def _met(trace, rank) -> list[tuple[int, ...]]:
    """Ranks that take part in each rendezvous, in order."""
    parties: dict[int, set[int]] = {}
    for each in trace.ranks:
        for number in np.unique(each.records["rendezvous"]).tolist():
            parties.setdefault(number, set()).add(each.rank)
    return [tuple(sorted(parties[n])) for n in rank.records["rendezvous"].tolist() if n >= 0]
