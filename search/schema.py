"""The space file (docs/search.md), key for key. What the keys mean together is `maya.search.space`'s."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from maya.search.expression import Expression, ExpressionError, Value

Metric = Literal[
    "iteration_time",
    "throughput",
    "cost",
    "time_cost",
    "model_flops_utilization",
    "hardware_flops_utilization",
]
Algorithm = Literal["cma", "random", "grid", "tpe"]


def _flag(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("-"):
        raise ValueError(f"{value!r} is not a flag such as --tensor-model-parallel-size")
    return value


def _expression(value: Any) -> str:
    """A YAML scalar that is an expression; kept as text, so that the file can be written back."""
    if isinstance(value, bool):
        value = str(value).lower()
    if not isinstance(value, str | int | float):
        raise ValueError("is not an expression")
    try:
        return Expression(str(value)).text
    except ExpressionError as error:
        raise ValueError(str(error)) from None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


Flag = Annotated[str, BeforeValidator(_flag)]
ExpressionText = Annotated[str, BeforeValidator(_expression)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KnobSpec(_Section):
    """A choice. With `flag` each value follows it (true: the bare flag, false: nothing); `values` may also
    map each value to the arguments it stands for; with neither it only serves expressions.
    """

    values: Annotated[Any, Field(validate_default=True)] = None
    flag: Flag | None = None
    when: ExpressionText | None = None  # inactive elsewhere: takes its first value and emits nothing

    @field_validator("values")
    @classmethod
    def _values(cls, values: Any, info: ValidationInfo) -> Any:
        if values is None or values in ([], {}):
            raise ValueError("is empty; a knob needs at least one value")
        if isinstance(values, dict):
            return {_scalar(name): _arguments(name, arguments) for name, arguments in values.items()}
        if not isinstance(values, list):
            raise ValueError("is neither a list of values nor a mapping from value to arguments")
        scalars = [_scalar(value) for value in values]
        if len({(type(value), value) for value in scalars}) < len(scalars):
            raise ValueError("lists a value twice")
        return scalars


def _scalar(value: Any) -> Value:
    if not _is_scalar(value) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{value!r} is not a finite number, a string, true or false")
    return value  # type: ignore[no-any-return]


def _arguments(name: Any, arguments: Any) -> list[str]:
    if arguments is None:
        return []
    if not isinstance(arguments, list) or not all(_is_scalar(argument) for argument in arguments):
        raise ValueError(
            f"{name}: the arguments of a value are a list, such as [--recompute-method, uniform]"
        )
    return [str(argument) for argument in arguments]


class DerivedSpec(_Section):
    value: ExpressionText
    when: ExpressionText | None = None


class ObjectiveSpec(_Section):
    metric: Metric = "iteration_time"
    mode: Literal["min", "max"] | None = None  # None: the metric's own
    work: ExpressionText | None = None  # what one iteration completes: samples, tokens; throughput and cost
    price_per_gpu_hour: float | None = Field(default=None, gt=0)  # USD; None: the cluster's


class SearchSpec(_Section):
    algorithm: Algorithm = "cma"
    max_trials: int = Field(default=2000, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**32)


class StopSpec(_Section):
    """Stop when the best `top` stay the same over `patience` consecutive trials that fit."""

    top: int = Field(default=5, gt=0)
    patience: int = Field(default=20, gt=0)
    same_failures: int = Field(default=5, gt=0)  # so many first trials failing alike end the search


class RuleSpec(_Section):
    """One tactic: of two configurations that differ only in `knob`, the one with the later value of `order`
    need not run once the one with the earlier value is known to be out of memory (`known: oom`: the later one
    is too) or to fit (`known: fits`: the later one is no faster).
    """

    rule: str
    knob: str
    order: list[Any] = Field(min_length=2)
    known: Literal["oom", "fits"]
    where: ExpressionText | None = None


class NamedDominance(_Section):
    """A named set; `roles` says which knob plays which part where the flags do not tell."""

    set: Literal["megatron"]
    roles: dict[str, str] = Field(default_factory=dict)


class SpaceFile(_Section):
    cluster: str | None = None
    gpus: int | None = Field(default=None, gt=0)
    lookups: str | None = None  # a lookups file, of embedding tables, beside the space
    args: dict[Flag, Any] = Field(default_factory=dict)
    knobs: dict[str, KnobSpec] = Field(min_length=1)
    let: dict[str, ExpressionText] = Field(default_factory=dict)
    derived: dict[Flag, DerivedSpec] = Field(default_factory=dict)
    constraints: list[ExpressionText] = Field(default_factory=list)
    objective: ObjectiveSpec = ObjectiveSpec()
    search: SearchSpec = SearchSpec()
    stop: StopSpec = StopSpec()
    dominance: NamedDominance | list[RuleSpec] = Field(default_factory=list)

    @field_validator("args")
    @classmethod
    def _args(cls, args: dict[str, Any]) -> dict[str, Any]:
        for flag, value in args.items():
            items = value if isinstance(value, list) else [value]
            if not all(item is None or _is_scalar(item) for item in items):
                raise ValueError(f"{flag}: is neither a value nor a list of values")
        return args

    @field_validator("derived", mode="before")
    @classmethod
    def _derived(cls, derived: Any) -> Any:
        """`--flag: expression` is short for `--flag: {value: expression}`."""
        if not isinstance(derived, dict):
            return derived
        return {flag: spec if isinstance(spec, dict) else {"value": spec} for flag, spec in derived.items()}

    @field_validator("dominance", mode="before")
    @classmethod
    def _dominance(cls, dominance: Any) -> Any:
        return {"set": dominance} if isinstance(dominance, str) else dominance
