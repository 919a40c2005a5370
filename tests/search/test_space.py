from __future__ import annotations

import random
from itertools import product

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.search.space import Space, SpaceError, parse_space

HEAD = "cluster: dgx-h100\ngpus: 16\n"
KNOBS = "knobs: {tp: {flag: --tp, values: [1, 2, 4]}, pp: {flag: --pp, values: [1, 2, 3]}}\n"


def test_values_become_flags_switches_and_argument_lists() -> None:
    space = parse_space(
        HEAD
        + """
args: {--bf16: true, --fp8: false, --lr: 1.5e-4, --betas: [0.9, 0.95]}
knobs:
  sp: {flag: --sequence-parallel, values: [false, true]}
  recompute: {values: {off: [], on: [--recompute-granularity, full]}}
  multiplier: {values: [2, 4]}
derived:
  --micro-batch-size: gpus // multiplier
  --extra: {value: multiplier, when: sp}
""",
        "space.yaml",
    )
    fixed = ["--bf16", "--lr", "0.00015", "--betas", "0.9", "0.95"]
    assert list(space.argv((0, 0, 0))) == [*fixed, "--micro-batch-size", "8"]
    assert list(space.argv((1, 1, 1))) == [
        *fixed,
        *(
            "--sequence-parallel",
            "--recompute-granularity",
            "full",
            "--micro-batch-size",
            "4",
            "--extra",
            "4",
        ),
    ]


def test_inactive_knob_holds_its_first_value_and_emits_nothing(space: Space) -> None:
    point = space.point({**space.configuration(next(space.points())), "tp": 1, "pp": 1, "virtual": 4})
    configuration = space.configuration(space.canonical(point))
    assert configuration["virtual"] == 1
    assert "--num-layers-per-virtual-pipeline-stage" not in space.argv(space.canonical(point))


def test_lazy_walk_finds_exactly_the_admissible_points(space: Space) -> None:
    every = {space.canonical(point) for point in product(*map(range, space.cardinalities))}
    walked = list(space.points())
    assert len(walked) == len(set(walked))
    assert set(walked) == {point for point in every if space.admissible(point)}


def test_space_of_many_points_is_neither_walked_nor_held() -> None:
    knobs = "".join(f"  k{i}: {{flag: --k{i}, values: {list(range(10))}}}\n" for i in range(12))
    space = parse_space(HEAD + "knobs:\n" + knobs + "constraints: ['k0 + k1 + k11 == 20']\n", "space.yaml")
    assert space.size == 10**12
    point = space.sample(random.Random(0))
    assert point is not None and space.admissible(point)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KNOBS + "knbs: {}", "knbs: unknown key; did you mean 'knobs'?"),
        (KNOBS + "search: {algoritm: cma}", "search.algoritm: unknown key; did you mean 'algorithm'?"),
        (
            "knobs: {tp: {flag: --tp, values: []}}",
            "knobs.tp.values: is empty; a knob needs at least one value",
        ),
        ("knobs: {tp: {flag: --tp}}", "knobs.tp.values: is empty; a knob needs at least one value"),
        ("knobs: {tp: {flag: --tp, valus: [1]}}", "knobs.tp.valus: unknown key; did you mean 'values'?"),
        ("knobs: {tp: {flag: tp, values: [1]}}", "knobs.tp.flag: 'tp' is not a flag"),
        ("knobs: {tp: {flag: --tp, values: [1, 1]}}", "knobs.tp.values: lists a value twice"),
        (KNOBS + "constraints: [tp * qq == 4]", "constraints[0]: unknown name 'qq' in 'tp * qq == 4'"),
        (KNOBS + "constraints: ['tp == open(1)']", "constraints[0]: 'open(1)' is not allowed"),
        (KNOBS + "args: {--tp: 3}", "knobs.tp.flag: --tp is set in args as well"),
        (KNOBS + "let: {gpus: '3'}", "let.gpus: the name 'gpus' is taken"),
        (
            "knobs: {tp: {values: [1], when: pp > 1}, pp: {values: [1, 2]}}",
            "knobs.tp.when: reads 'pp', which is declared after it",
        ),
        (KNOBS + "dominance: megatro", "dominance.set: Input should be 'megatron'"),
        (KNOBS + "dominance: [{rule: r, knob: tp, order: [1, 2]}]", "dominance[0].known: is missing"),
        (KNOBS + "dominance: [megatron]", "dominance[0]: is not a mapping of keys to values"),
        (KNOBS + "stop: 3", "stop: is not a mapping of keys to values"),
        (KNOBS + "stop: {top: 0}", "stop.top: Input should be greater than 0"),
        (
            KNOBS + "dominance: [{rule: r, knob: tp, order: [1, 8], known: oom}]",
            "dominance[0].order: 8 is not among",
        ),
    ],
)
def test_each_mistake_is_one_line_with_file_and_key(text: str, message: str) -> None:
    from maya.search.dominance import Dominance

    with pytest.raises(SpaceError) as caught:
        Dominance(parse_space(HEAD + text, "space.yaml"))
    assert str(caught.value).startswith(f"space.yaml: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1,\n", ":3:1: is not YAML: expected the node content, but found '<stream end>'; check"),
        (
            "a: 1\nb: [1\nc: 2\n",
            ":3:2: is not YAML: expected ',' or ']', but got ':'; close the bracket of line 2",
        ),
        (
            "a: b: c\n",
            ":1:5: is not YAML: mapping values are not allowed here; put a value with a colon in quotes",
        ),
        (
            "a:\n\tb: 1\n",
            ":2:1: is not YAML: found character '\\t' that cannot start any token; indent with spaces",
        ),
        ("a: 1\na: 2\n", ":2:1: is not YAML: a is given twice; leave one of them out"),
        (
            "a: 'b\n",
            ":2:1: is not YAML: found unexpected end of stream; close the quotation mark of line 1, column 4",
        ),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_space(text, "space.yaml")
    assert str(caught.value).startswith(f"space.yaml{message}")
    assert "\n" not in str(caught.value)


def test_a_fault_of_an_option_is_not_the_file_s() -> None:
    with pytest.raises(SpaceError, match=r"^--algorithm: Input should be 'cma', 'random', 'grid' or 'tpe'"):
        parse_space(HEAD + KNOBS, "space.yaml", {"search.algorithm": "gird"})
    with pytest.raises(SpaceError, match=r"^--gpus: is fixed and a knob as well"):
        parse_space("cluster: c\nknobs: {gpus: {values: [8]}}", "space.yaml", {"gpus": 8})


def test_unsatisfiable_constraint_shows_the_arithmetic_of_the_nearest_point() -> None:
    text = """
knobs: {tp: {flag: --tp, values: [2, 4]}, pp: {flag: --pp, values: [3]}}
let: {dp: gpus // (tp * pp)}
constraints: [tp * pp * dp == world_size]
"""
    with pytest.raises(SpaceError) as caught:
        parse_space(HEAD + text, "space.yaml")
    assert str(caught.value).startswith("space.yaml: constraints[0]: no configuration satisfies")
    assert str(caught.value).endswith("!= world size (16)")
    assert "tp(4) * pp(3) * dp(1)" in str(caught.value) or "tp(2) * pp(3) * dp(2)" in str(caught.value)


SCALARS = st.one_of(
    st.booleans(), st.integers(-5, 5), st.floats(-2, 2), st.text("abx-_", max_size=4), st.none()
)
CONTENT = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["values", "flag", "when", "--x", "tp", "set", "rule"]), inner, max_size=3
        ),
    ),
    max_leaves=8,
)
FILES = st.dictionaries(
    st.sampled_from(
        [
            "cluster",
            "gpus",
            "args",
            "knobs",
            "let",
            "derived",
            "constraints",
            "objective",
            "search",
            "stop",
            "dominance",
        ]
    ),
    CONTENT,
)


@settings(max_examples=200)
@given(FILES)
def test_any_yaml_is_a_space_or_a_space_error(content: dict[str, object]) -> None:
    text = yaml.safe_dump({"gpus": 8, "knobs": {"tp": {"values": [1, 2]}}, **content})
    try:
        space = parse_space(text, "space.yaml")
    except SpaceError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(word, str) for word in space.argv(next(space.points())))


VALUES = st.lists(
    st.one_of(st.integers(-9, 9), st.booleans(), st.sampled_from("abc")), min_size=1, max_size=5
)


@given(st.lists(VALUES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_configuration_and_point_are_inverse(values: list[list[object]], numbers: random.Random) -> None:
    unique = [list({(type(value), value): value for value in each}.values()) for each in values]
    knobs = {f"k{i}": {"values": each} for i, each in enumerate(unique)}
    space = parse_space(yaml.safe_dump({"gpus": 1, "knobs": knobs}), "space.yaml")
    point = tuple(numbers.randrange(count) for count in space.cardinalities)
    assert space.point(space.configuration(point)) == point
