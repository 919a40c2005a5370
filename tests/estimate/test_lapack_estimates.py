"""Factorisations: FLOPs, how their time grows, and what others measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate import Estimator, Provenance, lapack
from maya.trace.types import Lapack

H100 = load("dgx-h100").device
ROUTINES = (
    "geqrf", "orgqr", "ormqr", "gels", "potrf", "potrs", "getrf", "getrs", "sytrf", "sytrs", "trsm", "syevd", "syevj",
    "gesvd", "gesvdj", "gesvda", "geev",
)  # fmt: skip


def seconds(*calls: Lapack) -> float:
    return sum(lapack.estimate_lapack(call, H100)[0] for call in calls)


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (Lapack("geqrf", 30, 20), 2 * 30 * 20**2 - 2 * 20**3 / 3),
        (Lapack("geqrf", 20, 30), 2 * 30 * 20**2 - 2 * 20**3 / 3),
        (Lapack("orgqr", 30, 20, 20), 2 * 30 * 20**2 - 2 * 20**3 / 3),  # as many as made it
        (Lapack("ormqr", 30, 5, 20), 2 * 5 * 20 * (2 * 30 - 20)),
        (Lapack("potrf", 30, 30, batch=4), 4 * 30**3 / 3),
        (Lapack("getrf", 30, 30), 2 * 30**3 / 3),
        (Lapack("trsm", 30, 30, 7), 30**2 * 7),
        (Lapack("syevd", 30, 30), 4 * 30**3 / 3),
        (Lapack("potrf", 30, 30, dtype="complex128"), 4 * 30**3 / 3),
    ],
)
def test_flops_are_the_textbooks(call: Lapack, flops: float) -> None:
    assert lapack.flops(call) == pytest.approx(flops)


@given(st.sampled_from(ROUTINES), st.integers(1, 4096), st.integers(1, 64), st.booleans())
def test_more_of_anything_never_takes_less(routine: str, n: int, batch: int, batched: bool) -> None:
    call = Lapack(routine, n, n, n, batch, batched=batched)
    grown = [
        Lapack(routine, n + 1, n + 1, n + 1, batch, batched=batched),
        Lapack(routine, n, n, n, batch + 1, batched=batched),
        Lapack(routine, n, n, n, batch, "fp64", batched=batched),
        Lapack(routine, n, n, n, batch, vectors=True, batched=batched),
    ]
    assert all(seconds(each) >= seconds(call) > 0 for each in grown)
    assert 0 <= lapack.demand(call, H100) <= 1


@pytest.mark.parametrize(
    ("calls", "seen_s"),
    [
        ((Lapack("geqrf", 128, 32), Lapack("orgqr", 128, 32, 32)), 189e-6),  # pytorch#173788
        ((Lapack("geqrf", 4096, 4096), Lapack("orgqr", 4096, 4096, 4096)), 31.6e-3),  # FlagGems#5586
        ((Lapack("potrf", 512, 512),), 376e-6),  # pytorch#173515
        ((Lapack("potrf", 2048, 2048),), 1954e-6),
        ((Lapack("potrf", 2048, 2048, batch=64, batched=True),), 22.2e-3),
        ((Lapack("potrf", 4096, 4096),), 2366e-6),  # mlx#4262, on an L40S
        ((Lapack("getrf", 128, 128, batch=1024, batched=True),), 5430e-6),  # pytorch#73878
        ((Lapack("potrs", 256, 256, 1),), 250e-6),  # FlagGems#5011
    ],
)
def test_what_others_measured_is_met_within_a_factor_of_two(calls: tuple[Lapack, ...], seen_s: float) -> None:
    assert seen_s / 2 < seconds(*calls) < 2 * seen_s


def test_the_answer_says_that_nothing_was_measured() -> None:
    answer = Estimator(load("dgx-h100")).estimate([Lapack("syevd", 1024, 1024, vectors=True)])
    assert answer.provenance[0] == Provenance.ROOFLINE
    assert len(answer.notes) == 1 and "syevd" in answer.notes[0] and "published" in answer.notes[0]
    assert answer.unknown == ()


def test_an_unknown_routine_is_an_error() -> None:
    with pytest.raises(ValueError, match="geqp3"):
        lapack.flops(Lapack("geqp3", 8, 8))
