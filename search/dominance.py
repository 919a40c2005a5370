"""Which configurations need not run: a partial order on points, from tactics declared in the space.

A rule orders values of one knob. Point a *precedes* b under the rules of one kind when they differ only in
knobs of those rules and every difference goes from an earlier to a later value of one; the order is a product
of partial orders, hence transitive. From a out of memory follows b out of memory (`known: oom`); from a
fitting follows that b is no faster, and is taken to last as long (`known: fits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from maya.search.expression import Expression
from maya.search.schema import NamedDominance, RuleSpec
from maya.search.space import Knob, Point, Space, index_of
from maya.search.types import Pruning, Trial

Known = Literal["oom", "fits"]


@dataclass(frozen=True)
class Rule:
    name: str
    knob: int  # its position in the space
    order: tuple[int, ...]  # indices of the knob's values, from the one that tells to those told about
    known: Known
    where: Expression | None = None

    def steps(self, earlier: int, later: int) -> bool:
        """Whether the rule leads from value `earlier` to value `later`."""
        if earlier not in self.order or later not in self.order:
            return False
        return self.order.index(earlier) < self.order.index(later)


class Dominance:
    """The rules of one space. `notes` says which tactics of a named set have no knob here."""

    def __init__(self, space: Space) -> None:
        declared = space.file.dominance
        self._space = space
        self.notes: tuple[str, ...] = ()
        if isinstance(declared, NamedDominance):
            self.rules, self.notes = _megatron(space, declared.roles)
        else:
            self.rules = tuple(_rule(space, index, spec) for index, spec in enumerate(declared))
        self._ruled = {rule.knob for rule in self.rules}

    def family(self, point: Point) -> Point:
        """What no rule can change: only points of one family say anything about each other."""
        return tuple(index for knob, index in enumerate(point) if knob not in self._ruled)

    def rank(self, point: Point) -> tuple[int, int]:
        """Smaller for a point that could spare another its run than for that other; by fitting before all else, for a
        trial without enough memory ends at once, while one that fits takes a whole run.
        """
        return self._steps_before(point, "fits"), self._steps_before(point, "oom")

    def _steps_before(self, point: Point, known: Known) -> int:
        names = self._space.names(point)
        return sum(
            rule.order.index(point[rule.knob])
            for rule in self.rules
            if rule.known == known
            and point[rule.knob] in rule.order
            and (rule.where is None or rule.where.holds(names))
        )

    def path(self, a: Point, b: Point, known: Known) -> tuple[str, ...] | None:
        """The names of the rules that lead from `a` to `b`; None when they do not. Empty when a is b."""
        used: list[str] = []
        for knob, (earlier, later) in enumerate(zip(a, b, strict=True)):
            if earlier == later:
                continue
            rule = self._leading(knob, earlier, later, known, (a, b))
            if rule is None:
                return None
            used.append(rule.name)
        return tuple(used)

    def related(self, a: Point, b: Point) -> bool:
        """Whether what becomes known of `a` could spare `b` its run."""
        return a != b and any(self.path(a, b, known) is not None for known in ("oom", "fits"))

    def pruning(self, point: Point, trials: Iterable[Trial]) -> Pruning | None:
        """Why `point` need not run, from the first of `trials` that tells."""
        for trial in trials:
            if trial.known is None or trial.point == point:
                continue
            rules = self.path(trial.point, point, trial.known)
            if rules is not None:
                return Pruning(trial.number, rules, "OOM" if trial.known == "oom" else "FITS")
        return None

    def _leading(
        self, knob: int, earlier: int, later: int, known: Known, ends: tuple[Point, Point]
    ) -> Rule | None:
        for rule in self.rules:
            if rule.knob == knob and rule.known == known and rule.steps(earlier, later):
                where = rule.where
                if where is None or all(where.holds(self._space.names(end)) for end in ends):
                    return rule
        return None


def _rule(space: Space, index: int, spec: RuleSpec) -> Rule:
    key = f"dominance[{index}]"
    position = {knob.name: place for place, knob in enumerate(space.knobs)}
    if spec.knob not in position:
        raise space.fail(f"{key}.knob", f"unknown name {spec.knob!r}")
    place = position[spec.knob]
    try:
        order = tuple(index_of(space.knobs[place].values, value) for value in spec.order)
    except ValueError as error:
        raise space.fail(f"{key}.order", str(error)) from None
    if len(set(order)) < len(order):
        raise space.fail(f"{key}.order", "lists a value twice")
    where = Expression(spec.where) if spec.where else None
    if where:
        _check_where(space, f"{key}.where", where, spec.knob)
    return Rule(spec.rule, place, order, spec.known, where)


def _check_where(space: Space, key: str, where: Expression, knob: str) -> None:
    names = set(space.names(tuple(0 for _ in space.knobs))) | set(space.lets)
    for name in sorted(where.names):
        if name not in names:
            raise space.fail(key, f"unknown name {name!r} in {where.text!r}")


# -- the tactics of the Maya paper for Megatron-LM, found by Megatron's own flags --------------------------


def _megatron(space: Space, roles: Mapping[str, str]) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The paper's four tactics (recomputation, sequence parallelism, distributed optimizer, micro-batches without
    pipelines) and four more of the same kind, on those knobs of the space that play the parts.
    """
    parts = _Parts(space, roles)
    rules: list[Rule] = []
    notes: list[str] = []
    for tactic in (
        _recomputation,
        _sequence_parallelism,
        _distributed_optimizer,
        _micro_batches,
        _virtual_stages,
    ):
        found = tactic(parts)
        rules += found
        if not found:
            notes.append(
                f"dominance: {tactic.__name__.strip('_').replace('_', ' ')} has no knob in this space"
            )
    return tuple(rules), tuple(notes)


_LAYERS_A_STAGE = "--num-layers-per-virtual-pipeline-stage"
_PARTS = {  # part: (flags that tell it, names that do)
    "recompute": (("--recompute-granularity", "--recompute-activations"), ("recompute", "recomputation")),
    "sequence_parallel": (("--sequence-parallel",), ("sequence_parallel", "sp")),
    "distributed_optimizer": (("--use-distributed-optimizer",), ("distributed_optimizer",)),
    "pipeline": (("--pipeline-model-parallel-size",), ("pp",)),
    "micro_batches": (
        (),
        (
            "micro_batches",
            "microbatches",
            "micro_batch_multiplier",
            "microbatch_multiplier",
            "num_microbatches",
        ),
    ),
    "virtual_stages": (
        (_LAYERS_A_STAGE, "--num-virtual-stages-per-pipeline-rank"),
        ("virtual_stages", "virtual", "vpp"),
    ),
    "micro_batch_size": (("--micro-batch-size",), ("micro_batch_size", "mbs")),
}


class _Parts:
    """Which knob plays which part: as `roles` says, else by the flags it emits, else by its name."""

    def __init__(self, space: Space, roles: Mapping[str, str]) -> None:
        self.space = space
        self._knobs = {knob.name: knob for knob in space.knobs}
        for part, name in roles.items():
            if part not in _PARTS:
                raise space.fail(f"dominance.roles.{part}", f"is none of {', '.join(_PARTS)}")
            if name not in self._knobs:
                raise space.fail(f"dominance.roles.{part}", f"unknown name {name!r}")
        self._roles = roles

    def find(self, part: str) -> Knob | None:
        if part in self._roles:
            return self._knobs[self._roles[part]]
        flags, names = _PARTS[part]
        for knob in self.space.knobs:
            if any(flag in arguments for arguments in knob.arguments for flag in flags):
                return knob
        return next((knob for knob in self.space.knobs if knob.name in names), None)

    def switching(self, part: str, lacks: str, fits: str = "") -> list[Rule]:
        """Of a knob that turns on what saves memory: `lacks` is the rule for those that run out of it with that on,
        `fits` the one for those that fit with it off. None without such a knob.
        """
        knob = self.find(part)
        if knob is None:
            return []
        place = self.space.knobs.index(knob)
        off = [index for index, arguments in enumerate(knob.arguments) if not arguments]
        on = [index for index, arguments in enumerate(knob.arguments) if arguments]
        pairs = [(without, with_it) for without in off for with_it in on]
        rules = [Rule(lacks, place, (with_it, without), "oom") for without, with_it in pairs]
        return rules + [Rule(fits, place, pair, "fits") for pair in pairs if fits]


def _recomputation(parts: _Parts) -> list[Rule]:
    return parts.switching(
        "recompute",
        lacks="OOM with recomputation: OOM without",
        fits="fits without recomputation: no faster with it",
    )


def _sequence_parallelism(parts: _Parts) -> list[Rule]:
    return parts.switching("sequence_parallel", lacks="OOM with sequence parallelism: OOM without")


def _distributed_optimizer(parts: _Parts) -> list[Rule]:
    return parts.switching(
        "distributed_optimizer",
        lacks="OOM with the distributed optimizer: OOM without",  # it only ever divides the optimizer's state
        fits="fits without the distributed optimizer: same runtime with it",
    )


def _virtual_stages(parts: _Parts) -> list[Rule]:
    """Interleaving keeps more micro-batches in flight: (p - 1) / (p v) more (Narayanan 2021, section 2.2)."""
    knob = parts.find("virtual_stages")
    plain = None if knob is None else _without_interleaving(knob)
    if knob is None or plain is None:
        return []
    place = parts.space.knobs.index(knob)
    name = "OOM without interleaving: OOM with"
    return [Rule(name, place, (plain, index), "oom") for index in range(len(knob.values)) if index != plain]


def _without_interleaving(knob: Knob) -> int | None:
    """Which value has one stage a rank: the one without arguments where others have some, else 1, which is as many
    stages as can be where it counts the layers of each.
    """
    given = [index for index, arguments in enumerate(knob.arguments) if arguments]
    absent = [index for index, arguments in enumerate(knob.arguments) if not arguments]
    if given and absent:
        return absent[0]
    if any(_LAYERS_A_STAGE in arguments for arguments in knob.arguments):
        return None
    return next((index for index, value in enumerate(knob.values) if type(value) is int and value == 1), None)


def _micro_batches(parts: _Parts) -> list[Rule]:
    """Without pipelines nothing is gained by cutting a batch that fits into more pieces."""
    pipeline = parts.find("pipeline")
    counted, sized = parts.find("micro_batches"), parts.find("micro_batch_size")
    knob = counted or sized
    if knob is None or not all(type(value) is int for value in knob.values):
        return []
    fewest_first = sorted(
        range(len(knob.values)), key=lambda index: knob.values[index], reverse=knob is sized
    )
    where = Expression(f"{pipeline.name} == 1") if pipeline else None
    place = parts.space.knobs.index(knob)
    same = "no pipeline, fits: same runtime with more micro-batches"
    lacks = "OOM with more micro-batches: OOM with fewer, larger ones"
    return [
        Rule(same, place, tuple(fewest_first), "fits", where),
        Rule(lacks, place, tuple(reversed(fewest_first)), "oom"),
    ]
