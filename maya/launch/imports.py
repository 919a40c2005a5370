"""Which installed packages a script imports at its top level: what a fork server can import for every rank at once."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from maya.launch.compiler import COMPILER

# Always warm: every script that Maya runs needs them. Optimizers import torch._dynamo at their first use.
ALWAYS = ("numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch._dynamo")


def heavy_imports(script: Path) -> list[str]:
    """Modules of installed packages, and names in them, that `script` and the user's own modules beside it import at
    their top level. Packages of many parts import one only when its name is asked for.

    The user's own modules are only read: what they do when they are imported is each rank's affair.
    """
    return _heavy_imports([(script, "")], script.parent)


def heavy_imports_of_module(
    name: str, places: Sequence[str], leave_out: Collection[str] = ALWAYS
) -> list[str]:
    """The same of a module run by name (python -m), which lies in one of `places`, a package of the user's own or an
    installed one."""
    top = name.partition(".")[0]
    spec = PathFinder.find_spec(top, list(places))
    if spec is None or spec.origin is None:
        return []
    packaged = spec.submodule_search_locations is not None
    root = Path(spec.origin).parent.parent if packaged else Path(spec.origin).parent
    run = _own_files(name, root, top) + _own_files(f"{name}.__main__", root, top)
    return _heavy_imports(run, root, top if "site-packages" in root.parts else "", leave_out)


def imports_torch(name: str, is_module: bool, folder: Path) -> bool:
    """Whether a script, or a module run by name, imports PyTorch or a package that is built on it. `folder` is where it
    is started."""
    if is_module:
        found = heavy_imports_of_module(name, [str(folder), *sys.path], leave_out=())
    else:
        found = _heavy_imports([(folder / name, "")], (folder / name).parent, leave_out=())
    packages = {module.partition(".")[0] for module in found}
    distributions = packages_distributions() if packages else {}
    return any(
        package.startswith("torch") or any(map(_is_built_on_torch, distributions.get(package, ())))
        for package in packages
    )


def _is_built_on_torch(distribution: str) -> bool:
    needed = [re.match(r"[\w.-]+", line) for line in requires(distribution) or ()]
    return any(name and name[0] in ("torch", "transformers", "accelerate") for name in needed)


def _heavy_imports(
    waiting: list[tuple[Path, str]], folder: Path, alone: str = "", leave_out: Collection[str] = ALWAYS
) -> list[str]:
    """What `waiting` (files, and the package each lies in) import, but for `leave_out`. The user's own modules are
    those in `folder`, or of them the package `alone`."""
    names: dict[str, None] = {}
    seen: set[Path] = set()
    while waiting:
        path, package = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if _compiles(path):
            names[COMPILER[0]] = None  # the fork server adds the others
        for name in _imported(path, package):
            files = _own_files(name, folder, alone)
            waiting += files
            if not files and name not in leave_out and _is_installed(name, folder, alone):
                names[name] = None
    return list(names)


def _compiles(path: Path) -> bool:
    try:
        return b"torch.compile" in path.read_bytes()
    except OSError:
        return False


def _imported(path: Path, package: str) -> Iterator[str]:
    """What a module imports whenever it is imported, `from` names included: they may be modules."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # the rank meets it again, and reports it as the script's own
    for node in _top_level(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The module's own statements, and those it tries: an optional package is imported when it is there."""
    for node in body:
        yield node
        if isinstance(node, ast.Try):
            yield from _top_level(node.body)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    parents = parents[: len(parents) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


def _own_files(name: str, folder: Path, alone: str) -> list[tuple[Path, str]]:
    """The files, with the package each lies in, that importing `name` from `folder` runs; empty: not the user's own."""
    parts = name.split(".")
    if alone and parts[0] != alone:
        return []
    files: list[tuple[Path, str]] = []
    for length in range(1, len(parts) + 1):
        path, dotted = folder.joinpath(*parts[:length]), ".".join(parts[:length])
        if (path / "__init__.py").is_file():
            files.append((path / "__init__.py", dotted))
        elif path.with_suffix(".py").is_file():
            files.append((path.with_suffix(".py"), dotted.rpartition(".")[0]))
        elif not path.is_dir():
            break
    return files


def _is_installed(name: str, folder: Path, alone: str) -> bool:
    """Whether `name` is a module of an installed package, or may be a name in one."""
    top = name.partition(".")[0]
    if not alone and ((folder / top).exists() or (folder / f"{top}.py").exists()):
        return False  # the script's own folder comes first on its path
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    places = [os.fspath(place) for place in spec.submodule_search_locations or ()] if spec else []
    if spec and spec.origin:
        places.append(spec.origin)
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if not any(place.startswith(root) or "site-packages" in place for place in places for root in roots):
        return False
    module = name.rpartition(".")[0]
    return module in ("", top) or _is_module_file(module, places) or _is_module_file(name, places)


def _is_module_file(name: str, places: list[str]) -> bool:
    below = name.split(".")[1:]
    for place in places:
        path = Path(place).joinpath(*below)
        if (path / "__init__.py").is_file() or any(path.parent.glob(f"{path.name}.*")):
            return True
    return False
