"""The lookups file, and the histogram that is counted from a batch's indices."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maya.clusters import load
from maya.estimate import Estimator, read_lookups
from maya.estimate.embedding import Lookup
from maya.estimate.lookups import LookupsError, reuse_histogram
from maya.trace.types import Kernel, Operator

BAG = Kernel(
    "void at::native::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long*, long*, float*)",
    (1024, 1, 1),
    (32, 8, 1),
    operator=Operator("aten::_embedding_bag", ((1000, 64), (4096,), (128,))),
)


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "lookups.yaml"
        path.write_text(text)
        return path

    return write


def test_a_histogram_is_taken_as_it_is_told(written):
    told = read_lookups(written("- {table: [1000, 64], reuse: [0.5, 0.25, 0.25]}\n"))
    assert told == {(1000, 64): (0.5, 0.25, 0.25)}


def test_shares_may_be_rounded(written):
    told = read_lookups(written("- {table: [1000, 64], reuse: [0.333, 0.333, 0.333]}\n"))
    assert told == {(1000, 64): (0.333, 0.333, 0.333)}


def test_a_histogram_is_counted_from_indices_beside_the_file(written, tmp_path):
    np.save(tmp_path / "batch.npy", np.array([[1, 2, 2], [7, 7, 7]]))
    told = read_lookups(written("- {table: [1000, 64], indices: batch.npy}\n"))
    assert told == {(1000, 64): pytest.approx((1 / 6, 5 / 6))}


@given(st.lists(st.integers(0, 40), min_size=1))
def test_a_bin_has_the_lookups_of_rows_looked_up_so_often(indices):
    histogram = reuse_histogram(indices)
    assert sum(histogram) == pytest.approx(1.0)
    for power, share in enumerate(histogram):
        inside = [row for row in indices if 2**power <= indices.count(row) < 2 ** (power + 1)]
        assert share == pytest.approx(len(inside) / len(indices))


def test_counted_rows_that_are_looked_up_once_are_as_many_as_there_are():
    indices = np.arange(500)
    assert Lookup(1000, 64, 500, 1, 4, reuse_histogram(indices)).distinct == 500


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "list"),
        ("- {table: [1000, 64]}", "needs either reuse (a histogram) or indices"),
        ("- {table: [1000, 64], reuse: [1], indices: batch.npy}", "needs either reuse"),
        ("- {table: [1000, 64], reuse: [0, 0]}", "reuse: the shares add up to 0"),
        ("- {table: [1000, 64], reuse: [0.5, 0.25]}", "reuse: the shares add up to 0.75"),
        ("- {table: [1000, 64], reuse: [60, 40]}", "reuse: the shares add up to 100; divide each by that"),
        ("- {table: [1000, 64], reuse: [-1, 2]}", "greater than or equal to 0"),
        ("- {table: [1000], reuse: [1]}", "entry 0.table"),
        ("- {table: [1000, 64], histogram: [1]}", "unknown key; allowed: table, reuse, indices"),
        ("- {table: [9, 64], reuse: [1]}\n- {table: [9, 64], reuse: [1]}", "[9, 64] is there twice"),
        ("- {table: [1000, 64], indices: none.npy}", "none.npy"),
        ("- {table: [5, 64], indices: batch.npy}", "1 to 7, of a table of 5 rows"),
        ("- {table: [5, 64], indices: floats.npy}", "no array of integers"),
        ("- [", "lookups.yaml:1:4: is not YAML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_entry(written, tmp_path, text, says):
    np.save(tmp_path / "batch.npy", np.array([1, 7]))
    np.save(tmp_path / "floats.npy", np.array([1.0]))
    with pytest.raises(LookupsError) as refused:
        read_lookups(written(text))
    assert says in str(refused.value) and "\n" not in str(refused.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(content=st.binary(max_size=200))
@pytest.mark.parametrize("name", ["lookups.yaml", "batch.npy"])
def test_damaged_files_are_refused_and_nothing_else(tmp_path, name, content):
    path = tmp_path / "lookups.yaml"
    path.write_text("- {table: [1000, 64], indices: batch.npy}\n")
    (tmp_path / name).write_bytes(content)
    try:
        read_lookups(path)
    except LookupsError as error:
        assert "\n" not in str(error)


def test_a_table_that_the_job_does_not_look_up_is_said():
    def notes(*tables):
        reuse = dict.fromkeys(tables, (1.0,))
        return Estimator(load("dgx-a100"), reuse=reuse).estimate([BAG]).notes

    assert notes((1000, 64)) == ()
    (note,) = notes((1000, 64), (2000, 64))
    assert "nothing up in: 2000 x 64; it does in: 1000 x 64" in note
