from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.search.expression import Expression, ExpressionError

NAMES = {"tp": 4, "pp": 3, "world_size": 16, "recompute": True, "mode": "full"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("tp * pp + 1", 13),
        ("world_size // (tp * pp)", 1),
        ("world_size % tp == 0 and not pp > tp", True),
        ("1 < pp <= 3 < tp", True),
        ("8 if recompute else 1", 8),
        ("mode in ('full', 'selective')", True),
        ("max(tp, pp) - min(tp, pp, 2)", 2),
        ("true", True),
        ("2 ** 10", 1024),
    ],
)
def test_arithmetic_comparisons_and_choices_are_evaluated(text: str, value: object) -> None:
    assert Expression(text).value(NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "tp.__class__",
        "(lambda: 1)()",
        "[x for x in (1, 2)]",
        "tp[0]",
        "f'{tp}'",
        "print(tp)",
        "max(*mode)",
        "tp := 3",
        "tp; pp",
        "None",
        "b'x'",
        "1j",
        "",
        "(" * 500 + "1" + ")" * 500,
        "1 +" * 600 + " 1",
        "x" * 5000,
    ],
)
def test_what_is_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text)


@pytest.mark.parametrize(
    "text", ["tp / 0", "9 ** 9 ** 9", "unknown + 1", "'a' * 9", "1e999", "log2(0)", "mode < 1"]
)
def test_what_has_no_bounded_value_is_an_error_and_does_not_hold(text: str) -> None:
    expression = Expression(text)
    with pytest.raises(ExpressionError):
        expression.value(NAMES)
    assert not expression.holds(NAMES)
    assert expression.violation(NAMES) == math.inf


def test_refutation_spells_out_the_arithmetic() -> None:
    expression = Expression("tp * pp * dp == world_size")
    assert expression.refutation({**NAMES, "dp": 1}) == "tp(4) * pp(3) * dp(1) != world size (16)"


def test_violation_shrinks_towards_satisfaction() -> None:
    expression = Expression("tp * 2 <= 4")
    assert [expression.violation({"tp": tp}) for tp in (8, 4, 2)] == [12.0, 4.0, 0.0]


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_an_expression_error(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        Expression(text).value(NAMES)


LEAVES = st.sampled_from(["tp", "pp", "recompute", "mode", "0", "1", "2.5", "'full'", "unknown"])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda a, op, b: f"({a} {op} {b})",
            inner,
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", "in", "and", "or"]),
            inner,
        ),
        st.builds(lambda a: f"(not {a})", inner),
        st.builds(lambda a, b: f"max({a}, {b})", inner, inner),
    ),
    max_leaves=20,
)


@given(TREES)
def test_every_expression_of_the_grammar_has_a_value_or_an_expression_error(text: str) -> None:
    try:
        expression = Expression(text)
        value = expression.value(NAMES)
    except ExpressionError:
        return
    assert isinstance(value, bool | int | float | str)
    assert (expression.violation(NAMES) == 0.0) == bool(value)
