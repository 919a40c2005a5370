"""A search's later jobs run fewer iterations of fewer ranks, as its first ones told, and predict the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from maya.clusters import load
from maya.launch.trust import Trust
from maya.launch.types import Job
from maya.predict import Judgement, Predictor

EXAMPLES = Path(__file__).parents[2] / "examples"

ARGUMENTS = (
    "--num-layers", "4", "--hidden-size", "512", "--num-attention-heads", "8", "--seq-length", "512",
    "--max-position-embeddings", "512", "--vocab-size", "8192", "--micro-batch-size", "4",
    "--global-batch-size", "32", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
    "--bf16", "--train-iters", "500000", "--mock-data", "--no-bias-gelu-fusion", "--no-bias-dropout-fusion",
)  # fmt: skip


def test_jobs_like_those_before_run_fewer_ranks_and_predict_the_same_work():
    job = Job(str(EXAMPLES / "megatron/pretrain_gpt.py"), ARGUMENTS, world=8)
    with Predictor(load("dgx-h100"), trust=Trust(1)) as predictor:
        first = predictor.predict(job)
        later = predictor.predict(job)
    for judgement in (first, later):
        assert judgement.prediction.verdict == "FITS", judgement.prediction.message
    assert first.prediction.ranks["checked"] > 0 and later.prediction.ranks["checked"] == 0
    assert later.prediction.ranks["launched"] == 2 < first.prediction.ranks["launched"]  # one a stage
    assert any("axes of 2 and 2 ranks" in note for note in later.prediction.notes)
    assert not any("as in the jobs" in note for note in first.prediction.notes)
    assert sum("as in the jobs" in note for note in later.prediction.notes) == 2
    assert device_seconds(later) == pytest.approx(device_seconds(first), rel=1e-3)


def device_seconds(judgement: Judgement) -> float:
    """What the operations of the first rank take by themselves."""
    assert judgement.trace is not None and judgement.estimates is not None
    operations = judgement.trace.ranks[0].records["operation"]
    return float(judgement.estimates.seconds[operations[operations >= 0]].sum())
