"""Modules of others are changed as they are imported, or at once where they have been."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from maya.launch.on_import import change_on_import


@pytest.mark.parametrize("before", [True, False], ids=["imported before", "imported later"])
def test_a_module_is_changed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    name = f"changed_{before}".lower()
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def double(module: ModuleType) -> None:
        module.value *= 2  # type: ignore[attr-defined]

    if before:
        importlib.import_module(name)
    change_on_import({name: double})
    for _ in range(2):
        assert importlib.import_module(name).value == 2
    del sys.modules[name]
