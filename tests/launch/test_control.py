"""The control file as the launcher sees it."""

from maya.launch.control import Control, RankState


def test_a_fresh_control_file_has_every_rank_absent_and_answering_for_itself(tmp_path):
    control = Control(tmp_path / "control", 3)
    control.step_limit = 5
    control.end(2, 0)
    assert [control.state(rank) for rank in range(3)] == [RankState.ABSENT, RankState.ABSENT, RankState.ENDED]
    assert control.step_limit == 5
    assert control.segment_hashes(1) == []
    assert control.mismatch == ""
    control.close()
    assert not (tmp_path / "control").exists()


def test_the_file_takes_no_memory_until_messages_are_sent(tmp_path):
    control = Control(tmp_path / "control", 64)
    assert (tmp_path / "control").stat().st_blocks * 512 < 1 << 20
    control.close()
