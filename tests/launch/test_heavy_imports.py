"""What a fork server can import before any rank runs: installed packages, never the user's own modules."""

from __future__ import annotations

from pathlib import Path

from maya.launch.imports import heavy_imports


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "train.py"


def test_installed_packages_are_found_through_the_users_own_modules(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        {
            "train.py": "from own.model import Net\nimport json",
            "own/__init__.py": "from . import layers",
            "own/model.py": "from .layers import norm",
            "own/layers/__init__.py": "import yaml\nfrom torch.utils import data",
        },
    )
    assert heavy_imports(script) == ["yaml", "torch.utils", "torch.utils.data"]


def test_optional_packages_count_and_late_ones_do_not(tmp_path: Path) -> None:
    text = """
try:
    import yaml
except ImportError:
    yaml = None
if yaml is None:
    import pytest

def later():
    import rich
"""
    assert heavy_imports(write(tmp_path, {"train.py": text})) == ["yaml"]


def test_the_compiler_is_needed_where_it_is_called(tmp_path: Path) -> None:
    script = write(tmp_path, {"train.py": "import own", "own.py": "fast = torch.compile(slow)"})
    assert "torch._inductor.compile_fx" in heavy_imports(script)


def test_a_users_module_hides_an_installed_one(tmp_path: Path) -> None:
    assert heavy_imports(write(tmp_path, {"train.py": "import yaml", "yaml.py": "import rich"})) == ["rich"]


def test_a_script_that_does_not_parse_needs_nothing(tmp_path: Path) -> None:
    assert heavy_imports(write(tmp_path, {"train.py": "import yaml\ndef"})) == []
