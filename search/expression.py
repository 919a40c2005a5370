"""Arithmetic over named values, read from a space file. Never Python: a whitelisted grammar, walked.

    expression  numbers, 'strings', true/false, names, + - * / // % **, comparisons (also chained, `in`),
                and/or/not, `a if c else b`, abs ceil floor log2 max min

Results are bounded, so no expression can make the search hang or swell.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Value = bool | int | float | str
Names = Mapping[str, Value]

_LONGEST_TEXT = 2000
_LARGEST = 10**30
_LARGEST_EXPONENT = 128

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
    "max": max,
    "min": min,
}
_CONSTANTS: dict[str, Value] = {"true": True, "false": False}
_DISPLAY = {"world_size": "world size "}


class ExpressionError(ValueError):
    """The text is outside the grammar, names something unknown, or has no value (`x / 0`)."""


class Expression:
    """One parsed expression. `names` are the free names it reads."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = _parse(text)
        self.names = frozenset(
            node.id
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Name) and node.id not in _CONSTANTS and node.id not in _FUNCTIONS
        )

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def value(self, names: Names) -> Value:
        """The result under `names`. Raises ExpressionError when it has none."""
        try:
            result = _evaluate(self._tree, names)
        except ExpressionError:
            raise
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ExpressionError(f"{self.arithmetic(names)}: {error}") from None
        if isinstance(result, tuple):
            raise ExpressionError(f"{self.text}: a list is not a value")
        return result  # type: ignore[no-any-return]

    def holds(self, names: Names) -> bool:
        """Whether the result is true; what has no value does not hold."""
        try:
            return bool(self.value(names))
        except ExpressionError:
            return False

    def violation(self, names: Names) -> float:
        """How far `names` are from making this hold: 0 when it does, infinity when it has no value."""
        if self.holds(names):
            return 0.0
        try:
            return _violation(self._tree, names)
        except (ExpressionError, ArithmeticError, TypeError, ValueError):
            return math.inf

    def arithmetic(self, names: Names) -> str:
        """The expression with each name's value beside it: `tp(4) * pp(3)`."""
        return ast.unparse(_annotated(self._tree, names))

    def refutation(self, names: Names) -> str:
        """Why it does not hold, spelled out: `tp(4) * pp(3) * dp(1) != world size (16)`."""
        tree = self._tree
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
            opposite = _OPPOSITE[type(tree.ops[0])]()
            return ast.unparse(_annotated(ast.Compare(tree.left, [opposite], tree.comparators), names))
        return f"not ({self.arithmetic(names)})"


def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST_TEXT:
        raise ExpressionError(f"longer than {_LONGEST_TEXT} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # `1 is 1`, `"a"(2)`: refused below
            tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(f"{text!r} is not an expression") from None
    except (RecursionError, MemoryError):
        raise ExpressionError("nested too deeply") from None
    return tree


def _check(node: ast.expr, depth: int = 0) -> None:
    """Admit `node` and what is below it, or say what is not allowed."""
    if depth > 60:
        raise ExpressionError("nested too deeply")
    for child in _operands(node):
        _check(child, depth + 1)


def _operands(node: ast.expr) -> Iterable[ast.expr]:
    """The subexpressions of an admitted node; everything outside the grammar ends here."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return ()
        case ast.Name():
            return ()
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return (operand,)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return (left, right)
        case ast.BoolOp(values=values):
            return values
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARE for op in ops):
            return (left, *rest)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return (test, body, orelse)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return elements
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return arguments
    raise ExpressionError(f"{ast.unparse(node)!r} is not allowed (only arithmetic, comparisons, and/or/not)")


def _evaluate(node: ast.expr, names: Names) -> Any:
    match node:
        case ast.Constant(value=value):
            return _bounded(value)
        case ast.Name(id=name):
            return _lookup(name, names)
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_evaluate(operand, names))
        case ast.BinOp(left=left, op=op, right=right):
            return _apply(op, _evaluate(left, names), _evaluate(right, names))
        case ast.BoolOp(op=op, values=values):
            wanted = all if isinstance(op, ast.And) else any
            return wanted(bool(_evaluate(value, names)) for value in values)
        case ast.Compare():
            return _compare(node, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, names) else orelse, names)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_evaluate(element, names) for element in elements)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _bounded(_FUNCTIONS[name](*(_evaluate(argument, names) for argument in arguments)))
    raise AssertionError(f"{ast.dump(node)} passed _check")


def _lookup(name: str, names: Names) -> Value:
    if name in names:
        return names[name]
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    raise ExpressionError(f"unknown name {name!r}")


def _apply(op: ast.operator, left: Any, right: Any) -> Any:
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise ExpressionError(f"arithmetic on {left!r} and {right!r}")
    if isinstance(op, ast.Pow) and (abs(right) > _LARGEST_EXPONENT or abs(left) > 10**6):
        raise ExpressionError("a power too large")
    return _bounded(_BINARY[type(op)](left, right))


def _bounded(value: Any) -> Any:
    if isinstance(value, complex):
        raise ExpressionError("not a real number")
    if isinstance(value, int | float) and not abs(value) <= _LARGEST:
        raise ExpressionError("a number too large")
    return value


def _compare(node: ast.Compare, names: Names) -> bool:
    left = _evaluate(node.left, names)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(comparator, names)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True


def _violation(node: ast.expr, names: Names) -> float:
    """A distance that shrinks towards satisfaction, so that the nearest point can be named."""
    if bool(_evaluate(node, names)):
        return 0.0
    if isinstance(node, ast.BoolOp):
        parts = [_violation(value, names) for value in node.values]
        return sum(parts) if isinstance(node.op, ast.And) else min(parts)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _evaluate(node.left, names), _evaluate(node.comparators[0], names)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return abs(float(left) - float(right)) or 1.0
    return 1.0


def _annotated(tree: ast.expr, names: Names) -> ast.expr:
    class Annotate(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            if node.id not in names:
                return node
            return ast.Name(f"{_DISPLAY.get(node.id, node.id)}({show(names[node.id])})", node.ctx)

        def visit_Call(self, node: ast.Call) -> ast.Call:
            return ast.Call(node.func, [self.visit(argument) for argument in node.args], [])

    return Annotate().visit(_copy(tree))  # type: ignore[no-any-return]


def _copy(tree: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(tree), mode="eval").body


def show(value: Value) -> str:
    """A value as a space file writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
