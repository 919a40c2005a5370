"""The search space: points, what they mean as a command line, and which of them are admissible.

A *point* is one index a knob, in the file's order. A point is *canonical* when every inactive knob holds its
first value. Nothing here walks the whole space unless it is small: a space may have 10^9 points.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from yaml import MarkedYAMLError

from maya.errors import MayaError
from maya.search.expression import Expression, ExpressionError, Value, show
from maya.search.schema import SpaceFile
from maya.yaml_fault import yaml_fault

Point = tuple[int, ...]

_RESERVED = {"true", "false", "abs", "ceil", "floor", "log2", "max", "min", "world_size"}
_SATISFIABILITY_STEPS = 50_000
_NEAREST_SAMPLES = 20_000
_ALTERNATIVES = {"NamedDominance", "list[RuleSpec]"}


class SpaceError(MayaError):
    """A space file that cannot be searched: `file: key: what is wrong`, one line."""


@dataclass(frozen=True)
class Knob:
    name: str
    values: tuple[Value, ...]
    flag: str | None
    arguments: tuple[tuple[str, ...], ...]  # of each value
    when: Expression | None


@dataclass(frozen=True)
class Derived:
    flag: str
    value: Expression
    when: Expression | None


class Space:
    """A validated space file. Raises SpaceError where the file contradicts itself."""

    def __init__(self, file: SpaceFile, source: str = "space", given: Collection[str] = ()) -> None:
        """`given` are keys whose value is an option's, not the file's: a fault in one is the option's."""
        self.file = file
        self.source = source
        self._given = given
        self.knobs = tuple(_knob(name, spec) for name, spec in file.knobs.items())
        self.lets = {name: Expression(text) for name, text in file.let.items()}
        self.derived = tuple(
            Derived(flag, Expression(spec.value), Expression(spec.when) if spec.when else None)
            for flag, spec in file.derived.items()
        )
        self.constraints = tuple(Expression(text) for text in file.constraints)
        self.work = Expression(file.objective.work) if file.objective.work else None
        self._fixed = self._fixed_names()
        self._check_names()
        self._ready = self._constraints_by_depth()
        self._require_satisfiable()

    # -- what a point means ------------------------------------------------------------------------------

    @property
    def cardinalities(self) -> tuple[int, ...]:
        return tuple(len(knob.values) for knob in self.knobs)

    @property
    def size(self) -> int:
        """All combinations, admissible or not."""
        return math.prod(self.cardinalities)

    def configuration(self, point: Point) -> dict[str, Value]:
        return {knob.name: knob.values[index] for knob, index in zip(self.knobs, point, strict=True)}

    def point(self, configuration: Mapping[str, Value]) -> Point:
        """The inverse of `configuration`; true is not 1."""
        return tuple(index_of(knob.values, configuration[knob.name]) for knob in self.knobs)

    def names(self, point: Point) -> dict[str, Value]:
        """Every value an expression can read at this point; a `let` without a value is left out."""
        names = dict(self._fixed)
        for depth in range(len(self.knobs)):
            self._bind(names, depth, point[depth])
        return names

    def canonical(self, point: Point) -> Point:
        names = dict(self._fixed)
        chosen = []
        for depth, index in enumerate(point):
            chosen.append(index if self._active(depth, names) else 0)
            self._bind(names, depth, chosen[-1])
        return tuple(chosen)

    def world(self, point: Point) -> int:
        return int(self.names(point)["gpus"])

    def argv(self, point: Point) -> tuple[str, ...]:
        """The script's arguments: the fixed ones, the knobs', the derived."""
        argv: list[str] = []
        for flag, value in self.file.args.items():
            argv += _emit(flag, value)
        names = dict(self._fixed)
        for depth, (knob, index) in enumerate(zip(self.knobs, point, strict=True)):
            if self._active(depth, names):
                argv += knob.arguments[index]
            self._bind(names, depth, index)
        for derived in self.derived:
            if derived.when is None or derived.when.holds(names):
                argv += _emit(derived.flag, derived.value.value(names))
        return tuple(argv)

    # -- which points are admissible ---------------------------------------------------------------------

    def violation(self, point: Point) -> float:
        """0 for an admissible point; else how far it is, larger the farther, always finite."""
        names = self.names(point)
        distance = 0.0
        for expression in self._requirements(names):
            lack = expression.violation(names)
            distance += 1.0 + min(lack, 1e6) if lack else 0.0
        return distance

    def admissible(self, point: Point) -> bool:
        return self.violation(point) == 0.0

    def points(self, shuffle: random.Random | None = None, steps: int | None = None) -> Iterator[Point]:
        """Admissible canonical points, lazily, each once; a constraint cuts as soon as its knobs are set.

        Raises `OutOfSteps` after `steps` knob settings.
        """
        yield from self._extend((), dict(self._fixed), shuffle, _Steps(steps))

    def all_points(self, steps: int) -> list[Point] | None:
        """Every admissible canonical point; None when finding them takes more than `steps` knob settings."""
        try:
            return list(self.points(steps=steps))
        except OutOfSteps:
            return None

    def sample(self, generator: random.Random) -> Point | None:
        """An admissible point at random; None when none was found within a bounded effort."""
        for _ in range(100):
            point = self.canonical(tuple(generator.randrange(count) for count in self.cardinalities))
            if self.admissible(point):
                return point
        try:
            return next(self.points(generator, _SATISFIABILITY_STEPS), None)
        except OutOfSteps:
            return None

    def _extend(
        self, point: Point, names: dict[str, Value], shuffle: random.Random | None, steps: _Steps
    ) -> Iterator[Point]:
        depth = len(point)
        if depth == len(self.knobs):
            if all(_has_value(expression, names) for expression in self._derived_values(names)):
                yield point
            return
        indices = list(range(len(self.knobs[depth].values))) if self._active(depth, names) else [0]
        if shuffle:
            shuffle.shuffle(indices)
        for index in indices:
            steps.take()
            extended = dict(names)
            self._bind(extended, depth, index)
            if all(constraint.holds(extended) for constraint in self._ready[depth]):
                yield from self._extend((*point, index), extended, shuffle, steps)

    def _active(self, depth: int, names: Mapping[str, Value]) -> bool:
        when = self.knobs[depth].when
        return when is None or when.holds(names)

    def _bind(self, names: dict[str, Value], depth: int, index: int) -> None:
        knob = self.knobs[depth]
        names[knob.name] = knob.values[index]
        if knob.name == "gpus":
            names["world_size"] = names["gpus"]
        for name, expression in self.lets.items():
            if self._let_depth[name] == depth:
                _define(names, name, expression)

    def _requirements(self, names: Mapping[str, Value]) -> Iterator[Expression]:
        yield from self.constraints
        for expression in self._derived_values(names):
            if not _has_value(expression, names):
                yield _NEVER

    def _derived_values(self, names: Mapping[str, Value]) -> Iterator[Expression]:
        for derived in self.derived:
            if derived.when is None or derived.when.holds(names):
                yield derived.value

    # -- validation --------------------------------------------------------------------------------------

    def fail(self, key: str, message: str) -> SpaceError:
        return SpaceError(f"{_place(self.source, key, self._given)}: {message}")

    def _fixed_names(self) -> dict[str, Value]:
        names: dict[str, Value] = {}
        for flag, value in self.file.args.items():
            if isinstance(value, bool | int | float | str):
                names[flag.lstrip("-").replace("-", "_")] = value
        if "gpus" not in self.file.knobs:
            if self.file.gpus is None:
                raise self.fail("gpus", "is missing; give it here, as a knob, or with --gpus")
            names["gpus"] = self.file.gpus
            names["world_size"] = self.file.gpus
        elif self.file.gpus is not None:
            raise self.fail("gpus", "is fixed and a knob as well; leave one of them out")
        elif not all(type(value) is int and value > 0 for value in self.file.knobs["gpus"].values):
            raise self.fail("knobs.gpus.values", "are not all positive integers")
        return names

    def _check_names(self) -> None:
        self._check_flags()
        known = set(self._fixed) | {"gpus", "world_size"}
        for index, knob in enumerate(self.knobs):
            self._define_name(f"knobs.{knob.name}", knob.name, known - {"gpus"})
            later = {other.name for other in self.knobs[index:]}
            if knob.when:
                self._check_expression(f"knobs.{knob.name}.when", knob.when, known | set(self.lets), later)
            known.add(knob.name)
        self._let_depth: dict[str, int] = {}
        for name, expression in self.lets.items():
            self._define_name(f"let.{name}", name, known)
            self._check_expression(f"let.{name}", expression, known)
            self._let_depth[name] = self._depth(expression)
            known.add(name)
        for index, knob in enumerate(self.knobs):
            if knob.when and self._depth(knob.when) >= index:
                raise self.fail(f"knobs.{knob.name}.when", "reads a knob that is declared after it")
        for key, used in self._expressions():
            self._check_expression(key, used, known)
        for name, expression in self.lets.items():
            if self._let_depth[name] < 0:
                _define(self._fixed, name, expression)

    def _expressions(self) -> Iterator[tuple[str, Expression]]:
        for index, constraint in enumerate(self.constraints):
            yield f"constraints[{index}]", constraint
        for derived in self.derived:
            yield f"derived.{derived.flag}", derived.value
            if derived.when:
                yield f"derived.{derived.flag}.when", derived.when
        if self.work:
            yield "objective.work", self.work

    def _check_flags(self) -> None:
        fixed = dict.fromkeys(self.file.args, "args")
        for knob in self.knobs:
            if knob.flag in fixed:
                raise self.fail(
                    f"knobs.{knob.name}.flag", f"{knob.flag} is set in {fixed[knob.flag]} as well"
                )
            if knob.flag:
                fixed[knob.flag] = f"knobs.{knob.name}"
        for derived in self.derived:
            if derived.flag in fixed:
                raise self.fail(f"derived.{derived.flag}", f"is set in {fixed[derived.flag]} as well")

    def _define_name(self, key: str, name: str, known: set[str]) -> None:
        if not name.isidentifier() or name in _RESERVED:
            raise self.fail(key, f"{name!r} cannot be a name")
        if name in known:
            raise self.fail(key, f"the name {name!r} is taken")

    def _check_expression(
        self, key: str, expression: Expression, known: set[str], later: set[str] | None = None
    ) -> None:
        for name in sorted(expression.names - known):
            if later and name in later:
                raise self.fail(key, f"reads {name!r}, which is declared after it")
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.fail(key, f"unknown name {name!r} in {expression.text!r}{hint}")

    def _depth(self, expression: Expression) -> int:
        """The last knob an expression depends on, through `let`s too; -1: none."""
        position = {knob.name: index for index, knob in enumerate(self.knobs)}
        if "gpus" in position:
            position["world_size"] = position["gpus"]
        position.update(self._let_depth)
        return max((position.get(name, -1) for name in expression.names), default=-1)

    def _constraints_by_depth(self) -> tuple[tuple[Expression, ...], ...]:
        ready: list[list[Expression]] = [[] for _ in self.knobs]
        for constraint in self.constraints:
            ready[max(self._depth(constraint), 0)].append(constraint)
        return tuple(map(tuple, ready))

    def _require_satisfiable(self) -> None:
        try:
            if next(self.points(steps=_SATISFIABILITY_STEPS), None) is not None:
                return
        except OutOfSteps:
            return  # too large to decide here; a search that finds no point says so
        index, nearest = self._nearest()
        if index is None:
            raise self.fail("derived", "no configuration gives every derived flag a value")
        constraint = self.constraints[index]
        raise self.fail(
            f"constraints[{index}]",
            f"no configuration satisfies {constraint.text!r}"
            f"{' with the others' if len(self.constraints) > 1 else ''}; nearest: "
            f"{constraint.refutation(self.names(nearest))}",
        )

    def _nearest(self) -> tuple[int | None, Point]:
        """The constraint that the least violating point violates most, and that point."""
        generator = random.Random(0)
        candidates: Iterator[Point] = (
            _every(self.cardinalities)
            if self.size <= _NEAREST_SAMPLES
            else (tuple(map(generator.randrange, self.cardinalities)) for _ in range(_NEAREST_SAMPLES))
        )
        nearest = min((self.canonical(point) for point in candidates), key=self.violation)
        names = self.names(nearest)
        lacks = [constraint.violation(names) for constraint in self.constraints]
        if not any(lacks):
            return None, nearest
        return lacks.index(max(lacks)), nearest


class OutOfSteps(Exception):  # noqa: N818 (not an error: a budget that was spent)
    """A walk of the space was cut short."""


class _Steps:
    """A budget of knob settings; None is unlimited."""

    def __init__(self, left: int | None) -> None:
        self._left = left

    def take(self) -> None:
        if self._left is None:
            return
        if self._left <= 0:
            raise OutOfSteps
        self._left -= 1


_NEVER = Expression("false")


def _knob(name: str, spec: Any) -> Knob:
    when = Expression(spec.when) if spec.when else None
    if isinstance(spec.values, dict):
        leading = (spec.flag,) if spec.flag else ()
        arguments = tuple((*leading, *given) for given in spec.values.values())
        return Knob(name, tuple(spec.values), spec.flag, arguments, when)
    arguments = tuple(tuple(_emit(spec.flag, value)) if spec.flag else () for value in spec.values)
    return Knob(name, tuple(spec.values), spec.flag, arguments, when)


def _emit(flag: str, value: Any) -> list[str]:
    """true: the bare flag; false or null: nothing; a list: the flag and each item."""
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    return [flag, *(str(item) for item in (value if isinstance(value, list) else [value]))]


def _define(names: dict[str, Value], name: str, expression: Expression) -> None:
    try:
        names[name] = expression.value(names)
    except ExpressionError:
        names.pop(name, None)  # whatever reads it does not hold


def _has_value(expression: Expression, names: Mapping[str, Value]) -> bool:
    try:
        expression.value(names)
    except ExpressionError:
        return False
    return True


def _every(cardinalities: Sequence[int]) -> Iterator[Point]:
    for flat in range(math.prod(cardinalities)):
        point = []
        for count in reversed(cardinalities):
            flat, index = divmod(flat, count)
            point.append(index)
        yield tuple(reversed(point))


def index_of(values: Sequence[Value], value: Value) -> int:
    """Where `value` is among `values`, true being another value than 1. Raises ValueError."""
    for index, candidate in enumerate(values):
        if candidate == value and isinstance(candidate, bool) == isinstance(value, bool):
            return index
    raise ValueError(f"{show(value)} is not among {', '.join(map(show, values))}")


# -- reading ---------------------------------------------------------------------------------------------


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML itself lets the last of two equal keys win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, bool | int | float | str):
                raise MarkedYAMLError(problem=f"{key!r} cannot be a key", problem_mark=key_node.start_mark)
            if (type(key), key) in seen:
                raise MarkedYAMLError(problem=f"{key} is given twice", problem_mark=key_node.start_mark)
            seen.add((type(key), key))
        return super().construct_mapping(node, deep)


def parse_space(text: str, source: str, overrides: Mapping[str, Any] | None = None) -> Space:
    """The space in `text`; `overrides` replace values by dotted key (`search.seed`). Raises SpaceError."""
    try:
        content = yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpaceError(f"{source}{yaml_fault(error)}") from None
    if not isinstance(content, dict):
        raise SpaceError(f"{source}: holds no mapping")
    for key, value in (overrides or {}).items():
        _override(content, key, value)
    try:
        file = SpaceFile.model_validate(content)
    except ValidationError as error:
        key, message = _first_error(error)
        raise SpaceError(f"{_place(source, key, overrides or {})}: {message}") from None
    return Space(file, source, overrides or {})


def load_space(path: Path, overrides: Mapping[str, Any] | None = None) -> Space:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    return parse_space(text, str(path), overrides)


def _override(content: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.rpartition(".")
    target = content.setdefault(section, {}) if section else content
    if isinstance(target, dict):  # else validation names the section
        target[name] = value


def _place(source: str, key: str, given: Collection[str]) -> str:
    """Where a value stands: in the file, or in the option that replaces it."""
    return f"--{key.rpartition('.')[2].replace('_', '-')}" if key in given else f"{source}: {key}"


def _first_error(error: ValidationError) -> tuple[str, str]:
    """The key and what is wrong with it, of the first of pydantic's complaints."""
    first = min(error.errors(include_url=False), key=_telling)
    # Of what may be one of two things pydantic names the thing: a name that no file has.
    place = [part for part in first["loc"] if isinstance(part, int) or part not in _ALTERNATIVES]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    if first["type"] == "extra_forbidden":
        return key, f"unknown key{_near_key(str(first['loc'][-1]))}"
    if first["type"] == "missing":
        return key, "is missing"
    if first["type"] == "model_type":
        return key, "is not a mapping of keys to values"
    message = first["msg"].removeprefix("Value error, ")
    return key, " ".join(message.split())


def _telling(error: ErrorDetails) -> tuple[bool, bool, int]:
    """Smaller for what tells more. An unknown key is most often why another is missing or empty; of what may be a
    mapping or a list, that it is no mapping tells least."""
    no_mapping = error["type"] == "model_type"
    return error["type"] != "extra_forbidden", no_mapping, -len(error["loc"]) if no_mapping else 0


def _near_key(key: str) -> str:
    known = set(SpaceFile.model_fields)
    for field in SpaceFile.model_fields.values():
        known |= set(getattr(field.annotation, "model_fields", {}))
    near = difflib.get_close_matches(key, known | {"flag", "values", "when"}, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
