"""Where a prediction cannot be written is said before the script runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from maya.cli import main


@pytest.mark.parametrize("option", ["--json", "--html", "--perfetto", "--out"])
@pytest.mark.parametrize(
    ("place", "told"), [("train.py/x", "cannot be made a folder"), (".", "it is a folder")]
)
def test_no_place_for_a_file(
    option: str,
    place: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if option == "--out" and place == ".":
        pytest.skip("a folder is its place")
    (tmp_path / "train.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["maya", "predict", option, place, "--", "train.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and told in line
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
