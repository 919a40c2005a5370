"""What a fork server may import before it forks."""

from pathlib import Path

from maya.launch.imports import heavy_imports


def test_only_installed_packages_imported_unconditionally(tmp_path):
    (tmp_path / "mine.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nimport pandas\nimport mine\nfrom rich.table import Table\nfrom . import sibling\n"
        "import no_such_package\nif True:\n    import yaml\n"
    )
    assert heavy_imports(script) == ["pandas", "rich.table", "rich.table.Table"]


def test_a_broken_script_is_left_to_the_rank(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import (")
    assert heavy_imports(script) == []


def test_a_package_may_lie_in_a_path_that_is_no_text(tmp_path, monkeypatch):
    """What a package makes of its __path__ is what it was found by from then on."""
    import rich

    monkeypatch.setattr(rich.__spec__, "submodule_search_locations", [Path(rich.__file__).parent])
    script = tmp_path / "script.py"
    script.write_text("from rich.table import Table\n")
    assert heavy_imports(script) == ["rich.table", "rich.table.Table"]
