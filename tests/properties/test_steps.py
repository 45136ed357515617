"""Any steps on any document give documents, drops or rejections, and an element's index depends on nothing but its place."""

import copy
from contextlib import suppress

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from consumer.mapping.steps.chain import Document, run_steps
from consumer.mapping.steps.expression import Condition
from consumer.mapping.steps.paths import WrongTypeError
from consumer.mapping.steps.table import STEPS, read_steps
from consumer.model import Dropped, Event, Rejection
from tidemark.foundation.expressions.parsing import ExpressionError

EVENT = Event("0", 1, "1", 0.0, b"", properties={"op": "c"})
NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.sampled_from(["a", "/b", "a.b", "/a/0", "b/c", "c.a.b"])
WIDE = PATHS | st.sampled_from(["/a/*", "/*", "/b/*/c"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
operands = PATHS.filter(lambda path: path[0] == "/" or "/" not in path) | st.sampled_from(
    ["1", "'x'", "null", "true", "@partition", "[1, 'x', null]"]
)
conditions = st.recursive(
    st.tuples(operands, st.sampled_from(["==", "!=", "<", ">=", "in", "not in", "and", "or"]), operands).map(
        " ".join
    )
    | operands.map("not {}".format)
    | st.sampled_from(["exists(/a)", "exists(b.c)"])
    | st.tuples(st.sampled_from(["starts_with", "contains"]), operands, operands).map(
        lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
    ),
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or", "=="]), inner).map(
        lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
    ),
    max_leaves=4,
)
STEPS_DRAWN = {
    "unwrap": PATHS.map(lambda path: {"unwrap": path}),
    "filter": conditions.map(lambda text: {"filter": text}),
    "drop_fields": st.lists(WIDE, min_size=1, max_size=2).map(lambda paths: {"drop_fields": paths}),
    "keep_fields": st.lists(PATHS, min_size=1, max_size=2).map(lambda paths: {"keep_fields": paths}),
    "rename": st.tuples(PATHS, PATHS).map(lambda pair: {"rename": dict([pair])}),
    "set": st.tuples(PATHS, values | st.just("@/a")).map(lambda pair: {"set": dict([pair])}),
    "header": PATHS.map(lambda path: {"header": {"op": path}}),
    "cast": st.tuples(WIDE, st.sampled_from(["text", "number", "integer", "boolean"])).map(
        lambda pair: {"cast": dict([pair])}
    ),
    "time": st.tuples(WIDE, *[st.sampled_from(["iso", "epoch_s", "epoch_ms", "epoch_us", "%Y %H"])] * 2).map(
        lambda parts: {"time": parts[0], "from": parts[1], "to": parts[2]}
    ),
    "flatten": st.just({"flatten": "_"}),
    "hoist": NAMES.map(lambda name: {"hoist": name}),
    "mask": WIDE.map(lambda path: {"mask": [path]}),
    "hash": WIDE.map(lambda path: {"hash": [path], "key": "KEY"}),
}
steps = st.one_of(*STEPS_DRAWN.values())


def built(tables):
    steps, problems = read_steps(tables, {"KEY": "k" * 16})
    assert problems == []
    return steps


def test_every_step_is_drawn():
    assert STEPS_DRAWN.keys() | {"split"} == STEPS.keys()


@given(st.lists(steps, max_size=4), st.lists(steps, max_size=2), values)
def test_steps_reject_what_they_cannot_use_and_raise_nothing(before, after, value):
    chain = built([*before, {"split": "/"}, *after])

    for document in run_steps(chain, Document(0, value), EVENT):
        assert document.is_over or msgspec.json.encode(document.value)
        if isinstance(document.value, Rejection):
            assert document.value.reason == "step"


@given(st.lists(values, min_size=1, max_size=5), st.lists(steps, max_size=2), conditions)
def test_what_becomes_of_an_element_depends_on_nothing_but_the_element(elements, after, condition):
    chain = built([{"split": "/r"}, {"filter": condition}, *after])
    together = run_steps(chain, Document(0, {"r": copy.deepcopy(elements)}), EVENT)

    assert [document.index for document in together] == list(range(len(elements)))
    for place, element in enumerate(elements):
        alone = [None] * place + [copy.deepcopy(element)]
        [document] = run_steps(chain, Document(0, {"r": alone}), EVENT)[place:]
        assert repr(document) == repr(together[place])


@given(conditions | st.text(max_size=30), values)
def test_a_condition_is_refused_or_tells_true_and_false(text, value):
    try:
        condition = Condition(text)
    except ExpressionError:
        return
    with suppress(WrongTypeError):
        assert condition(value, EVENT) in {True, False}


@given(values, conditions)
def test_a_filter_and_its_opposite_never_both_keep_a_document(value, condition):
    kept = [
        not isinstance(document.value, Dropped | Rejection)
        for text in (condition, f"not ({condition})")
        for document in run_steps(built([{"filter": text}]), Document(0, {"a": value}), EVENT)
    ]

    assert kept != [True, True]
