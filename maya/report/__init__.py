"""Report: a `Prediction`, and the trace and timeline behind it, come in; text, JSON, HTML and Perfetto files go out.

The terminal and the page answer first and then explain; the JSON is an interface that others script against.
The room must not know how a trace was recorded, a duration estimated, or a timeline simulated.
"""

from maya.report.html import write_html
from maya.report.json import as_json, schema, write_json
from maya.report.perfetto import write_perfetto
from maya.report.terminal import render_terminal

__all__ = ["as_json", "render_terminal", "schema", "write_html", "write_json", "write_perfetto"]
