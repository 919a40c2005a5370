"""What is wrong with a file that is not YAML, in the words of whoever has to mend it."""

from __future__ import annotations

from yaml import MarkedYAMLError

# What PyYAML says of the commonest faults, and what mends them.
_MENDS = (
    ("'\\t'", "indent with spaces instead of tabs"),
    (
        "mapping values are not allowed",
        "put a value with a colon in quotes, and each key on a line of its own",
    ),
    ("expected ',' or", "close the bracket{opened}, and put a comma after each item"),
    ("unexpected end of stream", "close the quotation mark{opened}"),
    ("could not find expected ':'", "put a colon and a space after the key{opened}"),
    ("expected <block end>", "indent it like what it belongs to{opened}"),
    ("cannot start any token", "put it in quotes"),
    ("undefined alias", "put a value that begins with an asterisk in quotes"),
    ("is given twice", "leave one of them out"),
)


def yaml_fault(error: Exception) -> str:
    """`:LINE:COLUMN: is not YAML: what is wrong; what to do`, to be put behind the file's name."""
    mark = getattr(error, "problem_mark", None)
    place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    if not isinstance(error, MarkedYAMLError) or not error.problem:
        return f"{place}: is not YAML: {' '.join(str(error).split())}"
    return f"{place}: is not YAML: {error.problem}; {_mend(error)}"


def _mend(error: MarkedYAMLError) -> str:
    start = error.context_mark
    opened = f" of line {start.line + 1}, column {start.column + 1}" if start else ""
    for said, mend in _MENDS:
        if said in str(error.problem):
            return mend.format(opened=opened)
    return "check brackets, quotation marks and indentation there"
