"""Routes: the first that matches takes a document, says where it goes and what is done there, or drops it with a reason."""

import copy

import pytest
from msgspec import structs

from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.mapping.operations import write_options
from consumer.mapping.steps.routes import ROUTE_BITS, Mapper, RouteOptions, read_route
from consumer.mapping.steps.table import read_steps
from consumer.model import Dropped, Event, Operation, PatchStep, Rejection, Write
from consumer.options import WritingTexts
from tidemark.foundation.settings_reader import parse_params

EVENT = Event("0", 7, "70", 5.0, b"{}", partition_key="k", properties={"op": "d", "id": "p"})


def mapper(routes, steps=()):
    compiled, earlier = [], {}
    for position, table in enumerate(routes):
        options, wrong = parse_params(RouteOptions, table)
        assert wrong == {}
        sink = options.to
        route, problems = read_route(
            options, {}, name=f"routes[{position}]", sink=sink, earlier=earlier.get(sink, 0)
        )
        earlier[sink] = earlier.get(sink, 0) + 1
        assert problems == []
        compiled.append(route)
    return Mapper(read_steps(steps, {})[0], compiled)


def write(document, sink="a", index=0, operation=Operation.UPSERT, **others):
    return Write(EVENT, document, index, sink, operation, **others)


@pytest.mark.parametrize(
    ("routes", "document", "expected"),
    [
        ([{"to": "a"}], {"x": 1}, [write({"x": 1})]),
        ([{"when": "x == 2", "to": "b"}, {"to": "a"}], {"x": 1}, [write({"x": 1})]),
        ([{"when": "x == 1", "to": "b"}, {"to": "a"}], {"x": 1}, [write({"x": 1}, "b")]),
        ([{"to": "b", "also": True}, {"to": "a"}], {"x": 1}, [write({"x": 1}, "b"), write({"x": 1})]),
        ([{"to": "b", "also": True}, {"when": "x == 2", "to": "a"}], {"x": 1}, [write({"x": 1}, "b")]),
        ([{"when": "x == 1", "drop": "test"}, {"to": "a"}], {"x": 1}, [Dropped("test")]),
        ([{"when": "x == 1", "to": "a"}], {"x": 2}, [Rejection("no_route", "no route of 1 takes document 0; a route without `when` takes all")]),
        ([{"to": "a", "also": True}, {"to": "a"}], {"x": 1}, [write({"x": 1}), write({"x": 1}, index=1 << ROUTE_BITS)]),
        ([{"to": "b", "also": True, "steps": [{"drop_fields": ["/y/z"]}]}, {"to": "a"}], {"y": {"z": 1}}, [write({"y": {}}, "b"), write({"y": {"z": 1}})]),
        ([{"to": "b", "also": True}, {"to": "a", "steps": [{"drop_fields": ["/y/z"]}]}], {"y": {"z": 1}}, [write({"y": {"z": 1}}, "b"), write({"y": {}})]),
        ([{"to": "a", "steps": [{"split": "/r"}, {"filter": "n != 0"}]}], {"r": [{"n": 0}, {"n": 1}]}, [Dropped("filter"), write({"n": 1}, index=1)]),
        ([{"to": "a", "operation": "delete"}], {"x": 1}, [write({"x": 1}, operation=Operation.DELETE)]),
        ([{"to": "a", "operation_from": "/op", "operations": {"c": "create", "D": "delete"}}], {"op": "d"}, [write({"op": "d"}, operation=Operation.DELETE)]),
        ([{"to": "a", "operation_from": "op", "steps": [{"drop_fields": ["/op"]}]}], {"op": "replace", "x": 1}, [write({"x": 1}, operation=Operation.REPLACE)]),
        ([{"to": "a", "operation_from": "@property('op')", "operations": {"d": "delete"}}], {}, [write({}, operation=Operation.DELETE)]),
        ([{"to": "a", "operation_from": "/op"}], {"op": "x"}, [Rejection("operation", "'/op' is x; accepted: upsert, create, replace, delete, patch")]),
        ([{"to": "a", "operation_from": "/op"}], {}, [Rejection("operation", "'/op' is missing; accepted: upsert, create, replace, delete, patch, or `operation` for such documents")]),
        ([{"to": "a", "operation_from": "/op", "operation": "create"}], {}, [write({}, operation=Operation.CREATE)]),
        ([{"to": "a", "id": "/n", "ttl": "/t", "version": "/v", "partition_key": ["@partition_key", "/n"]}], {"n": 5, "t": 60, "v": 1.5}, [write({"n": 5, "t": 60, "v": 1.5}, id="5", ttl=60, version=1.5, partition_key=("k", 5))]),
        ([{"to": "a", "id": "@property('id')", "ttl": 9}], {}, [write({}, id="p", ttl=9)]),
        ([{"to": "a", "ttl": "2m"}], {"2m": 1}, [write({"2m": 1}, ttl=120)]),
        ([{"to": "a", "ttl": "90"}], {}, [write({}, ttl=90)]),
        ([{"to": "a", "ttl": "never"}], {}, [write({}, ttl=-1)]),
        ([{"to": "a", "ttl": "field:/t"}], {"t": 7}, [write({"t": 7}, ttl=7)]),
        ([{"to": "a", "ttl": "/2m"}], {"2m": 7}, [write({"2m": 7}, ttl=7)]),
        ([{"to": "a", "ttl": "when.over"}], {"when": {"over": 7}}, [write({"when": {"over": 7}}, ttl=7)]),
        ([{"to": "a", "id": "/mail", "steps": [{"mask": ["/mail"], "with": "m"}]}], {"mail": "x@y"}, [write({"mail": "m"}, id="m")]),
        ([{"to": "a", "operation": "patch", "patch": ["increment /n from /d", "set /s = true"]}], {"d": 2}, [write({"d": 2}, operation=Operation.PATCH, patch=(PatchStep("increment", "/n", 2), PatchStep("set", "/s", True)))]),
        ([{"to": "a", "operation_from": "/op", "patch": ["set /s = true"]}], {"op": "upsert"}, [write({"op": "upsert"})]),
        ([{"to": "a", "operation": "patch", "patch": ["increment /n from /d"]}], {}, [Rejection("patch", "the patch step 'increment /n' finds no value at '/d'")]),
        ([{"to": "a", "id": "/n"}], {}, [Rejection("route", "routes[0]: '/n' is null; expected a text, a number, true or false")]),
        ([{"to": "a", "ttl": "/t"}], {"t": 0}, [Rejection("route", "routes[0]: '/t' is 0; whole seconds from 1, or -1 for ever, are accepted")]),
        ([{"to": "a", "version": "/v"}], {}, [Rejection("route", "routes[0]: '/v' is null; a number or a text is accepted as a version")]),
        ([{"to": "a", "when": "x > 1"}], {"x": "2"}, [Rejection("route", "routes[0]: '/x' is a text and '1' is a number; expected two numbers or two texts")]),
        ([{"to": "a"}], 5, [Rejection("not_object", "document 0 is a number; expected an object")]),
        ([{"to": "a", "steps": [{"unwrap": "/x"}]}], {"x": 5}, [Rejection("not_object", "document 0 is a number; expected an object")]),
        ([{"to": "a", "delete_when_empty": True}], None, [write(None, operation=Operation.DELETE, id="k")]),
        ([{"to": "a"}, {"to": "b", "delete_when_empty": True, "id": "@property('id')"}], None, [write(None, "b", operation=Operation.DELETE, id="p")]),
        ([{"to": "a", "delete_when_empty": True, "id": "/n", "version": "/v"}], None, [write(None, operation=Operation.DELETE, id="k")]),
        ([{"to": "a"}], None, [Rejection("tombstone", "the event has no body, or its document is null, and no route takes it")]),
        ([{"drop": "tombstone"}], None, [Dropped("tombstone")]),
        ([{"to": "a", "delete_when_empty": True, "ttl": 5, "operation": "patch", "patch": ["set /s = 1"]}], None, [write(None, operation=Operation.DELETE, id="k")]),
    ],
    ids=str,
)  # fmt: skip
def test_a_document_goes_where_its_routes_say(routes, document, expected):
    assert mapper(routes)(EVENT, [copy.deepcopy(document)]) == expected


def test_documents_of_one_event_have_their_own_fates():
    steps = [{"split": "/r"}, {"filter": "n != 1"}]
    results = mapper([{"when": "n > 5", "to": "a"}], steps)(EVENT, [{"r": [{"n": 9}, {"n": 1}, {"n": 2}, 3]}])

    assert [type(result).__name__ for result in results] == ["Write", "Dropped", "Rejection", "Rejection"]
    assert [result.reason for result in results[1:]] == ["filter", "no_route", "not_object"]


def test_what_a_transform_returns_goes_through_steps_and_routes_unless_it_says_more():
    given = [Write(EVENT, {"n": 1}, 5), Write(EVENT, {"n": 2}, 6, sink="b"), Dropped("x"), Write(EVENT)]
    made = mapper([{"to": "a", "delete_when_empty": True}], [{"set": {"s": 1}}]).after(lambda *_: given)

    assert made(EVENT, [{}]) == [
        write({"n": 1, "s": 1}, index=5),
        *given[1:3],
        write(None, operation=Operation.DELETE, id="k"),
    ]


def test_an_unwrapped_null_is_a_tombstone():
    results = mapper([{"to": "a", "delete_when_empty": True}], [{"unwrap": "/payload"}])(
        EVENT, [{"payload": None}]
    )

    assert results == [write(None, operation=Operation.DELETE, id="k")]


@pytest.mark.parametrize("texts", [{"empty": "delete"}, {"operation": "delete"}])
def test_a_body_that_is_there_is_read_though_an_empty_one_would_be_a_delete(texts):
    event = structs.replace(EVENT, body=b'{"id": "of-the-body"}')
    options = MappingOptions("h", writing=write_options(WritingTexts(**texts)))
    record = DocumentMapper(options).prepare(Write(event))

    assert (record.rejection, record.partition_key) == (None, '["of-the-body"]')


@pytest.mark.parametrize("body", [b"", b"null", b'{"payload": null}'])
def test_a_tombstone_is_a_delete_at_cosmos_db_whatever_stands_for_nothing_in_its_body(body):
    event = structs.replace(EVENT, body=body)
    [tombstone] = mapper([{"to": "a", "delete_when_empty": True}])(event, [None])
    record = DocumentMapper(MappingOptions("h")).prepare(tombstone)

    assert (record.rejection, record.operation, record.partition_key) == (None, Operation.DELETE, '["k"]')


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        ({"drop": "x", "to": "a", "ttl": 5}, {"drop": "found beside to, ttl; only when and drop are accepted together"}),
        ({"operations": {"a": "create"}}, {"operations": "found without operation_from, whose values it explains"}),
        ({"patch": ["set /a = 1"]}, {"patch": "found without the operation patch; operation = 'patch' is accepted beside it"}),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_contradict_each_other_are_told(table, problems):
    assert parse_params(RouteOptions, table)[1] == problems


@pytest.mark.parametrize(
    ("table", "where", "told"),
    [
        ({"to": "a", "ttl": "0"}, "ttl", "the time to live '0' is not known"),
        (
            {"to": "a", "ttl": "30 days"},
            "ttl",
            "a duration such as 30d, never, or field:<path>; /30 days is a field",
        ),
        ({"when": "a = 1"}, "when", "equality is written =="),
        ({"operation": "patch", "patch": ["double /a"]}, "patch", "the patch step 'double /a' is not known"),
        ({"id": "/l/*"}, "id", "without *"),
        ({"operation_from": "a..b"}, "operation_from", "names with one dot"),
        ({"steps": [{"foo": 1}]}, "steps[0]", "found foo, which is no step"),
    ],
)
def test_a_route_that_cannot_be_compiled_is_told_with_the_option(table, where, told):
    route, [(found, text)] = read_route(parse_params(RouteOptions, table)[0], {}, name="r", sink="a")

    assert route is None
    assert found == where
    assert told in text
