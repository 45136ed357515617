"""What follows each answer of Cosmos DB to each operation; steps alone, without a service."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.mapping.operations import WriteOptions, parse_operation_from, parse_patch, write_options
from consumer.model import Batch, Event, Operation, Outcome, PatchStep, Record, Write, WriteResult
from consumer.options import WritingTexts
from consumer.sinks.cosmos.answers import Answer
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.sinks.cosmos.client import ContainerDefinition, KeyRange
from consumer.sinks.cosmos.steps import Known, Rules, Step, first_step, next_step
from consumer.versions import Change, Stamp
from tests.support.consumer.guarded_documents import GuardedDocuments, next_or_result
from tidemark.foundation.errors import SettingsError

UPSERT, CREATE, REPLACE, DELETE, PATCH = Operation
INCREMENT = (PatchStep("increment", "/n", 1),)


def record(operation=UPSERT, number=5, *, guarded=False, **change):
    event = Event("0", number, str(number), float(number), b"{}")
    stamp = Stamp(number, float(number), "ns/hub/0") if guarded else None
    return Record(event, "k", b"{}", operation=operation, change=Change("a", stamp, **change))


def mapped(document, operation=UPSERT, **options):
    mapper = DocumentMapper(MappingOptions("hub", writing=WriteOptions(source="ns/hub", **options)))
    event = Event("0", 5, "5", 7.0, msgspec.json.encode(document) if document is not None else b"", "the key")
    return mapper.prepare(Write(event, operation=operation))


@pytest.mark.parametrize("status", [401, 403, 408, 410, 429, 449, 500, 503])
@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("guarded", [False, True])
def test_what_the_service_says_about_itself_is_retried_whatever_the_operation(status, operation, guarded):
    found = record(operation, guarded=guarded)
    step = first_step(found, None)

    assert next_step(found, step, {"statusCode": status}, Rules()).outcome is Outcome.RETRY


@pytest.mark.parametrize("operation", Operation)
def test_a_container_that_is_missing_is_no_missing_document(operation):
    found = record(operation)
    result = next_step(found, first_step(found, None), {"statusCode": 404, "subStatusCode": 1003}, Rules())

    assert (result.outcome, result.rerouted) == (Outcome.RETRY, True)


@pytest.mark.parametrize(
    ("known", "mostly_there", "step"),
    [
        (None, False, Step("Create")),
        (None, True, Step("Read")),
        (Known("e1", Stamp(4, 4.0, "ns/hub/0")), False, Step("Replace", "e1")),
        (Known("e1", Stamp(9, 9.0, "ns/hub/0")), False, Step("Read")),  # somebody may have removed it since
    ],
)
def test_a_known_document_takes_one_request(known, mostly_there, step):
    assert first_step(record(guarded=True), known, mostly_there=mostly_there) == step


def test_others_that_always_come_between_cost_a_bounded_number_of_requests():
    found, count = record(guarded=True), 0
    answers = {"Create": {"statusCode": 409}, "Replace": {"statusCode": 412}}
    answers["Read"] = {"statusCode": 200, "eTag": "e", "resourceBody": {}, "requestCharge": 1.0}
    step = first_step(found, None)
    while isinstance(step, Step):
        count += 1
        step = next_step(found, step, answers[step.verb], Rules())

    assert (step.outcome, step.reason, count) == (Outcome.RETRY, "concurrent_write", 8)
    assert step.request_units == 4.0  # of the reads


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60), st.permutations(range(6)))
def test_whatever_the_steps_of_several_writers_come_in_between_the_latest_event_stays(turns, order):
    """Each writer has some of the events, remembers what it wrote, and may lose an answer; all are sent until settled."""
    documents, known = GuardedDocuments(), ({}, {}, {})
    work = {writer: [record(number=n, guarded=True) for n in order if n % 3 == writer] for writer in range(3)}
    steps = {}

    def turn(writer, *, loses=False):
        if not work[writer]:
            return
        current = work[writer][0]
        step = steps.pop(writer, None) or first_step(current, known[writer].get("k"))
        answer = documents.answer(current, step)
        if loses:
            return  # carried out, and begun anew
        found = next_or_result(current, step, answer)
        known[writer].pop("k", None)
        if isinstance(found, WriteResult):
            assert found.outcome is Outcome.WRITTEN
            if step.verb != "Read":
                known[writer]["k"] = Known(answer["eTag"], current.change.stamp)
            work[writer].pop(0)
        else:
            steps[writer] = found

    highest = -1
    for writer, luck in [*turns, *((n % 3, 1) for n in range(60))]:
        turn(writer, loses=luck == 0)
        now = max(documents.versions().values(), default=-1)
        assert now >= highest
        highest = now

    assert not any(work.values())
    assert documents.versions() == {"k": 5}


class Container:
    """Answers with what `answers` has, in turn."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def open(self):
        return ContainerDefinition("rid", ("/id",), "Hash", 2)

    async def ranges(self):
        return (KeyRange("", "0"),)

    async def send_bulk(self, _rid, _range_id, body, **_):
        operations = msgspec.json.decode(body)
        if operations[0]["id"] == "tidemark-probe":
            return Answer([{"statusCode": 404}])
        self.requests.append(operations)
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.sleep(3600)
        return answer


@pytest.mark.parametrize(
    "answer", [Answer(), Answer(status=503), Answer(status=408), Answer([{"statusCode": 500}]), None]
)
@pytest.mark.parametrize(("marked", "outcome"), [(True, Outcome.RETRY), (False, Outcome.REJECT)])
async def test_an_increment_without_a_mark_is_never_sent_again_after_an_unknown_outcome(
    answer, marked, outcome
):
    mapping = MappingOptions("hub", writing=WriteOptions(patch_mark=marked))
    sink = CosmosBulkSink({}, database="db", container="c", mapping=mapping)
    sink._container = Container(answer)
    await sink.open()
    found = sink.prepare(Write(Event("0", 1, "1", 0.0, b'{"id":"a"}'), patch=INCREMENT))
    deadline = asyncio.get_running_loop().time() + 0.05
    [result] = await sink.write(Batch(1, "0", (found,)), deadline=deadline)

    assert result.outcome is outcome
    assert marked or result.reason.startswith("unknown_outcome")


@pytest.mark.parametrize(
    "answer", [Answer(status=429), Answer(status=410, sub_status=1002), Answer([{"statusCode": 449}])]
)
async def test_an_increment_that_certainly_did_not_take_place_is_sent_again(answer):
    mapping = MappingOptions("hub", writing=WriteOptions(patch_mark=False))
    sink = CosmosBulkSink({}, database="db", container="c", mapping=mapping)
    sink._container = Container(answer)
    await sink.open()
    found = sink.prepare(Write(Event("0", 1, "1", 0.0, b'{"id":"a"}'), patch=INCREMENT))
    [result] = await sink.write(Batch(1, "0", (found,)), deadline=asyncio.get_running_loop().time() + 5)

    assert result.outcome is Outcome.RETRY


@pytest.mark.parametrize(
    ("document", "options", "operation"),
    [
        ({"op": "D"}, {"operation_from": "/op: c=create, d=delete"}, DELETE),
        ({"op": "delete"}, {"operation_from": "/op"}, DELETE),
        ({"op": 1}, {"operation_from": "/op:1=create"}, CREATE),
        ({}, {"operation_from": "/op", "operation": "create"}, CREATE),
        ({"op": None}, {"operation_from": "/op"}, UPSERT),
        ({"op": "x"}, {"operation_from": "/op"}, "operation"),
        ({}, {"operation": "Replace"}, REPLACE),
        (None, {"empty": "delete"}, DELETE),
        (None, {"operation": "delete"}, DELETE),
        (None, {}, "empty"),
    ],
)
def test_which_operation_an_event_asks_for(document, options, operation):
    writing = write_options(WritingTexts(**options))
    mapper = DocumentMapper(MappingOptions("hub", writing=writing))
    body = b"" if document is None else msgspec.json.encode({"id": "a", **document})
    found = mapper.prepare(Write(Event("0", 5, "5", 7.0, body, "a")))

    assert (found.rejection.reason if found.rejection else found.operation) == operation
    assert (
        found.rejection
        or (found.change is None and found.operation in {UPSERT, CREATE})
        or found.change.id == "a"
    )


@pytest.mark.parametrize(
    ("paths", "properties", "key", "result"),
    [
        (["/id"], {}, "a", '["a"]'),
        (["/tenant", "/id"], {"tenant": "t"}, "a", '["t","a"]'),
        (["/tenant"], {}, "a", "partition_key"),
        (["/id"], {}, None, "id"),
        (["/id"], {}, "a/b", "id"),
    ],
)
def test_an_empty_body_deletes_the_document_of_the_events_key(paths, properties, key, result):
    mapper = DocumentMapper(MappingOptions("hub", writing=WriteOptions(empty="delete")), paths)
    found = mapper.prepare(Write(Event("0", 5, "5", 7.0, b"", key, properties)))

    assert (found.rejection.reason if found.rejection else found.partition_key) == result


@pytest.mark.parametrize(
    ("steps", "accepted"),
    [
        ([PatchStep("set", f"/f{n}", n) for n in range(9)], True),
        ([PatchStep("set", f"/f{n}", n) for n in range(10)], False),  # the mark is the tenth
        ([PatchStep("set", "/id", "b")], False),
        ([PatchStep("set", "/_etag", "b")], False),
        ([PatchStep("increment", "/n", "1")], False),
        ([PatchStep("increment", "/n", True)], False),
        ([PatchStep("move", "/n", 1)], False),
        ([PatchStep("set", "n", 1)], False),
        ([PatchStep("set", "/a", 1), PatchStep("set", "/a/b", 1)], False),
    ],
)
def test_a_patch_that_cannot_be_is_a_rejection(steps, accepted):
    mapper = DocumentMapper(MappingOptions("hub"))
    found = mapper.prepare(Write(Event("0", 5, "5", 7.0, b'{"id":"a"}'), patch=tuple(steps)))

    assert (found.rejection is None) is accepted
    assert accepted or found.rejection.reason == "patch"


@pytest.mark.parametrize(
    ("steps", "created"),
    [
        (["increment /n from /a", "increment /n from /b"], {"n": 3}),
        (["append /l from /a", "append /l from /b"], {"l": [1, 2]}),
        (["set /l from /log", "append /l from /b"], {"l": [7, 2]}),
        (["set /o/n from /a", "increment /o/n from /b", "set /p = 1", "remove /p"], {"o": {"n": 3}}),
        (["set /o from /inner", "remove /o/x", "remove /gone"], {"o": {}}),
        (["set /s = 'x'", "increment /s from /a"], None),
        (["increment /n from /a", "append /n from /a"], None),
    ],
)
def test_a_patch_creates_the_document_that_its_steps_one_after_the_other_make(steps, created):
    document = {"id": "a", "a": 1, "b": 2, "log": [7], "inner": {"x": 1}}
    found = mapped(document, PATCH, patch=parse_patch(steps))

    if created is None:
        assert found.rejection.reason == "patch"
    else:
        made = msgspec.json.decode(found.change.created)
        assert {name: value for name, value in made.items() if not name.startswith("_tp")} == {
            "id": "a",
            **created,
        }
    assert document["inner"] == {"x": 1}


def test_the_steps_of_a_patch_come_from_settings():
    rules = parse_patch(
        ["increment /total from /n", 'set /s = "a;b"', "set /seen=true", "remove /old", "append /log"]
    )
    found = mapped({"id": "a", "n": 3, "log": [1]}, PATCH, patch=rules)
    steps = msgspec.json.decode(found.payload)["operations"]

    assert steps[:-1] == [
        {"op": "incr", "path": "/total", "value": 3},
        {"op": "set", "path": "/s", "value": "a;b"},
        {"op": "set", "path": "/seen", "value": True},
        {"op": "remove", "path": "/old"},
        {"op": "add", "path": "/log/-", "value": [1]},
    ]
    assert mapped({"id": "a"}, PATCH, patch=rules).rejection.reason == "patch"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"guard": "version"}, "none, number, or field:<path>"),
        ({"ttl": "0"}, "seconds from 1"),
        ({"ttl": "soon"}, "30d"),
        ({"tombstone": "0s"}, "or off"),
        ({"if_missing": "maybe"}, "create, ignore, reject"),
        ({"operation": "merge"}, "upsert, create, replace, delete, patch"),
        ({"operation_from": "/op:x=merge"}, "upsert, create, replace, delete, patch"),
        ({"operation_from": "op"}, "names after slashes"),
        ({"patch": "add /a"}, "increment /total from /amount"),
        ({"patch": "set /a = text"}, "in quotes"),
        ({"empty": "skip"}, "reject, delete"),
    ],
)
def test_an_option_that_means_nothing_is_named_with_what_is_accepted(texts, said):
    with pytest.raises(SettingsError, match=said) as error:
        write_options(WritingTexts(**texts), named=lambda name: f"COSMOS_{name.upper()}")

    assert str(error.value).startswith(f"COSMOS_{next(iter(texts)).upper()}: ")


def test_all_options_that_are_wrong_are_named_at_once():
    with pytest.raises(SettingsError) as error:
        write_options(WritingTexts(guard="x", ttl="x", patch="x"))

    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == ["guard", "ttl", "patch"]


@pytest.mark.parametrize(("text", "path"), [("/op", ("op",)), ("property:op", None)])
def test_a_rule_finds_its_operation_in_the_document_or_in_a_property(text, path):
    rule = parse_operation_from(f"{text}: x=delete")

    assert rule.path == path
    assert rule.of({"op": "X"}, Event("0", 1, "1", 0.0, b"", properties={"op": "x"})) is DELETE


@pytest.mark.parametrize(
    ("later", "earlier", "replaces"),
    [
        (record(UPSERT), record(PATCH), True),
        (record(DELETE), record(UPSERT), True),
        (record(PATCH), record(UPSERT), False),
        (record(CREATE), record(UPSERT), False),
        (record(REPLACE), record(UPSERT), False),
        (record(UPSERT, 6, guarded=True), record(UPSERT, 5, guarded=True), True),
        (record(UPSERT, 4, guarded=True), record(UPSERT, 5, guarded=True), False),
    ],
)
def test_only_a_whole_later_document_makes_an_earlier_record_superfluous(later, earlier, replaces):
    assert later.replaces(earlier) is replaces


def test_a_key_that_a_write_names_changes_no_other_write_of_the_event():
    document = {"id": "a", "place": {"city": "LGA", "gate": 1}}
    mapper = DocumentMapper(MappingOptions("hub"), ["/place/city"])
    found = mapper.prepare(Write(Event("0", 5, "5", 7.0, b""), document, partition_key=("JFK",)))

    assert (found.partition_key, document["place"]["city"]) == ('["JFK"]', "LGA")
    assert msgspec.json.decode(found.payload)["place"] == {"city": "JFK", "gate": 1}


@pytest.mark.parametrize(("given", "reason"), [((), "partition_key"), (("a", "b"), "partition_key")])
def test_a_key_of_another_length_than_the_containers_is_rejected(given, reason):
    mapper = DocumentMapper(MappingOptions("hub"), ["/city"])
    found = mapper.prepare(Write(Event("0", 5, "5", 7.0, b""), {"id": "a"}, partition_key=given))

    assert found.rejection.reason == reason


async def test_a_container_that_was_created_anew_is_written_by_its_own_rules():
    """Another unique key policy or time to live; known documents are gone."""
    container = Container()
    definitions = [ContainerDefinition("one", ("/id",), "Hash", 2)]
    definitions.append(ContainerDefinition("two", ("/id",), "Hash", 2, unique_keys=True, default_ttl=-1))

    async def definition():
        return definitions[-1]

    container.definition = definition
    sink = CosmosBulkSink({}, database="db", container="c", mapping=MappingOptions("hub"))
    sink._container = container
    await sink.open()
    before = sink.prepare(Write(Event("0", 1, "1", 0.0, b'{"id":"a"}'), ttl=60))
    await sink.routes()
    after = sink.prepare(Write(Event("0", 1, "1", 0.0, b'{"id":"a"}'), ttl=60))

    assert (before.rejection.reason, after.rejection) == ("ttl", None)
    assert sink._writer.rules.unique_keys


async def test_a_failure_of_our_own_code_sends_no_increment_twice():
    mapping = MappingOptions("hub", writing=WriteOptions(patch_mark=False))
    sink = CosmosBulkSink({}, database="db", container="c", mapping=mapping)
    sink._container = Container()  # which raises IndexError when it is asked
    await sink.open()
    found = sink.prepare(Write(Event("0", 1, "1", 0.0, b'{"id":"a"}'), patch=INCREMENT))
    [result] = await sink.write(Batch(1, "0", (found,)), deadline=asyncio.get_running_loop().time() + 5)

    assert (result.outcome, result.rejection.reason) == (Outcome.REJECT, "unknown_outcome")
