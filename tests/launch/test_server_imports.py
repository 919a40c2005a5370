"""What the fork server imports of packages whose parts are imported when they are asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from maya.launch.server import _import


def test_a_name_brings_the_part_of_a_package_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "in_parts"
    package.mkdir()
    (package / "__init__.py").write_text(
        "def __getattr__(name):\n"
        "    if name != 'Trainer':\n"
        "        raise AttributeError(name)\n"
        "    from in_parts.heavy import Trainer\n"
        "    return Trainer\n"
    )
    (package / "heavy.py").write_text("class Trainer: ...")
    (package / "light.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    _import("in_parts")
    assert "in_parts.heavy" not in sys.modules
    _import("in_parts.Trainer")
    _import("in_parts.light")
    assert {"in_parts.heavy", "in_parts.light"} <= sys.modules.keys()
