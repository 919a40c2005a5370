"""Makes `synthetic` importable by the tests of this room, and its parts fixtures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from synthetic import make_search, make_space

from maya.search.driver import Search
from maya.search.space import Space


@pytest.fixture
def space() -> Space:
    return make_space()


@pytest.fixture
def new_search(tmp_path: Path) -> Callable[..., Search]:
    """Starts a search of the paper's space in a directory of its own; overrides as `search__seed=1`."""
    count = iter(range(1_000_000))
    return lambda **overrides: make_search(tmp_path / f"search-{next(count)}", **overrides)
