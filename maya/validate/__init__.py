"""Validate: measured iteration times come in, each is predicted, and the errors go out.

A row of the table is mapped to an example script and its arguments; rows that cannot be mapped are listed with the
reason. The room knows nothing of how a prediction is made.
"""

from maya.validate.mapping import Mapped, Unmapped, map_row
from maya.validate.page import write_page
from maya.validate.rows import Row, RowError, read_rows
from maya.validate.run import validate
from maya.validate.split import Share, is_fit
from maya.validate.statistics import SourceErrors, summarise_errors
from maya.validate.terminal import render_errors

__all__ = [
    "Mapped",
    "Row",
    "RowError",
    "Share",
    "SourceErrors",
    "Unmapped",
    "is_fit",
    "map_row",
    "read_rows",
    "render_errors",
    "summarise_errors",
    "validate",
    "write_page",
]
