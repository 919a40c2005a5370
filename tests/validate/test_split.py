"""The share of rows that may be fitted on is a tenth of every source, the same for everyone."""

from maya.validate import Share, is_fit
from maya.validate.split import in_share


def test_a_tenth_of_any_source_is_for_fitting():
    for source in ("vtrain_multi_node_a100", "dgxc_benchmarking_h100", "yours"):
        chosen = [is_fit(f"{source}-{number:04}") for number in range(4000)]
        assert 0.08 < sum(chosen) / len(chosen) < 0.12


def test_the_choice_never_changes():
    assert is_fit("vtrain_multi_node_a100-0012")
    assert not is_fit("vtrain_multi_node_a100-0013")


def test_rows_that_were_looked_at_before_the_split_are_never_reported():
    assert is_fit("vtrain_single_node_a100-0274")


def test_the_shares_are_each_others_complement():
    for row in ("a-1", "vtrain_multi_node_a100-0012"):
        assert in_share(row, Share.FIT) != in_share(row, Share.REPORT)
        assert in_share(row, Share.ALL)
