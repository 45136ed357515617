"""The doctor tries what each hub of the consumer's file needs, and what they share once."""

import pytest
from deltalake import DeltaTable, Schema
from sqlalchemy import create_engine

from consumer.doctor.checks import checks_of
from consumer.sinks.lake.columns import parse_schema
from consumer.stores.sql.tables import metadata
from tidemark.foundation.errors import SettingsError

SETTINGS = {
    "EventHubConnection": "Endpoint=sb://one.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "CosmosConnection": "AccountEndpoint=https://x.documents.azure.com:443/;AccountKey=a2V5;",
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
}
FILE = """
version = 1
[hubs.a]
hub = "a"
[[hubs.a.routes]]
when = "x"
to = "one"
[[hubs.a.routes]]
to = "two"
[hubs.b]
hub = "b"
[[hubs.b.routes]]
to = "one"
[sinks]
one = { type = "cosmos", database = "db", container = "one" }
two = { type = "cosmos", database = "db", container = "two" }
"""


async def test_the_doctor_tries_every_hub_and_every_container_once(tmp_path):
    (tmp_path / "f.toml").write_text(FILE)
    checks = checks_of({**SETTINGS, "CONSUMER_FILE": str(tmp_path / "f.toml")}, tmp_path)

    assert [(check.name, check.subject) for check in checks if check.name in {"receive", "write"}] == [
        ("receive", "hub a, group $Default"),
        ("write", "container db/one"),
        ("write", "container db/two"),
        ("receive", "hub b, group $Default"),
    ]
    assert [finding.found for finding in await checks[0].call()] == [
        "hub 'a', group '$Default', sink one, two",
        "hub 'b', group '$Default', sink one",
    ]


async def test_namesakes_in_two_namespaces_are_both_tried(tmp_path):
    text = FILE.replace('hub = "b"', 'hub = "a"\nconnection = "Other"')
    (tmp_path / "f.toml").write_text(text)
    other = SETTINGS["EventHubConnection"].replace("one.", "two.")
    checks = checks_of({**SETTINGS, "Other": other, "CONSUMER_FILE": str(tmp_path / "f.toml")}, tmp_path)

    for name in ("receive", "positions"):
        subjects = [check.subject for check in checks if check.name == name]
        assert subjects == ["hub a, group $Default", "hub a, group $Default (Other)"]


async def test_a_file_that_cannot_be_read_is_one_failed_check(tmp_path):
    [check] = checks_of({**SETTINGS, "CONSUMER_FILE": str(tmp_path / "none.toml")}, tmp_path)

    assert "the file cannot be read" in (await check.call())[0].found


@pytest.mark.parametrize(
    ("create", "is_there", "verdict", "words"),
    [
        (False, False, "failed", "there is no Delta table at"),
        (True, False, "warning", "there is no Delta table at"),
        (True, True, "ok", "may be opened"),
    ],
)
async def test_a_sink_of_another_type_is_opened_and_nothing_is_created(
    tmp_path, create, is_there, verdict, words
):
    table = tmp_path / "rows"
    if is_there:
        DeltaTable.create(str(table), Schema.from_arrow(parse_schema({"id": "string"})))
    sink = f'rows = {{ type = "delta", uri = "{table}", columns = {{ id = "string" }}, create = {str(create).lower()} }}'
    text = f'version = 1\n[hubs.a]\nhub = "a"\n[sinks]\n{sink}\n'
    (tmp_path / "f.toml").write_text(text)
    checks = checks_of({**SETTINGS, "CONSUMER_FILE": str(tmp_path / "f.toml")}, tmp_path)
    [check] = [each for each in checks if each.subject == "sink rows (delta)"]
    [finding] = await check.call()

    assert (str(finding.verdict), words in finding.found) == (verdict, True)
    assert table.exists() is is_there


TABLE = 'rows = { type = "sql", connection = "ROWS_URL", table = "flights", columns = { id = "$.id" }, key = ["id"] }'
DOCUMENTS = 'one = { type = "cosmos", database = "db", container = "one" }'


async def found_in_sql(tmp_path, sinks, keys="", **settings):
    """By subject what the doctor says of databases."""
    routes = [f'[[hubs.a.routes]]\nto = "{each.split()[0]}"\nalso = true' for each in sinks]
    text = "\n".join(["version = 1", "[hubs.a]", 'hub = "a"', keys, *routes, "[sinks]", *sinks])
    (tmp_path / "f.toml").write_text(text.replace("also = true\n[sinks]", "[sinks]"))
    checks = checks_of({**SETTINGS, "CONSUMER_FILE": str(tmp_path / "f.toml"), **settings}, tmp_path)
    in_sql = [
        check for check in checks if check.name == "write" and not check.subject.startswith("container")
    ]
    return {check.subject: [finding.line for finding in await check.call()] for check in in_sql}


@pytest.mark.parametrize("sinks", [[TABLE], [DOCUMENTS, TABLE]])
async def test_the_table_of_a_sql_sink_is_tried_alone_and_beside_others(tmp_path, sinks):
    url = f"sqlite:///{tmp_path}/rows.db"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE flights (id TEXT PRIMARY KEY)")
    found = await found_in_sql(tmp_path, sinks, ROWS_URL=url)
    assert [*found] == ["sink rows (sql)"]
    assert "reading and writing are allowed" in found["sink rows (sql)"][0]

    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE flights")
    with pytest.raises(SettingsError, match="flights"):
        await found_in_sql(tmp_path, sinks, ROWS_URL=url)


async def test_a_database_of_positions_alone_needs_no_table_of_events(tmp_path):
    url = f"sqlite:///{tmp_path}/rows.db"
    metadata.create_all(create_engine(url))
    settings = {"CONSUMER_SQL_URL": url, "CONSUMER_SQL_CREATE_TABLES": "false"}
    found = await found_in_sql(tmp_path, [DOCUMENTS], 'checkpoints = "sql"', **settings)

    assert [
        "; reading and writing are allowed" in line for line in found["database of CONSUMER_SQL_URL"]
    ] == [True]
