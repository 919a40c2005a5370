"""The profile database, and its place at the head of the chain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate import Estimator
from maya.estimate.profiles import KEPT, Entry, ProfileError, Profiles, identity, operation_of
from maya.estimate.types import Provenance
from maya.trace.types import Gemm, Kernel, Memcpy, Operator

H100 = "NVIDIA H100 80GB HBM3"
LIBRARIES = "torch 2.11.0"
GEMM = Gemm(m=1024, n=1024, k=1024)
ODD = Kernel("nobody_knows_me", (1, 1, 1), (32, 1, 1))


def test_profile_comes_before_every_other_source() -> None:
    profiles = Profiles()
    profiles.add(H100, LIBRARIES, {GEMM: [1.0, 3.0, 2.0], ODD: [5.0]})
    cluster = load("dgx-h100")
    measured = Estimator(cluster, profiles=profiles).estimate([GEMM, ODD])
    assert measured.seconds.tolist() == [2.0, 5.0]
    assert (measured.provenance == Provenance.PROFILED).all()
    assert measured.unknown == ()
    otherwise = Estimator(cluster, profiles=Profiles()).estimate([GEMM, ODD])
    assert otherwise.unknown == ("kernel nobody_knows_me",)
    assert np.array_equal(measured.flops, otherwise.flops)


def test_profile_of_another_device_does_not_count() -> None:
    profiles = Profiles()
    profiles.add("NVIDIA A100-SXM4-80GB", LIBRARIES, {GEMM: [1.0]})
    assert Estimator(load("dgx-h100"), profiles=profiles).estimate([GEMM]).seconds[0] < 1e-3


def test_environment_names_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = Profiles()
    profiles.add(H100, LIBRARIES, {GEMM: [7.0]})
    profiles.write(tmp_path / "profiles.parquet")
    monkeypatch.setenv("MAYA_PROFILES", str(tmp_path / "profiles.parquet"))
    assert Estimator(load("dgx-h100")).estimate([GEMM]).seconds[0] == 7.0
    monkeypatch.setenv("MAYA_PROFILES", str(tmp_path / "absent.parquet"))
    with pytest.raises(ProfileError, match=r"absent\.parquet"):
        Estimator(load("dgx-h100"))


def test_matrix_product_is_the_same_in_every_operator() -> None:
    inside = Gemm(m=8, n=8, k=8, operator=Operator("aten::addmm", ((8,), (8, 8), (8, 8))))
    assert identity(inside) == identity(Gemm(m=8, n=8, k=8))
    assert "multiprocessors" not in identity(inside)  # as databases of before have it
    assert operation_of(identity(replace(inside, multiprocessors=116))).multiprocessors == 116
    assert identity(Memcpy("h2d", 4)) != identity(Memcpy("d2h", 4))
    assert identity(Kernel("k", (1, 1, 1), (1, 1, 1))) != identity(Kernel("k", (2, 1, 1), (1, 1, 1)))


def test_libraries_measured_last_win() -> None:
    profiles = Profiles()
    profiles.add(H100, "torch 2.6.0", {GEMM: [1.0]})
    profiles.add(H100, "torch 2.11.0", {GEMM: [2.0]})
    assert profiles.on(H100) == {identity(GEMM): 2.0}
    profiles.add(H100, "torch 2.6.0", {GEMM: [3.0, 3.0]})
    assert profiles.on(H100) == {identity(GEMM): 3.0}


SECONDS = st.floats(1e-9, 10.0)


@settings(max_examples=15)
@given(st.lists(st.lists(SECONDS, min_size=1, max_size=200), min_size=1, max_size=3))
def test_database_keeps_what_was_added(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[float]]
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "profiles.parquet"
    for number, samples in enumerate(runs):
        profiles = Profiles.read(path) if number else Profiles()
        profiles.add(H100, LIBRARIES, {GEMM: samples})
        profiles.write(path)
    (entry,) = Profiles.read(path).entries.values()
    everything = [sample for samples in runs for sample in samples]
    assert entry == Entry(tuple(everything[-KEPT:]), len(everything))
    assert entry.median == np.median(everything[-KEPT:])


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profiles.parquet").write_text("not parquet")
    with pytest.raises(ProfileError, match="not a profile database"):
        Profiles.read(tmp_path / "profiles.parquet")
