"""Steps of the consumer's file: each changes documents as its options say, or rejects the event with the path."""

import copy
import hashlib
import hmac

import pytest

from consumer.mapping.steps.chain import Document, run_steps
from consumer.mapping.steps.expression import Condition
from consumer.mapping.steps.paths import WrongTypeError
from consumer.mapping.steps.table import STEPS, read_steps
from consumer.model import Dropped, Event, Rejection
from tidemark.foundation.expressions.parsing import ExpressionError

SETTINGS = {"HASH_KEY": "k" * 16, "SHORT": "abc"}
EVENT = Event(
    *("3", 7, "70", 12.5, b"{}"), partition_key="LGA", properties={"op": "c", "n": 5}, content_type="a/b"
)
HASHED = hmac.new(b"k" * 16, b"12", hashlib.sha256).hexdigest()


def run(tables, document, place=0):
    steps, problems = read_steps(tables, SETTINGS)
    assert problems == []
    return run_steps(steps, Document(place, copy.deepcopy(document)), EVENT)


@pytest.mark.parametrize(
    ("change", "copied"),
    [
        ({"mask": ["/copy/name"]}, {"name": "", "tags": ["x"]}),
        ({"drop_fields": ["/copy/name"]}, {"tags": ["x"]}),
        ({"rename": {"/copy/name": "/copy/called"}}, {"tags": ["x"], "called": "n"}),
        ({"set": {"/copy/more": 1}}, {"name": "n", "tags": ["x"], "more": 1}),
        ({"mask": ["/copy/tags/*"]}, {"name": "n", "tags": [""]}),
    ],
    ids=str,
)
def test_what_a_step_changes_in_a_copy_stays_where_it_was_copied_from(change, copied):
    person = {"name": "n", "tags": ["x"]}

    [result] = run([{"set": {"/copy": "@/person"}}, change], {"person": person})

    assert result.value == {"person": person, "copy": copied}


def test_an_object_that_is_copied_into_itself_is_copied_once():
    [result] = run([{"set": {"/a/before": "@/a"}}, {"flatten": "."}], {"a": {"b": 1}})

    assert result.value == {"a.b": 1, "a.before.b": 1}


def test_what_steps_change_of_a_property_stays_in_the_event():
    """Of AMQP values or of values of the Functions host; a dead letter and a forwarded event have them as they came."""
    event = Event("3", 7, "70", 12.5, b"{}", properties={"p": {"name": "n"}})
    steps, _ = read_steps(
        [{"header": {"p": "/p"}}, {"set": {"q": "@property('p')"}}, {"mask": ["/p/name", "/q/name"]}], {}
    )
    [result] = run_steps(steps, Document(0, {}), event)

    assert result.value == {"p": {"name": ""}, "q": {"name": ""}}
    assert event.properties == {"p": {"name": "n"}}


@pytest.mark.parametrize(
    ("step", "document", "expected"),
    [
        ({"unwrap": "/a/b"}, {"a": {"b": {"c": 1}}}, {"c": 1}),
        ({"unwrap": "a.b"}, {"a": {"b": [1]}}, [1]),
        ({"unwrap": "/payload"}, {"payload": None}, None),
        ({"drop_fields": ["/a", "b.c", "/l/*/x", "/none/at/all"]}, {"a": 1, "b": {"c": 2, "d": 3}, "l": [{"x": 1}, {"y": 2}, 5]}, {"b": {"d": 3}, "l": [{}, {"y": 2}, 5]}),
        ({"drop_fields": ["/l/*"]}, {"l": [1, 2, 3]}, {"l": []}),
        ({"keep_fields": ["/a", "/b/c", "/none"]}, {"a": 1, "b": {"c": None, "d": 3}, "e": 4}, {"a": 1, "b": {"c": None}}),
        ({"rename": {"a": "b", "b": "a", "c": "/d/e", "none": "f"}}, {"a": 1, "b": 2, "c": 3}, {"b": 1, "a": 2, "d": {"e": 3}}),
        ({"rename": {"/a.b": "c"}}, {"a.b": 1}, {"c": 1}),
        ({"set": {"x/y": [1], "p": "@partition", "s": "@sequence_number", "t": "@enqueued_at", "k": "@partition_key", "o": "@property('op')", "at": "@@home", "copy": "@/a", "no": "@property('none')"}}, {"a": 9}, {"a": 9, "x": {"y": [1]}, "p": "3", "s": 7, "t": 12.5, "k": "LGA", "o": "c", "at": "@home", "copy": 9, "no": None}),
        ({"header": {"op": "/meta/op", "none": "/x"}}, {}, {"meta": {"op": "c"}}),
        ({"cast": {"a": "number", "b": "integer", "c": "text", "d": "boolean", "e": "integer", "f": "text", "n": "text", "none": "text", "/l/*": "integer"}}, {"a": "1.50", "b": "12", "c": 12.0, "d": "True", "e": 3.0, "f": False, "n": None, "l": ["1", 2]}, {"a": 1.5, "b": 12, "c": "12", "d": True, "e": 3, "f": "false", "n": None, "l": [1, 2]}),
        ({"time": "/t", "to": "epoch_ms"}, {"t": "2026-11-21T08:00:00.5Z"}, {"t": 1795248000500}),
        ({"time": ["/t", "/u"], "from": "epoch_s", "to": "iso"}, {"t": 1795248000, "u": 1795248000.25}, {"t": "2026-11-21T08:00:00Z", "u": "2026-11-21T08:00:00.250Z"}),
        ({"time": "/t", "from": "%d/%m/%Y %H:%M", "to": "iso"}, {"t": "21/11/2026 08:00"}, {"t": "2026-11-21T08:00:00Z"}),
        ({"time": "/t", "to": "%Y-%m-%d"}, {"t": "2026-11-21T23:30:00-02:00"}, {"t": "2026-11-22"}),
        ({"time": "/t", "to": "epoch_s"}, {"t": "2026-11-21T08:00:00.5"}, {"t": 1795248000.5}),
        ({"flatten": "_"}, {"a": {"b": {"c": 1}, "d": []}, "e": {}, "f": 2}, {"a_b_c": 1, "a_d": [], "e": {}, "f": 2}),
        ({"hoist": "payload"}, [1], {"payload": [1]}),
        ({"mask": ["/a", "/b", "/c", "/d", "/e", "/n", "/none", "/l/*/x"]}, {"a": "s", "b": 5, "c": True, "d": [1], "e": {"f": 1}, "n": None, "l": [{"x": 1.5}]}, {"a": "", "b": 0, "c": False, "d": [], "e": {}, "n": None, "l": [{"x": 0.0}]}),
        ({"mask": ["/a"], "with": "****"}, {"a": 5}, {"a": "****"}),
        ({"hash": ["/a", "/b", "/n", "/none", "/l/*"], "key": "HASH_KEY"}, {"a": "12", "b": 12, "n": None, "l": [12.0]}, {"a": HASHED, "b": HASHED, "n": None, "l": [HASHED]}),
        ({"filter": "a > 1"}, {"a": 2}, {"a": 2}),
        ({"filter": "a > 1"}, {"a": 1}, Dropped("filter")),
        ({"filter": "a == 1", "drop": "no_one"}, {}, Dropped("no_one")),
    ],
    ids=str,
)  # fmt: skip
def test_a_step_changes_the_document_as_its_options_say(step, document, expected):
    [result] = run([step], document)

    assert result == Document(0, expected)
    assert [type(value) for value in (expected.values() if isinstance(expected, dict) else ())] == [
        type(value) for value in (result.value.values() if isinstance(expected, dict) else ())
    ]


@pytest.mark.parametrize(
    ("step", "document", "told"),
    [
        ({"unwrap": "/a/b"}, {"a": 1}, "'/a/b' is missing"),
        ({"split": "/records"}, {"records": {"a": 1}}, "'/records' is an object; expected a list"),
        ({"split": "/"}, {"a": 1}, "'/' is an object; expected a list"),
        ({"filter": "a > 1"}, {"a": "2"}, "'/a' is a text and '1' is a number; expected two numbers or two texts"),
        ({"filter": "a"}, {"a": 1}, "'a' is a number; expected true, false or null"),
        ({"filter": "starts_with(a, 'x')"}, {"a": 1}, "'/a' is a number; starts_with() expects a text"),
        ({"filter": "1 in a"}, {"a": "text"}, "'/a' is a text; expected a list after 'in'"),
        ({"rename": {"a": "b"}}, {"a": 1, "b": 2}, "'/b' exists already"),
        ({"rename": {"a": "b/c"}}, {"a": 1, "b": 2}, "'/b' is a number; expected an object"),
        ({"keep_fields": ["/l/0/x"]}, {"l": [{"x": 1}]}, "'/l' is a list, which is kept as a whole or not"),
        ({"set": {"a": 1}}, [1], "the document is a list; expected an object"),
        ({"set": {"a/b": 1}}, {"a": "x"}, "'/a' is a text; expected an object"),
        ({"cast": {"a": "number"}}, {"a": "12 apples"}, "'/a' is a text that is no number"),
        ({"cast": {"a": "number"}}, {"a": "1e999"}, "'/a' is a text that is no number"),
        ({"cast": {"a": "integer"}}, {"a": 1.5}, "'/a' has a fraction; expected a whole number"),
        ({"cast": {"a": "boolean"}}, {"a": "maybe"}, "'/a' is a text; expected true, false, 1 or 0"),
        ({"cast": {"a": "text"}}, {"a": {}}, "'/a' is an object; expected a text"),
        ({"time": "/l/*", "to": "iso"}, {"l": ["yesterday"]}, "'/l/0' is no time of the form iso"),
        ({"time": "/t", "to": "iso", "from": "epoch_s"}, {"t": 1e18}, "'/t' is no time of the form epoch_s"),
        ({"time": "/t", "to": "epoch_s"}, {"t": 5}, "'/t' is a number; expected a text of the form iso"),
        ({"flatten": "_"}, {"a": {"b": 1}, "a_b": 2}, "two fields are named 'a_b'"),
        ({"hash": ["/a"], "key": "HASH_KEY"}, {"a": [1]}, "'/a' is a list"),
        ({"hash": ["/a"], "key": "HASH_KEY"}, {"a": "\ud800"}, "'/a' holds half of a surrogate pair"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_type_rejects_the_event_with_the_path(step, document, told):
    [result] = run([{"drop_fields": ["/none"]}, step] if "set" not in step else [step], document)

    assert isinstance(result.value, Rejection)
    assert result.value.reason == "step"
    assert told in result.value.detail
    assert result.value.detail.startswith("steps[")


def test_an_element_keeps_its_index_whatever_is_dropped_before_it():
    records = {"records": [{"n": 0}, {"n": 1}, "text", {"n": 3}]}
    every = run([{"split": "/records"}], records)
    some = run([{"split": "/records"}, {"filter": "n != 1"}], records)

    assert [document.index for document in every] == [0, 1, 2, 3]
    assert [document.index for document in some] == [0, 1, 2, 3]
    assert [document.value for document in some] == [{"n": 0}, Dropped("filter"), "text", {"n": 3}]


def test_two_splits_give_indexes_that_no_other_element_has():
    records = [{"r": [{"n": 1}, {"n": 2}]}, {"r": []}, {"r": [{"n": 3}]}]
    results = run([{"split": "/"}, {"split": "/r"}], records)

    assert [(document.index, document.value) for document in results] == [
        *((0, {"n": 1}), (1, {"n": 2}), (1, Dropped("no_elements")), (2 << 20, {"n": 3}))
    ]


def test_steps_leave_a_tombstone_as_it_is():
    assert run([{"unwrap": "/a"}, {"filter": "b == 1"}, {"set": {"c": 1}}], {"a": None}) == [
        Document(0, None)
    ]


def test_a_constant_is_not_shared_by_documents():
    steps, _ = read_steps(
        [{"set": {"tags": []}}, {"mask": ["/m"], "with": {}}, {"set": {"m/x": "@/n"}}], SETTINGS
    )
    first, second = (run_steps(steps, Document(0, {"m": 1, "n": n}), EVENT)[0].value for n in (1, 2))

    assert (first["m"], second["m"]) == ({"x": 1}, {"x": 2})
    assert first["tags"] is not second["tags"]


@pytest.mark.parametrize(
    ("tables", "problems"),
    [
        ([{"unwarp": "/a"}], [("[0]", "found unwarp, which is no step; did you mean 'unwrap'?")]),
        ([{}], [("[0]", f"found an empty table, which is no step; accepted are {', '.join(STEPS)}")]),
        ([{"unwrap": "/a", "hoist": "b"}], [("[0]", "found unwrap and hoist in one table; one step a table is accepted")]),
        ([{"mask": ["/a"], "wiht": 1}], [("[0].wiht", "is not an option here; did you mean 'with'?")]),
        ([{"hash": ["/a"]}], [("[0].key", "is missing")]),
        ([{"hash": ["/a"], "key": "NONE"}, {"hash": ["/a"], "key": "SHORT"}], [("[0].key", "the setting NONE is not set; at least 16 characters are accepted"), ("[1].key", "the setting SHORT has 3 characters; at least 16 characters are accepted")]),
        ([{"cast": {"a": "int"}}], [("[0].cast", "found 'int'; accepted: text, number, integer, boolean")]),
        ([{"time": "/a", "to": "epoch"}], [("[0].to", "found 'epoch'; accepted: iso, epoch_s, epoch_ms, epoch_us, or a format such as '%Y-%m-%d %H:%M:%S'")]),
        ([{"unwrap": "/l/*"}], [("[0].unwrap", "found '/l/*'; a path of one value is accepted here, without *")]),
        ([{"unwrap": "a..b"}], [("[0].unwrap", "found 'a..b'; names with one dot between them are accepted")]),
        ([{"rename": {"a": "x", "b": "x"}}], [("[0].rename", "found two fields with one new name; each needs its own")]),
        ([{"split": "/"}] * 3, [("", "found 3 steps 'split'; 2 are accepted, in the hub and in a route together")]),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_step_is_told_with_its_place_and_what_is_accepted(tables, problems):
    assert read_steps(tables, SETTINGS)[1] == problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type == 'landed' and not deleted", True),
        ("order.number in [1, 5]", True),
        ("/order/number == 5.0", True),
        ("order.number == true", False),
        ("exists(deleted) and not exists(/nope)", True),
        ("deleted == null and nope == null", True),
        ("deleted < 5 or deleted >= 5", False),
        ("not (nope > 1)", True),
        ("nope in [null]", True),
        ("/from == 'JFK' and @property('op') == 'c'", True),
        ("exists(@property('op')) and not exists(@property('x'))", True),
        ("legs[0]['from'] == 'X' and /legs/1/from == null", True),
        ('/content-type == "x"', True),
        ("@partition == '3' and @sequence_number >= 7 and @content_type == 'a/b'", True),
        ("starts_with(type, 'la') and ends_with(type, 'ed') and contains(type, 'and')", True),
        ("starts_with(nope, 'la')", False),
        ("kind(alt) == 'number' and kind(flag) == 'boolean' and kind(nope) == 'null'", True),
        ("1 < alt <= 1200", True),
        ("length(legs) == 1 and length(nope) == null", True),
        ("lower(upper(trim(' a '))) == 'a'", True),
        ("'/a = b' == type", False),
        ("-1 < alt", True),
        ("tags == ['a', true]", True),
        ("tags == ['a', 1]", False),
        ("'a' in tags and 'b' not in tags", True),
        ("true or alt > 'x'", True),
        ("type == 'landed'\n and flag", True),
    ],
)
def test_a_condition_holds_as_its_page_says(text, expected):
    document = {"type": "landed", "alt": 1200, "deleted": None, "order": {"number": 5}, "flag": True}
    document |= {"legs": [{"from": "X"}], "content-type": "x", "from": "JFK", "tags": ["a", True]}

    assert Condition(text)(document, EVENT) is expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the expression is empty"),
        ("a = 1", "equality is written =="),
        ("a && b", "write and, or"),
        ("!a", "write not"),
        ("from == 'x'", "a field of this name is written with a slash, such as /from"),
        ("order/number == 1", "a path with slashes begins with one; there is no division"),
        ("a is null", "compare with null by =="),
        ("a + 1 == 2", "'a + 1' is not accepted"),
        ("foo(a)", "functions are exists(path)"),
        ("@now > 1", "'@now' is not accepted; @partition, @sequence_number"),
        ("/l/*/x == 1", "without *"),
        ("__import__('os').system('true')", "is not accepted"),
        ("[a for a in b]", "is not accepted"),
        ("a." * 600 + "b", "expression of 1201 characters"),
        ("not " * 60 + "a", "nested deeper than 40 levels"),
        ("(a := 1)", "is not accepted"),
        ("f'{a}'", "is not accepted"),
        ("b'a' == a", "is not accepted"),
        ("-a == 1", "- stands before numbers only"),
    ],
)
def test_what_is_no_condition_is_told(text, told):
    with pytest.raises(ExpressionError, match=r".") as error:
        Condition(text)

    assert told in str(error.value)


def test_a_condition_that_is_no_truth_is_told():
    with pytest.raises(WrongTypeError, match="expected true, false or null"):
        Condition("a")({"a": "yes"}, EVENT)
