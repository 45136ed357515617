"""What a type accepts, in words: no name of Python's types reaches a person."""

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from consumer.definition.reading import OPTIONS, RouteOptions
from consumer.mapping.steps.table import STEPS
from scaling.config.rule_registry import RULES
from scaling.service.registry import COLLECTORS, SCALERS, collector_class, scaler_class
from tidemark.foundation.wording import accepted, why_refused


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Struct):
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is below zero")


class Strict(Struct, forbid_unknown_fields=True, rename={"begin": "from"}):
    on: list[str] = []
    begin: str = ""


@pytest.mark.parametrize(
    ("wanted", "value", "words"),
    [
        (str, 5, "found 5; accepted: text"),
        (Annotated[str, Meta(min_length=1)], "", "found ''; accepted: text, not empty"),
        (int, "x", "found 'x'; accepted: a whole number"),
        (Annotated[int, Meta(ge=1, le=9)], 10, "found 10; accepted: a whole number from 1 up to 9"),
        (Annotated[float, Meta(gt=0, lt=0.5)] | None, 1.5, "found 1.5; accepted: a number above 0 below 0.5"),
        (bool, "yes", "found 'yes'; accepted: true or false"),
        (list[str], [{"a": 1}], "found {'a': 1} at [0]; accepted: text"),
        (Annotated[list[str], Meta(min_length=1)], [], "found []; accepted: a list of text, not empty"),
        (list[Inner], [{"x": 1}, {"x": "y"}], "found 'y' at [1].x; accepted: a whole number"),
        (list[Strict], [{"on": "12-25"}], "found '12-25' at [0].on; accepted: a list of text"),
        (list[Strict], [{"onn": ["12-25"]}], "found 'onn' at [0]; accepted: on, from"),
        (dict[str, list[int]], {"a": [1, "x"]}, "found {'a': [1, 'x']}; accepted: a table"),
        (str | list[int], 2.5, "found 2.5; accepted: text or a list of a whole number"),
        (tuple[str, ...], "a", "found 'a'; accepted: a list of text"),
        (dict[str, str], ["a"], "found ['a']; accepted: a table"),
        (Colour, "green", "found 'green'; accepted: red, blue"),
        (Literal["a", "b"] | None, "c", "found 'c'; accepted: a, b"),
        (Inner, 3, "found 3; accepted: a table"),
        (Inner, {"x": -1}, "found {'x': -1}: x is below zero"),
    ],
)
def test_a_value_of_another_type_is_refused_in_words(wanted, value, words):
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, wanted)
    assert why_refused(value, raised.value, wanted) == words


def test_every_option_that_a_file_can_have_has_words():
    classes = [*RULES.values(), *map(collector_class, COLLECTORS), *map(scaler_class, SCALERS)]
    types: list[Any] = [*(one.options for one in STEPS.values()), *OPTIONS.values(), RouteOptions]
    types += [one.Params for one in classes]
    for options in types:
        for field in msgspec.structs.fields(options):
            assert "`" not in accepted(field.type) and "type" not in accepted(field.type), (
                options,
                field.name,
            )
