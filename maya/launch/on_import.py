"""Changes to modules of others, made as soon as these are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]  # is given the module


def change_on_import(changes: Mapping[str, Change]) -> None:
    """From here on, in this process and its forks; at once where a module has been imported."""
    for name in changes.keys() & sys.modules.keys():
        changes[name](sys.modules[name])
    sys.meta_path.insert(0, _Changing(changes))


class _Changing:
    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.get(name)
        if change is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader, change)
        return spec


def _run_after(loader: Any, change: Change) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        change(module)

    loader.exec_module = exec_module
