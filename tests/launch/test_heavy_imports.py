"""What a fork server can import before any rank runs: installed packages, never the user's own modules."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from maya.launch.imports import heavy_imports, heavy_imports_of_module


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


def test_a_module_run_by_name_is_read_where_it_lies(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "trainer/__init__.py": "import yaml",
            "trainer/train.py": "from trainer import model\nimport own",
            "trainer/model.py": "import torch.utils.data",
            "trainer/__main__.py": "import rich.table",
            "own.py": "import typer",
        },
    )
    assert set(heavy_imports_of_module("trainer.train", [str(tmp_path)])) == {
        "yaml",
        "typer",
        "torch.utils.data",
    }
    assert heavy_imports_of_module("trainer", [str(tmp_path)]) == ["yaml", "rich.table"]
    assert heavy_imports_of_module("nowhere.train", [str(tmp_path)]) == []


def test_of_an_installed_module_only_its_own_package_is_read(tmp_path: Path) -> None:
    """Beside it lie all other packages, which are installed, not the user's own."""
    installed = sysconfig.get_path("purelib")
    assert "yaml" in heavy_imports_of_module("ray.autoscaler._private.commands", [installed])
