"""The consumer's settings: every problem on a line of its own, and names that are nearly ours."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from consumer.config import OTHER_SETTINGS, read_config, read_slice
from consumer.formats import (
    OPTIONS,
    AutoOptions,
    AvroOptions,
    CsvOptions,
    Integers,
    JsonOptions,
    ProtobufOptions,
)
from consumer.formats import SETTINGS as OF_DECODERS
from consumer.running.assembly import Parts
from tidemark.__main__ import command_line
from tidemark.foundation.errors import SettingsError

ROOT = Path(__file__).parents[3]
SETTINGS = {"EVENTHUB_NAME": "hub", "COSMOS_DATABASE": "d", "COSMOS_CONTAINER": "c"}


def test_every_problem_has_a_line():
    with pytest.raises(SettingsError) as caught:
        read_config({"EVENTHUB_RATELIMIT": "fast", "CONSUMER_SHUTDOWN": "soon", "COSMOS_DATABASE": "d"})

    first, *lines = str(caught.value).splitlines()
    assert first == "4 settings are wrong:"
    assert [re.match(r"  ([A-Z_]+) is ", line).group(1) for line in lines] == [
        *("EVENTHUB_RATELIMIT", "CONSUMER_SHUTDOWN", "EVENTHUB_NAME", "COSMOS_CONTAINER")
    ]


def test_leases_that_end_before_they_are_renewed_are_refused():
    leases = {**SETTINGS, "CONSUMER_LEASE_INTERVAL": "0.5"}
    with pytest.raises(
        SettingsError, match=r"is 2 s, .* accepted: at least 3 s with a CONSUMER_LEASE_INTERVAL"
    ):
        read_config({**leases, "CONSUMER_LEASE_EXPIRY": "2s"})
    assert read_config({**leases, "CONSUMER_LEASE_EXPIRY": "3s"}).lease_expiry == 3.0
    assert read_config({**SETTINGS, "CONSUMER_LEASE_EXPIRY": "20s"}).lease_expiry == 20.0


def test_one_problem_is_one_line():
    with pytest.raises(SettingsError, match=r"\ACONSUMER_SLICE is 'x'; accepted: [^\n]*\Z"):
        read_slice({"CONSUMER_SLICE": "x"})


COSMOS = {
    **SETTINGS,
    "EventHubConnection__fullyQualifiedNamespace": "acme",
    "CosmosConnection__accountEndpoint": "https://acme.documents.azure.com/",
}
SQL = {
    **COSMOS,
    "CONSUMER_SINK": "sql",
    "CONSUMER_SQL_URL": "sqlite://",
    "CONSUMER_SQL_TABLE": "t",
    "CONSUMER_SQL_COLUMNS": "k=$.k",
    "CONSUMER_SQL_KEY": "k",
}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        *((COSMOS, name) for name in ("CONSUMER_ID", "CONSUMER_TRANSFORM", "COSMOS_GUARD", "COSMOS_TTL")),
        *(
            (SQL, f"CONSUMER_SQL_{name}")
            for name in ("OPERATION", "OPERATION_FROM", "EMPTY", "GUARD", "HANDLER")
        ),
    ],
)
def test_a_value_that_a_sink_refuses_is_shown_beside_its_setting(settings, name):
    found = {**settings, name: "n0thing"}

    with pytest.raises(SettingsError, match=rf"^(?:CONSUMER_SQL_TABLE, )?{name}: .*'n0thing'"):
        parts = Parts(read_config(found), found)
        parts.preparation(parts.sink())


@pytest.mark.parametrize(
    ("settings", "guard"),
    [
        (COSMOS, {"cosmos": "none"}),
        ({**COSMOS, "COSMOS_GUARD": "number"}, {"cosmos": "number"}),
        (SQL, {"sql": "none"}),
        ({**SQL, "CONSUMER_SQL_COLUMNS": "k=$.k,v=$.v", "CONSUMER_SQL_GUARD": "v"}, {"sql": "v"}),
        ({**SQL, "CONSUMER_SQL_KEY": ""}, {"sql": "append"}),
    ],
)
def test_what_decides_between_the_events_of_a_document(settings, guard):
    assert Parts(read_config(settings), settings).guards == guard


@pytest.mark.parametrize(
    ("text", "said"), [("LOUD", "is 'LOUD'; accepted: DEBUG, INFO"), ("", "EVENTHUB_NAME is")]
)
def test_the_level_of_the_log_is_refused_in_words_and_may_be_empty(text, said, tmp_path):
    (tmp_path / ".env").write_text(f"CONSUMER_LOG_LEVEL={text}\n")

    result = CliRunner().invoke(command_line(), ["consume", "--root", str(tmp_path)])

    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("CONSUMER_HIGH_BYTES", "1023", "a whole number from 1024"),
        ("CONSUMER_HIGH_EVENTS", "0", "a whole number from 1"),
        ("CONSUMER_MAXIMUM_INSTANCES", "-1", "a whole number from 1"),
        ("CONSUMER_SHUTDOWN", "0", "seconds above 0"),
        ("EVENTHUB_RATELIMIT", "inf", "records per second from 0"),
        ("CONSUMER_RU_PER_SECOND", "-1", "request units per second from 0"),
        ("CONSUMER_GIVE_UP_AFTER", "0", "seconds above 0"),
        ("CONSUMER_HTTP_PORT", "70000", "0 (none) to 65535"),
        ("COSMOS_THROUGHPUT_BUCKET", "6", "1 to 5, or 0 for none"),
        ("COSMOS_PRIORITY", "urgent", "high, low"),
        ("TIDEMARK_TRACING", "yes", "off, on, otlp"),
        ("CONSUMER_META", "maybe", "true or false"),
        ("CONSUMER_DEAD_LETTERS", "tape", "blob, cosmos, sql"),
        ("CONSUMER_ON_FOREIGN_CHECKPOINT", "continue", "fail, earliest, latest"),
        ("CONSUMER_START", "soon", "earliest, latest, or a time"),
        ("CONSUMER_SQL_COLUMNS", "a", "column=$.field"),
    ],
)
def test_a_setting_of_another_kind_is_told_with_what_is_accepted(name, text, accepted):
    with pytest.raises(SettingsError, match=re.escape(f"{name} is '{text}'; accepted: {accepted}")):
        read_config({**SETTINGS, name: text})


@pytest.mark.parametrize("name", ["CONSUMER_RU_PER_SECOND", "CONSUMER_FLEET_RU_PER_SECOND"])
def test_request_units_limit_no_consumer_that_writes_to_sql(name):
    sql = {**SETTINGS, "CONSUMER_SINK": "sql", "CONSUMER_SQL_URL": "sqlite://"}
    with pytest.raises(
        SettingsError, match=f"{name} is 400, but CONSUMER_SINK=sql .* set EVENTHUB_RATELIMIT or"
    ):
        read_config({**sql, name: "400"})

    assert read_config({**sql, "EVENTHUB_RATELIMIT": "400", name: "0"}).rate == 400.0  # as it advises


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "EVENTHUB_RATELIMT",
            "EVENTHUB_RATELIMT is no setting of the consumer; did you mean EVENTHUB_RATELIMIT?",
        ),
        ("EVENTHUB_RATE_LIMIT", "did you mean EVENTHUB_RATELIMIT?"),
        ("ALLOW_BACKLOG_OFF", "did you mean ALLOW_BACKLOG_OF?"),
        ("CONSUMER_DEADLETTERS", "did you mean CONSUMER_DEAD_LETTERS?"),
        ("CONSUMER_COLOUR", "CONSUMER_COLOUR is no setting of the consumer"),
    ],
)
def test_a_setting_that_is_nearly_one_of_ours_is_told(name, told):
    (doubt,) = read_config({**SETTINGS, name: "5"}).doubts

    assert told in doubt


@pytest.mark.parametrize(
    "name", ["EVENTHUB_OWNER", "COSMOS_ENDPOINT_OF_ANOTHER_APP", "CosmosConnection__accountEndpoint", "PATH"]
)
def test_what_is_far_from_ours_may_be_somebody_elses(name):
    assert read_config({**SETTINGS, name: "5"}).doubts == ()


DECODERS = [
    ({}, JsonOptions()),
    ({"CONSUMER_DECODER": "JSON", "CONSUMER_JSON_ARRAYS": "yes"}, JsonOptions(arrays=True)),
    ({"CONSUMER_SCHEMA_REGISTRY": "R"}, AutoOptions(registry="R")),
    ({"CONSUMER_SCHEMA_REGISTRY": "R", "CONSUMER_DECODER": "avro_preamble"}, AvroOptions(registry="R")),
    (
        {"CONSUMER_DECODER": "csv", "CONSUMER_CSV_COLUMNS": "a, b,", "CONSUMER_UNPACK_LIMIT": "2_000"},
        CsvOptions(columns=("a", "b"), unpack_limit=2000),
    ),
    (
        {"CONSUMER_DECODER": "protobuf", "CONSUMER_SCHEMA_FILES": "a.pb,b.pb", "CONSUMER_INTEGERS": "text"},
        ProtobufOptions(files=("a.pb", "b.pb"), integers=Integers.TEXT),
    ),
]


@pytest.mark.parametrize(("settings", "options"), DECODERS)
def test_the_settings_of_the_decoder_are_those_of_its_format(settings, options):
    config = read_config({**SETTINGS, **settings})

    assert (config.decode, config.doubts) == (options, ())
    assert type(config.decode) is OPTIONS[config.decoder]


def test_a_setting_of_another_decoder_is_doubted_and_a_wrong_one_told_once():
    (doubt,) = read_config({**SETTINGS, "CONSUMER_CSV_COLUMNS": "a"}).doubts
    assert doubt.startswith("CONSUMER_CSV_COLUMNS is no option of the decoder that CONSUMER_DECODER names")
    with pytest.raises(SettingsError, match=r"\ACONSUMER_DECODER is 'xml'; accepted: json, auto, [^\n]*\Z"):
        read_config({**SETTINGS, "CONSUMER_DECODER": "xml"})


def test_no_setting_that_the_code_reads_is_doubted():
    names = set(OTHER_SETTINGS)
    for source in (ROOT / "consumer").rglob("*.py"):
        names |= set(
            re.findall(
                r"\"((?:EVENTHUB|COSMOS|BLOB|ALLOW|CONSUME|CONSUMER)_[A-Z_]+)\"",
                source.read_text(encoding="utf-8"),
            )
        )

    given = names - SETTINGS.keys() - OF_DECODERS
    assert read_config({**SETTINGS, **dict.fromkeys(given, "")}).doubts == ()
