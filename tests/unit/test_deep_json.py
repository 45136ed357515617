"""JSON nested too deep to be read, wherever the text of others is read: what is said of any text that is no JSON."""

import asyncio
import zlib
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import typer

from consumer.cli import positions
from consumer.model import Stream
from consumer.stores.blob import layout
from consumer.stores.dead_letter_document import from_document
from consumer.stores.sql.dead_letters import dead_letter_of
from consumer.web import trigger_events
from scaling.analysis.replay import ReplayError, decode_inputs
from scaling.collectors.event_hub import checkpoint_layouts
from scaling.storage.documents import TableCallCounts, TableOutbox
from tidemark.commands.history import journal
from tidemark.foundation.app_settings import local_settings
from tidemark.foundation.consumer_stats import SCHEMA, ConsumerStatsError, from_row
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.publisher.cli import resume_file, sending_run
from tidemark.publisher.cli.text import event_fields
from tidemark.publisher.errors import PublishSettingsError

DEEP = "[" * 20_000 + "]" * 20_000
FIELD = f'{{"unheard_of": {DEEP}}}'  # what a reader of known fields skips
RESUME = resume_file.Resume(
    "queue q", resume_file.LineOptions(format="jsonl"), "p", [], [], [], 0, "", given={}
)


def at(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def of_deep_rows(kind):
    """A store whose table has one row."""

    async def rows(query, **_):
        return [{"Data00": FIELD}]

    store = kind.__new__(kind)
    store._table = SimpleNamespace(rows=rows)
    return store


def message(_):
    return list(sending_run.LineMessages([DEEP.encode()], RESUME))


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda path: local_settings(at(path, DEEP)), SettingsError),
        (lambda _: resume_file.read_resume_file(FIELD.encode(), "x"), PublishSettingsError),
        (
            lambda _: resume_file.read_resume_file(resume_file.encode(RESUME) + FIELD.encode() + b"\n", "x"),
            PublishSettingsError,
        ),
        (lambda _: event_fields.read_object(DEEP.encode(), 1), PublishSettingsError),
        (message, PublishSettingsError),
        (lambda _: decode_inputs(zlib.compress(FIELD.encode())), ReplayError),
        (
            lambda _: checkpoint_layouts.position_in_body("go", DEEP.encode()),
            checkpoint_layouts.CheckpointError,
        ),
        (lambda _: layout._origin(FIELD), ValueError),
        (lambda _: from_document(DEEP.encode(), "x", "id"), TidemarkError),
        (
            lambda _: dead_letter_of(
                Stream("n", "h", "g"), SimpleNamespace(PartitionID="0", SequenceNumber=1, Properties=DEEP)
            ),
            TidemarkError,
        ),
        (
            lambda _: from_row(
                {"instance": "x", "Schema": SCHEMA, "Lag00": f'[["0", 1, 1, 1, 1, 0, {DEEP}]]'}
            ),
            ConsumerStatsError,
        ),
        (
            lambda path: positions.read_export(
                at(path, f'{{"hub": "h", "consumer_group": "g", "checkpoints": [{FIELD}]}}')
            ),
            typer.Exit,
        ),
    ],
)
def test_it_is_refused_in_the_words_for_what_is_no_json(tmp_path, read, error):
    with pytest.raises(error):
        read(tmp_path / "file")


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda: asyncio.run(of_deep_rows(TableCallCounts).read()), []),
        (lambda: asyncio.run(of_deep_rows(TableOutbox).waiting("operations")), []),
        (lambda: journal._decoded(FIELD.encode(), journal.Head), None),
        (lambda: checkpoint_layouts.hub_created_at({"origin": quote(FIELD)}), None),
        (lambda: layout._fence({}, FIELD.encode()), layout.Fence()),
        (lambda: trigger_events._json({"Names": DEEP}, "Names", []), []),
    ],
)
def test_what_others_wrote_into_a_row_or_a_blob_holds_up_nothing_else(read, found):
    assert read() == found
