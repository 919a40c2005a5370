"""What a fork server may import before it forks."""

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
