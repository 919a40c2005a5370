"""Which installed packages a script imports at its top level: what a fork server can import for every rank at once."""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from pathlib import Path

# Always warm: every script that Maya runs needs them.
ALWAYS = ("numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.optim")


def heavy_imports(script: Path) -> list[str]:
    """Modules of installed (not the user's own) packages that `script` imports unconditionally."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # the rank meets it again, and reports it as the script's own
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    installed = [name for name in dict.fromkeys(names) if _is_installed(name, script.parent)]
    return [name for name in installed if name not in ALWAYS]


def _is_installed(name: str, folder: Path) -> bool:
    top = name.partition(".")[0]
    if (folder / top).exists() or (folder / f"{top}.py").exists():
        return False  # the script's own folder comes first on its path
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    places = (
        [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or ()) if spec else []
    )
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return any(place.startswith(root) or "site-packages" in place for place in places for root in roots)
