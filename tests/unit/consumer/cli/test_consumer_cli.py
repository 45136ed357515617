"""The consumer's commands on stores in memory; on real ones they are in the end-to-end test."""

import asyncio
import json
import re
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import typer
from msgspec import structs
from typer.testing import CliRunner

from consumer.cli import support
from consumer.cli.commands import mount
from consumer.errors import FencedError, PositionError, UnreadableError
from consumer.mapping.documents import MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.model import (
    Checkpoint,
    DeadLetter,
    Dropped,
    Event,
    Origin,
    Outcome,
    PartitionState,
    Rejection,
    Routes,
    Write,
    WriteResult,
)
from consumer.options import ParkingRules, ParkOrder
from consumer.receiving import until
from consumer.receiving.hub import Hub
from consumer.stores.memory import MemoryCheckpointStore
from consumer.web import api
from consumer.web.views import consumers_view
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tidemark.__main__ import command_line
from tidemark.foundation.consumer_stats import ConsumerStats
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.wording import time_text

T0 = 1_795_000_000.0


class FakeReceiver:
    """A hub of two partitions; event n was enqueued n seconds after T0."""

    created_at = T0 - 1000.0
    states = Hub.states

    def __init__(self):
        self.last = {"0": 99, "1": 9}
        self.down = False
        self.closed = 0
        self.epochs = []

    async def partitions(self):
        if self.down:
            raise UnavailableError("the hub is away")
        return list(self.last)

    async def state(self, partition):
        last = self.last[partition]
        return PartitionState(partition, 0, last, f"o{last}", T0 + last, empty=last < 0)

    async def receive(self, partition, start, epoch, on_events):
        self.epochs.append(epoch)
        first = int(start.time - T0)
        await on_events([], None)
        await on_events([Event(partition, first, f"o{first}", start.time, b"{}")], None)
        await asyncio.sleep(3600)

    async def close(self, deadline=None):
        self.closed += 1


class FakeParts:
    def __init__(self):
        self.config = SimpleNamespace(
            hub="orders",
            hub_connection="EventHubConnection",
            storage_connection="AzureWebJobsStorage",
            cosmos_connection="CosmosConnection",
            checkpoints="blob",
            dead_letters="blob",
            consumer_group="readers",
            dry_run=False,
            parking=ParkingRules(),
        )
        self.settings = {}
        self.positions, self.dead, self.hub = MemoryCheckpointStore(), MemoryDeadLetterStore(), FakeReceiver()
        self.later = MemoryDeadLetterStore()
        self.target = MemorySink(MappingOptions("orders"))

    def checkpoints(self):
        return self.positions

    def dead_letters(self):
        return self.dead

    def parked(self):
        return self.later

    def sink(self):
        return self.target

    def preparation(self, sink):
        return Preparation(sink.prepare)

    def receiver(self):
        return self.hub


@pytest.fixture
def parts():
    return FakeParts()


@pytest.fixture
def tidemark(parts, monkeypatch):
    app = typer.Typer()
    mount(app)
    monkeypatch.setattr(support, "open_parts", lambda root, _hub=None, **_: parts)

    def run(*arguments, answer=None):
        return CliRunner().invoke(
            app, arguments, input=answer, catch_exceptions=False, env={"COLUMNS": "200"}
        )

    return run


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("blob", "storage: "), ("sql", "database: see CONSUMER_SQL_URL"), ("cosmos", "Cosmos DB: ")],
)
def test_a_list_names_the_store_that_it_is_of(tidemark, parts, kind, shown):
    parts.config.checkpoints = parts.config.dead_letters = kind

    for command in (("checkpoints", "show"), ("dead-letters", "list")):
        assert tidemark(*command).output.splitlines()[1].startswith(shown)


def stored(parts):
    found = asyncio.run(parts.positions.load_all(deadline=0))
    return {name: (each.sequence_number, each.offset) for name, each in found.items()}


def put(parts, *checkpoints):
    for checkpoint in checkpoints:
        asyncio.run(parts.positions.put(checkpoint, deadline=0))


def dead_letter(number, body=b'{"id": "a"}', reason="not_json"):
    event = Event("0", number, f"o{number}", T0, body)
    return DeadLetter("orders", "readers", event, Rejection(reason, "ends early"), 2, T0 + number)


def bury(parts, *dead_letters):
    asyncio.run(parts.dead.put(dead_letters, deadline=0))


def buried(parts):
    async def numbers():
        return [each.event.sequence_number async for each in parts.dead.list()]

    return asyncio.run(numbers())


def test_show_tells_the_mark_what_is_beyond_and_the_lag_of_every_partition(parts, tidemark):
    put(parts, Checkpoint("0", 79, "o79", ((82, 85), (90, 90)), owner="host-1"))

    rows = json.loads(tidemark("checkpoints", "show", "--json").output)

    assert [(row["partition"], row["lag"]) for row in rows] == [("0", 15), ("1", 10)]
    text = tidemark("checkpoints", "show").output
    for word in ("79", "5 in 2", "host-1", "none"):
        assert word in text


def test_a_position_of_a_hub_that_was_created_anew_has_no_lag_and_says_so(parts, tidemark):
    """All of the new hub waits, and the old number is beyond its end: 0 would say that nothing does."""
    put(parts, Checkpoint("0", 5000, "o5000"))

    row, _ = json.loads(tidemark("checkpoints", "show", "--json").output)
    shown = tidemark("checkpoints", "show").output

    assert (row["lag"], row["checkpoint"]["sequence_number"]) == (None, 5000)
    assert (
        "partition 0: the checkpoint is not of this hub: it reaches to 5000, the hub's last event is 99"
        in shown
    )


def test_show_without_the_hub_still_shows_positions(parts, tidemark):
    put(parts, Checkpoint("0", 79, "o79"))
    parts.hub.down = True

    result = tidemark("checkpoints", "show")

    assert result.exit_code == 0
    assert "79" in result.output
    assert "the hub is away" in result.stderr


def test_show_says_why_a_checkpoint_cannot_be_read(parts, tidemark):
    parts.positions.unreadable["0"] = "sequencenumber is 'seven'"

    assert "sequencenumber is 'seven'" in tidemark("checkpoints", "show").output


@pytest.mark.parametrize(
    ("option", "settled"),
    [("--earliest", -1), ("--sequence-number 41", 41), ("--time 2026-11-18T11:07:20Z", 39), ("--latest", 99)],
)
def test_setting_a_position_as_the_error_says_replaces_a_checkpoint_that_cannot_be_read(
    parts, tidemark, option, settled
):
    parts.positions.unreadable["0"] = "sequencenumber is 'seven'"
    with pytest.raises(PositionError) as caught:
        asyncio.run(parts.positions.claim("0", "a", deadline=0))
    told = str(caught.value)
    command = re.search(r"'tidemark (.*?)'", told).group(1)
    assert option.split()[0] in told

    assert tidemark(*command.split(), *option.split(), "--yes").exit_code == 0

    claim = asyncio.run(parts.positions.claim("0", "a", deadline=0))
    assert claim.checkpoint.sequence_number == settled


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["--sequence-number", "41"], {"0": (41, "")}),
        (["--sequence-number", "99"], {"0": (99, "o99")}),
        (["--earliest"], {"0": (-1, "")}),
        (["--latest"], {"0": (99, "o99")}),
        (["--time", "2026-11-18T11:07:20Z"], {"0": (39, "")}),
        (["--time", "2030-01-01T00:00:00"], {"0": (99, "o99")}),
    ],
)
def test_set_puts_a_partition_where_it_is_told(parts, tidemark, where, expected):
    put(parts, Checkpoint("0", 50, "o50"))

    result = tidemark("checkpoints", "set", "--partition", "0", *where, "--yes")

    assert result.exit_code == 0
    assert stored(parts) == expected
    assert parts.hub.closed == 1
    assert parts.hub.epochs in ([], [2])  # above the stored one, else the hub refuses the link


def test_set_fences_the_consumer_at_work(parts, tidemark):
    claim = asyncio.run(parts.positions.claim("0", "a", deadline=0))
    tidemark("checkpoints", "set", "--partition", "0", "--earliest", "--yes")

    with pytest.raises(FencedError):
        asyncio.run(parts.positions.save(claim, Checkpoint("0", 60, ""), deadline=0))


def test_set_asks_and_takes_no_for_an_answer(parts, tidemark):
    result = tidemark("checkpoints", "set", "--all", "--latest", answer="n\n")

    assert result.exit_code == 1
    assert "partition 1: none -> 9" in result.output
    assert stored(parts) == {}
    assert tidemark("checkpoints", "set", "--all", "--latest", answer="y\n").exit_code == 0
    assert stored(parts) == {"0": (99, "o99"), "1": (9, "o9")}


@pytest.mark.parametrize(
    ("where", "answers", "expected"),
    [
        ("--latest", "y\n", 120),  # what comes from the answer on
        ("--sequence-number=90", "y\nn\n", 110),
        ("--sequence-number=90", "y\ny\n", 90),
        ("--sequence-number=20", "y\n", 20),  # which said that events are written again
    ],
)
def test_set_asks_again_where_the_consumer_has_passed_the_position_before_the_answer(
    parts, tidemark, monkeypatch, where, answers, expected
):
    asyncio.run(parts.positions.put(Checkpoint("0", 50, "o50"), deadline=0))
    confirm = typer.confirm

    def slowly(question):
        answer = confirm(question)
        parts.hub.last["0"] = 120
        if stored(parts)["0"][0] == 50:
            asyncio.run(parts.positions.put(Checkpoint("0", 110, "o110"), deadline=0))
        return answer

    monkeypatch.setattr(typer, "confirm", slowly)
    output = tidemark("checkpoints", "set", "--partition", "0", where, answer=answers).output

    assert stored(parts)["0"][0] == expected
    asked_again = "the consumer has gone on meanwhile:" in output
    assert asked_again is (len(answers) > 2)
    assert ("110 -> 90: 20 events written again" in output) is asked_again


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        (["--partition", "0", "--sequence-number", "100"], "ends at event 99; accepted: -1 to 99"),
        (["--partition", "7", "--latest"], "the hub has no partition 7; it has 0, 1"),
        (["--partition", "0"], "give one of"),
        (["--latest"], "give --partition"),
        (["--partition", "0", "--time", "noon"], "expected a time such as"),
        (["--at", "0=5,7=5"], "the hub has no partition 7; it has 0, 1"),
        (["--from", "nowhere.json"], "nowhere.json cannot be read: No such file or directory"),
    ],
)
def test_set_says_what_is_wrong_and_changes_nothing(parts, tidemark, arguments, story):
    result = tidemark("checkpoints", "set", *arguments, "--yes")

    assert result.exit_code != 0
    assert story in " ".join(result.stderr.replace("│", " ").split())
    assert stored(parts) == {}


@pytest.mark.parametrize(
    ("partitions", "story"),
    [
        (("0", "7", "8"), "the hub has no partition 7, 8; it has 0, 1"),
        (("0", "1", "0"), "positions.json has several positions of partition 0; accepted: one of each"),
    ],
)
def test_a_file_with_a_partition_that_is_none_changes_nothing(parts, tidemark, tmp_path, partitions, story):
    positions = [{"partition": name, "sequence_number": 3, "offset": "o3"} for name in partitions]
    file = tmp_path / "positions.json"
    file.write_text(json.dumps({"hub": "orders", "consumer_group": "readers", "checkpoints": positions}))

    refused = tidemark("checkpoints", "set", "--from", str(file), "--yes")

    assert (refused.exit_code, story in refused.stderr, stored(parts)) == (1, True, {})


@pytest.mark.parametrize(
    ("last", "offset", "story"),
    [
        ("4096", "4097", "'4097': its last one, 99, is at 4096"),
        ("4096", "10000", "'10000': its last one, 99, is at 4096"),
        ("4096", "o1", "'o1': its last one, 99, is at 4096"),
        ("4096", "004097", "'004097': its last one, 99, is at 4096"),
        ("4096", "9" * 5000, "'9999"),
        ("4096", "\u0661", "'\u0661': its last one, 99, is at 4096"),
        ("-1", "0", "'0': it has none"),
    ],
)
def test_an_offset_beyond_the_end_is_refused_at_once(parts, tidemark, last, offset, story):
    async def state(partition):
        is_empty = last == "-1"
        return PartitionState(partition, 0, -1 if is_empty else 99, last, T0, empty=is_empty)

    async def receive(*_):
        raise AssertionError("nothing is received")

    parts.hub.state, parts.hub.receive = state, receive
    refused = tidemark("checkpoints", "set", "--partition", "0", "--offset", offset, "--yes")

    assert (refused.exit_code, stored(parts)) == (1, {})
    assert f"partition 0 has no event at or after the offset {story}" in refused.stderr


def test_what_export_writes_set_reads_and_only_for_the_same_hub(parts, tidemark, tmp_path):
    put(parts, Checkpoint("0", 79, "o79", ((82, 85),)), Checkpoint("1", 3, "o3"))
    file = tmp_path / "positions.json"
    file.write_text(tidemark("checkpoints", "export").output)
    put(parts, Checkpoint("0", 0, "o0"))

    assert tidemark("checkpoints", "set", "--from", str(file), "--yes").exit_code == 0
    assert stored(parts) == {"0": (79, "o79"), "1": (3, "o3")}
    parts.config.hub = "others"
    refused = tidemark("checkpoints", "set", "--from", str(file), "--yes")
    assert (refused.exit_code, "hub 'orders'" in refused.stderr) == (1, True)


def test_a_position_that_is_set_is_one_of_this_hub_with_keys_apart_from_those_of_the_hub_before(
    parts, tidemark
):
    hub = round(parts.hub.created_at * 1000)
    for created_at, incarnation in ((parts.hub.created_at, ""), (T0 - 5.0, str(round((T0 - 5.0) * 1000)))):
        parts.hub.created_at = created_at
        assert tidemark("checkpoints", "set", "--all", "--earliest", "--yes").exit_code == 0
        found = asyncio.run(parts.positions.load_all(deadline=0))["0"].origin
        assert (found.hub, found.incarnation) == (round(created_at * 1000), incarnation)
    assert hub != found.hub


@pytest.mark.parametrize("is_of_older_version", [False, True])
def test_positions_of_a_hub_that_was_created_anew_since_the_export_are_refused(
    parts, tidemark, tmp_path, is_of_older_version
):
    tidemark("checkpoints", "set", "--all", "--sequence-number", "5", "--yes")
    exported = tidemark("checkpoints", "export").output
    if is_of_older_version:
        exported = exported.replace('"origin"', '"unknown"')
    file = tmp_path / "positions.json"
    file.write_text(exported)
    parts.hub.created_at = time.time() + 3600.0
    put(parts, Checkpoint("0", 1, "o1"), Checkpoint("1", 1, "o1"))

    refused = tidemark("checkpoints", "set", "--from", str(file), "--yes")

    assert refused.exit_code == 1
    assert "of another hub" in refused.stderr or "created at another time" in refused.stderr
    assert stored(parts) == {"0": (1, "o1"), "1": (1, "o1")}


def test_an_error_is_one_line_and_exit_status_1(tidemark, monkeypatch):
    def broken(root, hub=None, **_):
        raise SettingsError("EVENTHUB_NAME is not set")

    monkeypatch.setattr(support, "open_parts", broken)
    result = tidemark("checkpoints", "show")

    assert (result.exit_code, result.stderr) == (1, "error: EVENTHUB_NAME is not set\n")


@pytest.mark.parametrize("command", [["consume"], ["consumer", "status"], ["checkpoints", "show"]])
def test_settings_that_cannot_be_read_are_told_in_one_line(tmp_path, monkeypatch, command):
    monkeypatch.delenv("FUNCTIONS_WORKER_RUNTIME", raising=False)
    (tmp_path / "local.settings.json").write_text("{bad")

    result = CliRunner().invoke(command_line(), [*command, "--root", str(tmp_path)])

    assert "local.settings.json cannot be read: Expecting property name" in result.output
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code in {1, 2}


def test_status_names_what_changed_between_starts_once(tmp_path, monkeypatch):
    def row(instance, at, notice):
        return ConsumerStats(consumer="flights", instance=instance, at=at, notice=notice)

    async def look(_):
        rows = [
            row("a", 9.0, "the routes [x] have changed"),
            row("b", 8.0, "the routes [x] have changed"),
            row("c", 7.0, ""),
        ]
        return consumers_view(rows, {}, now=10.0)

    monkeypatch.setattr(api, "look", look)
    storage = "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=a2V5"
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": {"AzureWebJobsStorage": storage}}))
    output = CliRunner().invoke(command_line(), ["consumer", "status", "--root", str(tmp_path)]).output
    lines = output.splitlines()

    assert [line for line in lines if "note" in line] == ["  note: the routes [x] have changed"]


def test_list_shows_letters_and_counts_all(parts, tidemark):
    bury(parts, dead_letter(1), dead_letter(2), dead_letter(3, reason="too_large"))

    text = tidemark("dead-letters", "list", "--limit", "1").output

    assert "orders~readers~0~1" in text
    assert "orders~readers~0~2" not in text
    assert "3 dead letters: 2 not_json, 1 too_large" in text
    [found] = json.loads(tidemark("dead-letters", "list", "--reason", "too_large", "--json").output)
    assert (found["id"], found["body"]) == ("orders~readers~0~3", '{"id": "a"}')


def test_show_prints_the_body(parts, tidemark):
    bury(parts, dead_letter(1, b'{"broken": [/x'))

    shown = tidemark("dead-letters", "show", "orders~readers~0~1").output
    assert '{"broken": [/x' in shown
    assert "content_encoding  None" in shown
    missing = tidemark("dead-letters", "show", "orders~readers~0~9")
    assert (missing.exit_code, "no dead letter 'orders~readers~0~9'" in missing.stderr) == (1, True)


def test_what_an_event_brought_moves_no_cursor(parts, tidemark):
    bury(parts, dead_letter(1, b'{"a": "\x1b[2J"\n\xe2\x80\xae}', reason="\x1b]0;mine\x07"))

    listed = tidemark("dead-letters", "list").output
    shown = tidemark("dead-letters", "show", "orders~readers~0~1").output

    assert "\\x1b" in listed
    assert '{"a": "\\x1b[2J"\n\\u202e}' in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(listed + shown)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("--latest", "partition 1: 54 of another hub -> 9: 10 events skipped"),
        (
            "--earliest",
            "partition 1: 54 of another hub -> the beginning: nothing is skipped or written again",
        ),
    ],
)
def test_what_a_position_of_a_hub_that_was_created_anew_skips_is_counted_by_the_new_hub(
    parts, tidemark, where, told
):
    """The position at 54 is of the hub before, of which nothing is written again; of this one, 0 to 9 are not settled."""
    before = Origin(round((T0 - 9999.0) * 1000), 2)
    asyncio.run(parts.positions.put(Checkpoint("1", 54, "o54", ((57, 58),), origin=before), deadline=1e12))

    result = tidemark("checkpoints", "set", "--partition", "1", where, "--dry-run")

    assert told in result.output


def test_replay_deletes_what_is_written_and_prints_what_still_fails(parts, tidemark):
    bury(
        parts,
        dead_letter(1, b'{"id": "a", "v": 1}'),
        dead_letter(2, b"{"),
        dead_letter(3, b'{"id": "a", "v": 3}'),
    )

    result = tidemark("dead-letters", "replay", "--all", "--yes")

    assert result.exit_code == 1
    assert "orders~readers~0~2" in result.stderr
    assert "1 dead letter remains" in result.stderr
    assert buried(parts) == [2]
    [document] = parts.target.documents.values()
    assert json.loads(document)["v"] == 3  # of one key in their order


def test_a_letter_whose_replay_is_rejected_shows_why_and_when_and_keeps_its_first_failure(parts, tidemark):
    bury(parts, dead_letter(1, b"[", reason="no_parent"))
    before = asyncio.run(parts.dead.get("orders~readers~0~1"))

    for _ in range(2):
        began = time.time()
        assert tidemark("dead-letters", "replay", "--all", "--yes").exit_code == 1

    left = asyncio.run(parts.dead.get(before.id))
    assert (left.rejection.reason, left.attempts) == ("json", before.attempts + 2)
    assert began <= left.failed_at <= time.time()
    assert left.first == f"{time_text(before.failed_at)} no_parent: {before.rejection.detail}"
    assert f"first             {left.first}" in tidemark("dead-letters", "show", before.id).output


def test_a_letter_whose_replay_finds_no_answer_stays_as_it_is(parts, tidemark, monkeypatch):
    monkeypatch.setattr("consumer.cli.replay.DEADLINE", 0.05)  # seconds; a try after the first comes later

    class Away(MemorySink):
        async def write(self, batch, *, deadline):
            raise UnavailableError("away", 1e9)

    parts.target = Away(MappingOptions("orders"))
    bury(parts, dead_letter(1))
    before = asyncio.run(parts.dead.get("orders~readers~0~1"))

    assert tidemark("dead-letters", "replay", "--all", "--yes").exit_code == 1
    assert asyncio.run(parts.dead.get(before.id)) == before


def test_replay_takes_only_what_is_asked_for(parts, tidemark):
    bury(parts, dead_letter(1), dead_letter(2, reason="too_large"))

    assert tidemark("dead-letters", "replay", "--reason", "too_large", "--yes").exit_code == 0
    assert buried(parts) == [1]
    assert tidemark("dead-letters", "replay", "orders~readers~0~1", "--yes").exit_code == 0
    assert buried(parts) == []


def test_a_dry_run_says_what_the_present_settings_make_of_the_letters_and_writes_nothing(parts, tidemark):
    parts.guards = {"cosmos": "none", "rows": "append"}
    bury(parts, dead_letter(1), dead_letter(2, b"{"), dead_letter(3, b"["), dead_letter(4))

    result = tidemark("dead-letters", "replay", "--all", "--dry-run")

    assert result.exit_code == 0
    assert "2 would be rejected: json" in result.output
    assert "2 would be written" in result.output
    assert (
        "4 dead letters; dry run: nothing was written. They overwrite what later events made" in result.output
    )
    assert "cosmos has no version guard" in result.output, "what is appended overwrites nothing"
    assert buried(parts) == [1, 2, 3, 4]
    assert parts.target.documents == {}


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (("--text", "ENDS"), []),
        (("--text", "other"), [1, 2, 3]),
        (("--after", "TIME2"), [1]),
        (("--before", "TIME2"), [2, 3]),
        (("--after", "TIME2", "--before", "TIME3"), [1, 3]),
        (("--partition", "1"), [1, 2, 3]),
        (("--reason", "not_json", "--after", "TIME3"), [1, 2]),
    ],
)
def test_replay_takes_what_passes_all_filters_and_goes_on_with_what_is_left(parts, tidemark, filters, left):
    bury(parts, dead_letter(1), dead_letter(2), dead_letter(3))
    times = {f"TIME{n}": datetime.fromtimestamp(T0 + n, UTC).isoformat() for n in (2, 3)}
    filters = [times.get(word, word) for word in filters]

    assert tidemark("dead-letters", "replay", *filters, "--yes").exit_code == 0
    assert buried(parts) == left
    assert tidemark("dead-letters", "replay", *filters, "--yes").exit_code == 0
    assert buried(parts) == left


def test_what_a_later_event_has_changed_is_counted_as_superseded(parts, tidemark):
    class Guarded(MemorySink):
        async def write(self, batch, *, deadline):
            return [WriteResult(Outcome.WRITTEN, reason="superseded") for _ in batch.records]

    parts.target = Guarded(MappingOptions("orders"))
    bury(parts, dead_letter(1), dead_letter(2))

    result = tidemark("dead-letters", "replay", "--all", "--yes")

    assert "superseded 2: a later event has changed the document" in result.output
    assert buried(parts) == []


def test_what_the_present_settings_drop_is_not_counted_as_written(parts, tidemark):
    """A filter or other routes than those that rejected it: the dead letter goes, and nothing is written."""

    class Filtered(MemorySink):
        def prepare(self, write):
            record = super().prepare(write)
            is_wanted = write.event.sequence_number == 2
            return record if is_wanted else structs.replace(record, dropped=Dropped("filter"))

    parts.target = Filtered(MappingOptions("orders"))
    bury(parts, dead_letter(1), dead_letter(2), dead_letter(3))

    result = tidemark("dead-letters", "replay", "--all", "--yes")

    assert result.output.splitlines()[-2:] == [
        "written 1",
        "dropped 2: by the present settings nothing of them is to be written",
    ]
    assert buried(parts) == []
    assert len(parts.target.documents) == 1


def test_parked_events_are_shown_where_they_are_asked_for(parts, tidemark):
    parked = structs.replace(dead_letter(7, reason="status_404"), consumer_group="readers~parked")
    asyncio.run(parts.later.put([parked], deadline=1e12))

    shown = tidemark("dead-letters", "list", "--parked")
    assert "status_404" in shown.stdout
    assert "1 parked event" in shown.stdout
    assert "due" not in tidemark("dead-letters", "list").stdout
    assert tidemark("dead-letters", "show", parked.id, "--parked").exit_code == 0
    assert "0 dead letters" in tidemark("dead-letters", "list").stdout
    asyncio.run(parts.dead.put([dead_letter(7)], deadline=1e12))
    for command in (["show"], ["replay", "--yes"], ["purge"]):
        refused = tidemark("dead-letters", *command, dead_letter(7).id, "--parked")
        assert f"there is no parked event '{dead_letter(7).id}'" in refused.stderr


def park(parts, *dead_letters, order=ParkOrder.NONE):
    parts.config.parking = ParkingRules(("status_404",), order=order)
    letters = [structs.replace(each, consumer_group="readers~parked", epoch=1) for each in dead_letters]
    asyncio.run(parts.later.put(letters, deadline=1e12))
    return [letter.id for letter in letters]


def parked(parts):
    async def numbers():
        return [each.event.sequence_number async for each in parts.later.list()]

    return asyncio.run(numbers())


@pytest.mark.parametrize(
    ("age", "reason", "due"),
    [
        (30.0, "status_404", "in 30 s"),
        (90.0, "status_404", "in 570 s"),
        (7200.0, "status_404", "now"),
        (30.0, "behind", "after an earlier one"),
    ],
)
def test_a_list_says_when_parked_events_are_tried_again(parts, tidemark, monkeypatch, age, reason, due):
    now = T0 + 1.0 + age
    monkeypatch.setattr("consumer.cli.dead_letters.time.time", lambda: now)
    park(parts, dead_letter(1, reason=reason))
    shown = tidemark("dead-letters", "list", "--parked").output

    if due.startswith("in "):
        due = time_text(now + float(due.split()[1]))
    assert due in shown


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_parked_events_are_replayed_or_purged_now_after_a_dry_run_that_changes_nothing(
    parts, tidemark, command
):
    parts.guards = {"cosmos": "number"}
    bury(parts, dead_letter(9))
    park(parts, dead_letter(1, b'{"id": "a"}'), dead_letter(2, b"{"), dead_letter(3, b'{"id": "c"}'))

    dry = tidemark("dead-letters", command, "--all", "--parked", "--dry-run")
    assert "3 parked events; dry run: nothing was" in dry.output
    assert (parked(parts), parts.target.documents) == ([1, 2, 3], {})
    asked = tidemark("dead-letters", command, "--all", "--parked", answer="n\n")
    assert (asked.exit_code, parked(parts)) == (1, [1, 2, 3])
    done = tidemark("dead-letters", command, "--all", "--parked", "--yes")

    assert parked(parts) == ([2] if command == "replay" else [])
    assert len(parts.target.documents) == (2 if command == "replay" else 0)
    assert ("1 parked event remains" in done.stderr) is (command == "replay")
    assert buried(parts) == [9]


def test_what_cannot_be_read_is_purged_by_its_id(parts, tidemark, monkeypatch):
    [unreadable] = park(parts, dead_letter(1))

    async def get(*_):
        raise UnreadableError("the row is damaged") from ValueError("no JSON")

    monkeypatch.setattr(type(parts.parked()), "get", get)
    done = tidemark("dead-letters", "purge", "--parked", unreadable, "--yes")

    assert (done.exit_code, parked(parts)) == (0, [])
    assert "it cannot be read: no JSON" in done.stderr


@pytest.mark.parametrize(
    ("chosen", "fails", "left"),
    [
        ("--all", False, []),
        ("--all", True, [1, 2, 4]),  # b is written, and c
        ("2", False, [1, 2, 3, 4, 5]),  # its key has an earlier event
        ("1", False, [2, 3, 4, 5]),
        ("2 3", False, [1, 2, 4, 5]),
    ],
)
def test_with_order_by_key_a_parked_event_stays_while_an_earlier_one_of_its_key_does(
    parts, tidemark, chosen, fails, left
):
    class Sink(MemorySink):
        async def write(self, batch, *, deadline):
            if fails and batch.records[0].event.sequence_number == 1:
                return [WriteResult(Outcome.REJECT, 404, "no parent")]
            return await super().write(batch, deadline=deadline)

    parts.target, parts.guards = Sink(MappingOptions("orders")), {"cosmos": "number"}
    bodies = [b'{"id": "%c"}' % name for name in b"aabac"]
    ids = park(parts, *(dead_letter(n + 1, body) for n, body in enumerate(bodies)), order=ParkOrder.KEY)
    which = [chosen] if chosen == "--all" else [ids[int(n) - 1] for n in chosen.split()]
    dry = tidemark("dead-letters", "replay", *which, "--parked", "--dry-run")
    waits = re.search(r"(\d) would wait: an earlier event of its key", dry.output)
    done = tidemark("dead-letters", "replay", *which, "--parked", "--yes")

    assert parked(parts) == left
    assert (waits is not None) is (chosen.startswith("2"))
    assert ("an earlier event of its key stays parked" in done.stderr) is (fails or chosen.startswith("2"))


def test_with_order_by_key_no_parked_event_stays_for_what_both_of_them_drop(parts, tidemark):
    parts.guards = {"cosmos": "number"}
    parts.preparation = lambda sink: Preparation(
        sink.prepare, mapping=lambda event, documents: [Write(event, documents[0]), Dropped("r")]
    )
    ids = park(parts, dead_letter(1, b'{"id": "a"}'), dead_letter(2, b'{"id": "b"}'), order=ParkOrder.KEY)
    tidemark("dead-letters", "replay", ids[1], "--parked", "--yes")

    assert parked(parts) == [1]


def test_with_order_by_key_the_events_of_a_partition_stay_behind_one_whose_schema_cannot_be_fetched(
    parts, tidemark
):
    class Registry:
        """It has the schema of the first event only. Each body is JSON."""

        asked = 0

        def missing(self, events):
            return ["5"] if any(event.sequence_number > 1 for event in events) else []

        async def load(self, ids, *, deadline):
            self.asked += 1
            raise UnavailableError("no registry")

        def decode(self, event):
            return [json.loads(event.body)]

    registry, parts.guards = Registry(), {"cosmos": "number"}
    parts.preparation = lambda sink: Preparation(sink.prepare, decoder=registry)
    park(parts, *(dead_letter(n, b'{"id": "%d"}' % n) for n in range(1, 9)), order=ParkOrder.KEY)
    dry = tidemark("dead-letters", "replay", "--all", "--parked", "--dry-run")
    asked = registry.asked
    done = tidemark("dead-letters", "replay", "--all", "--parked", "--yes")

    assert ("1 would be written" in dry.output, "1 would wait: no registry" in dry.output) == (True, True)
    assert "6 would wait: an earlier event of its partition stays parked, whose key is unknown" in dry.output
    assert parked(parts) == [2, 3, 4, 5, 6, 7, 8]
    assert done.stderr.count("whose key is unknown: no registry") == 6
    assert (asked, registry.asked) == (1, 2), "each takes a minute"


def test_a_parked_event_becomes_a_dead_letter_first_for_a_sink_that_removes_that_itself(parts, tidemark):
    class Transactional(MemorySink):
        transactional = True

        async def open(self):
            return Routes(by_partition=True)

        async def replay(self, records, *, deadline):
            found = f"orders~readers~0~{records[0].event.sequence_number}"
            assert await parts.dead.delete([found]) == 1
            return WriteResult(Outcome.WRITTEN)

    parts.target = Transactional(MappingOptions("orders"))
    park(parts, dead_letter(1), dead_letter(2))

    assert tidemark("dead-letters", "replay", "--all", "--parked", "--yes").exit_code == 0
    assert (parked(parts), buried(parts)) == ([], [])


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_letter_names_what_is_left_when_some_of_its_records_are_written(parts, tidemark, is_parked):
    class Sink(MemorySink):
        def __init__(self):
            super().__init__(MappingOptions("orders"))
            self.taken, self.tried = {"a", "c"}, []

        async def write(self, batch, *, deadline):
            ids = [json.loads(record.payload)["id"] for record in batch.records]
            self.tried += ids
            refused = WriteResult(Outcome.REJECT, 404, "no parent")
            return [WriteResult(Outcome.WRITTEN) if each in self.taken else refused for each in ids]

    parts.preparation = lambda sink: Preparation(
        sink.prepare, mapping=lambda event, _: [Write(event, {"id": each}, n) for n, each in enumerate("abc")]
    )
    store = parts.later if is_parked else parts.dead
    group = "readers~parked" if is_parked else "readers"
    letter = structs.replace(dead_letter(1), consumer_group=group, epoch=int(is_parked))
    sink = parts.target = Sink()
    asyncio.run(store.put([letter], deadline=1e12))
    again = ["dead-letters", "replay", "--all", "--yes", *["--parked"] * is_parked]
    assert "no parent" in tidemark(*again).stderr
    left = asyncio.run(store.get(letter.id))
    sink.taken = {"b"}

    assert (left.records, left.of) == (("1",), 3)
    assert (left.failed_at == letter.failed_at) is is_parked, "the times of parking are counted from it"
    assert ("no parent" in left.rejection.detail) is not is_parked
    assert tidemark(*again).exit_code == 0
    assert (sink.tried, asyncio.run(store.get(letter.id))) == (["a", "b", "c", "b"], None)


@pytest.mark.parametrize(
    ("is_parked", "names"),
    [
        (False, ("0", "1")),
        (True, ("0", "1")),
        (False, ()),  # by a consumer of an older version, which names none
    ],
)
def test_a_letter_that_gets_another_record_while_it_is_replayed_stays(parts, tidemark, is_parked, names):
    store = parts.later if is_parked else parts.dead
    letter = structs.replace(dead_letter(1), records=("0",), of=2, epoch=int(is_parked))
    letter = structs.replace(letter, consumer_group="readers~parked" if is_parked else "readers")
    more = structs.replace(letter, records=names, of=len(names) or 1)

    class Sink(MemorySink):
        async def write(self, batch, *, deadline):
            await store.put([more], deadline=1e12)
            return await super().write(batch, deadline=deadline)

    twice = lambda event, documents: [Write(event, documents[0], index) for index in range(2)]
    parts.preparation = lambda sink: Preparation(sink.prepare, mapping=twice)
    parts.target, parts.guards = Sink(MappingOptions("orders")), {"cosmos": "number"}
    asyncio.run(store.put([letter], deadline=1e12))
    result = tidemark("dead-letters", "replay", "--all", "--yes", *["--parked"] * is_parked)

    assert "another record of the event was rejected meanwhile" in result.stderr
    assert asyncio.run(store.get(letter.id)) == more


@pytest.mark.parametrize(
    ("letter", "options", "outcome"),
    [
        ({"records": ("1",), "of": 2}, [], "would be written\n"),
        ({"records": ("1",), "of": 2}, ["--whole"], "would be written\n"),
        ({"records": ("1",), "of": 3}, [], "would be written, with all records of the event: which of them"),
        ({"rejection": Rejection("x", "record 1 for rows: y")}, [], "with all records of the event: which"),
        ({}, [], "would be written\n"),  # as a whole, before it had records
    ],
)
def test_a_dry_run_says_where_it_is_unknown_which_records_were_written(
    parts, tidemark, letter, options, outcome
):
    parts.guards = {"cosmos": "number"}
    twice = lambda event, documents: [Write(event, documents[0], index) for index in range(2)]
    parts.preparation = lambda sink: Preparation(sink.prepare, mapping=twice)
    bury(parts, structs.replace(dead_letter(1), **letter))

    assert outcome in tidemark("dead-letters", "replay", "--all", "--dry-run", *options).output


@pytest.mark.parametrize(
    "command",
    [
        ["dead-letters", "replay", "--all", "--yes"],
        ["dead-letters", "purge", "--all", "--yes"],
        ["dead-letters", "purge", "--all", "--yes", "--parked"],
        ["checkpoints", "set", "--all", "--latest", "--yes"],
    ],
)
def test_where_the_settings_say_dry_run_every_command_is_one(parts, tidemark, command):
    parts.config.dry_run, parts.guards = True, {"cosmos": "number"}
    bury(parts, dead_letter(1))
    park(parts, dead_letter(2))
    result = tidemark(*command)

    assert "COSMOS_WRITE is false, so this is a dry run" in result.output
    assert (buried(parts), parked(parts), stored(parts), parts.target.documents) == ([1], [2], {}, {})


@pytest.mark.parametrize("answer", [None, "n\n"])
def test_a_plan_of_positions_notes_nothing_not_even_which_hub_has_plain_keys(parts, tidemark, answer):
    options = ["--dry-run"] if answer is None else []
    tidemark("checkpoints", "set", "--all", "--latest", *options, answer=answer)

    assert asyncio.run(parts.positions.hub_with_plain_keys(7, deadline=0)) == 7


def test_replay_through_a_transactional_sink_leaves_deleting_to_its_transaction(parts, tidemark):
    class Transactional(MemorySink):
        transactional = True
        seen = ()

        async def open(self):
            return Routes(by_partition=True)

        async def replay(self, records, *, deadline):
            self.seen = (*self.seen, *(record.event.sequence_number for record in records))
            return WriteResult(Outcome.WRITTEN)

    parts.target = Transactional(MappingOptions("orders"))
    bury(parts, dead_letter(1), dead_letter(2))

    assert tidemark("dead-letters", "replay", "--all", "--yes").exit_code == 0
    assert parts.target.seen == (1, 2)


def test_purge_asks_with_the_number_and_deletes_only_what_is_old(parts, tidemark):
    bury(parts, dead_letter(1), dead_letter(2), dead_letter(10**12))

    kept = tidemark("dead-letters", "purge", "--older-than", "0s", answer="n\n")
    assert (kept.exit_code, "Delete 2 dead letters" in kept.output) == (1, True)
    assert tidemark("dead-letters", "purge", "--older-than", "0s", "--yes").exit_code == 0
    assert buried(parts) == [10**12]


def test_purge_deletes_nothing_that_came_after_its_question(parts, tidemark, monkeypatch):
    bury(parts, *map(dead_letter, range(60)))

    def slowly(question):
        bury(parts, *map(dead_letter, range(100, 105)))
        return True

    monkeypatch.setattr(typer, "confirm", slowly)
    result = tidemark("dead-letters", "purge", "--all")

    assert "deleted 60 dead letters" in result.output
    assert buried(parts) == [100, 101, 102, 103, 104]


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_without_ids_filters_or_all_nothing_happens(parts, tidemark, command):
    bury(parts, dead_letter(1))

    assert tidemark("dead-letters", command, "--yes").exit_code == 2
    assert buried(parts) == [1]


async def test_the_states_of_many_partitions_are_read_some_at_a_time_and_of_those_that_there_are():
    hub, asked, most = FakeReceiver(), 0, 0
    hub.last = {str(number): number for number in range(100)}

    async def state(partition):
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(0)
        asked -= 1
        return await FakeReceiver.state(hub, partition)

    hub.state = state
    everything, some = await hub.states(), await hub.states({"7", "100"})

    assert {name: found.last_sequence_number for name, found in everything.items()} == hub.last
    assert list(some) == ["7"]
    assert most == 16


@pytest.mark.parametrize("to", [["--latest"], ["--earliest"], ["--time", time_text(T0 + 5.0)]])
def test_set_asks_each_of_many_partitions_once_and_some_at_a_time(parts, tidemark, to):
    hub = parts.hub
    hub.last = {str(number): 9 for number in range(50)}
    asked, running, most = [], 0, 0

    def counted(call):
        async def one(partition, *arguments):
            nonlocal running, most
            asked.append((call.__name__, partition))
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(0)
                return await call(partition, *arguments)
            finally:
                running -= 1

        return one

    hub.state, hub.receive = counted(hub.state), counted(hub.receive)
    result = tidemark("checkpoints", "set", "--all", *to, "--dry-run")

    assert "partition 49: none -> " in result.output
    calls = ["state", "receive"] if "--time" in to else ["state"]
    assert sorted(asked) == sorted((call, name) for call in calls for name in hub.last)
    assert most == 16


def test_an_offset_that_no_event_is_behind_is_named(parts, tidemark, monkeypatch):
    async def nothing(*_):
        await asyncio.Event().wait()

    parts.hub.receive = nothing
    monkeypatch.setattr(until, "FIRST_WITHIN", 0.01)
    result = tidemark("checkpoints", "set", "--partition", "0", "--offset", "o100", "--dry-run")

    assert result.exit_code == 1
    assert "partition 0 delivered no event at or after the offset 'o100' within 0 s" in result.output
