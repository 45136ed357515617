import asyncio
import json
import socket
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from typer import Exit
from typer.testing import CliRunner

from consumer.cli.consume import consume
from tidemark.__main__ import command_line
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.http.which_app import check_app, connection_text, reached, say_if_slow
from tidemark.foundation.log import terminal

STORAGE, HUB = "AzureWebJobsStorage", "EventHubConnection"


def test_a_folder_that_is_no_apps_is_told_with_what_to_type_next(tmp_path):
    with pytest.raises(SettingsError, match=r"no app is named: .* has none of tidemark.toml.*or name it"):
        check_app(tmp_path, {}, STORAGE, way_on="or name it")


def test_a_consumer_in_a_folder_that_is_no_apps_is_told_so_unless_the_environment_has_its_settings(
    tmp_path, monkeypatch
):
    def printed():
        return CliRunner().invoke(command_line(), ["consume", "--root", str(tmp_path)]).output

    assert "no app is named" in printed()
    monkeypatch.setenv("EVENTHUB_NAME", "flights")
    assert "COSMOS_DATABASE is not set" in printed()


@pytest.mark.parametrize("settings", [{STORAGE: "AccountName=acme"}, {f"{STORAGE}__accountName": "acme"}])
def test_settings_of_the_environment_name_an_app(tmp_path, settings):
    check_app(tmp_path, settings, STORAGE)


@pytest.mark.parametrize("file", ["tidemark.toml", "host.json", "local.settings.json", ".env"])
def test_a_folder_with_one_of_an_apps_files_is_an_apps(tmp_path, file):
    (tmp_path / file).touch()
    check_app(tmp_path, {}, STORAGE)


def test_the_local_stack_is_told_to_be_down_only_while_nothing_listens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = {HUB: f"Endpoint=sb://localhost:{port};SharedAccessKey=k;UseDevelopmentEmulator=true"}
        check_app(tmp_path, settings, HUB)

    with pytest.raises(
        SettingsError, match=f"the local stack is not running: {HUB} .*localhost:{port}.*make start"
    ):
        check_app(tmp_path, settings, HUB)


def test_storage_of_the_emulator_is_the_local_stack(tmp_path, monkeypatch):
    monkeypatch.setattr("tidemark.foundation.http.which_app._STORAGE_PORT", 1)

    with pytest.raises(SettingsError, match=r"127\.0\.0\.1:1\b"):
        check_app(tmp_path, {STORAGE: " UseDevelopmentStorage = true"}, STORAGE)


TARGET = """version = 1

[targets.t]
scaler = "app_service_plan"
resource_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/r/providers/Microsoft.Web/serverfarms/p"
minimum = 1
maximum = 3

[targets.t.metrics.backlog]
collector = "service_bus_queue"
connection = "Bus"
queue = "q"
window = "5m"

[[targets.t.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = "250"
scale_in_below = "100"
"""

NOT_THERE = {
    STORAGE: "DefaultEndpointsProtocol=http;AccountName=acme;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:1/acme;"
    "TableEndpoint=http://127.0.0.1:1/acme;QueueEndpoint=http://127.0.0.1:1/acme",
    HUB: "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=s3cret",
    "Bus": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=s3cret",
    "EVENTHUB_NAME": "flights",
    "COSMOS_DATABASE": "flights",
    "COSMOS_CONTAINER": "flights",
    "CosmosConnection": "AccountEndpoint=http://127.0.0.1:1/;AccountKey=c2VjcmV0",
    "DB": "postgresql+psycopg://u:s3cret@127.0.0.1:1/x",
}
"""Connections to services of which none is there. None is to the local stack, whose absence has a sentence of its own."""


@pytest.mark.parametrize(
    ("command", "settings", "whom", "setting"),
    [
        ("log", {}, "storage: acme", STORAGE),
        ("consumer status", {}, "storage: acme", STORAGE),
        ("consumer rate c 5 --by ann", {}, "storage: acme", STORAGE),
        ("checkpoints show", {}, "storage: acme", STORAGE),
        ("checkpoints export", {}, "storage: acme", STORAGE),
        ("checkpoints set --all --latest --yes", {}, "storage: acme", STORAGE),
        ("dead-letters list", {}, "storage: acme", STORAGE),
        ("dead-letters list --parked", {}, "storage: acme", STORAGE),
        ("dead-letters replay --all --yes", {}, "storage: acme", STORAGE),
        ("dead-letters purge --all --yes", {}, "storage: acme", STORAGE),
        (
            "dead-letters list",
            {"CONSUMER_DEAD_LETTERS": "cosmos"},
            "Cosmos DB: 127.0.0.1",
            "CosmosConnection",
        ),
        ("publish --hub flights --file {file}", {}, "hub flights: 127.0.0.1", HUB),
        ("send --queue q --connection Bus --file {file}", {}, "queue q: 127.0.0.1", "Bus"),
        (
            "send --queue q --connection Bus --file {file} --claim-check big",
            {},
            "claim checks: acme",
            STORAGE,
        ),
        ("doctor", {}, "storage: acme", STORAGE),
    ],
)
def test_a_service_that_is_not_there_is_named_with_its_setting_while_it_is_waited_for_and_at_the_end(
    command, settings, whom, setting, tmp_path, monkeypatch
):
    class Due:
        """A timer that is due at once."""

        def __init__(self, _seconds, call):
            self.start, self.cancel = call, lambda: None

    sleep = asyncio.sleep
    monkeypatch.setattr("tidemark.foundation.http.which_app.Timer", Due)
    monkeypatch.setattr(asyncio, "sleep", lambda _, result=None: sleep(0, result))
    named = {**NOT_THERE, **settings}
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in named.items()))
    (tmp_path / "tidemark.toml").write_text(TARGET)
    (tmp_path / "lines.txt").write_text("one\n")
    words = command.format(file=tmp_path / "lines.txt").split()

    result = CliRunner().invoke(command_line(), [*words, "--root", str(tmp_path)])

    noted, _, ended = result.output.partition("\n")
    assert result.exit_code == 1
    assert noted.startswith("5 s so far; asking ")
    assert f"{whom} ({setting})" in noted
    assert setting in ended
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("checkpoints show", "consumer.running.assembly"),
        ("dead-letters list", "consumer.running.assembly"),
        ("publish --hub flights --file {file}", "tidemark.publisher.event_hubs.producer"),
        ("send --queue q --connection Bus --file {file}", "tidemark.publisher.service_bus.sender"),
    ],
)
def test_while_an_sdk_is_loaded_nobody_is_asked(command, module, tmp_path, monkeypatch):
    """It takes seconds where a machine has much else to do."""

    order = []
    monkeypatch.setattr("consumer.cli.support.import_module", order.append)
    monkeypatch.setattr("tidemark.publisher.cli.command.import_module", order.append)
    monkeypatch.setattr(
        "tidemark.foundation.http.which_app.Timer",
        lambda *_: SimpleNamespace(start=lambda: order.append("timer"), cancel=lambda: None),
    )
    (tmp_path / "lines.txt").write_text("one\n")
    words = command.format(file=tmp_path / "lines.txt").split()

    CliRunner().invoke(command_line(), [*words, "--root", str(tmp_path)])

    assert order == [module, "timer"]


def test_of_a_deployed_app_only_the_host_is_shown_while_it_is_waited_for(tmp_path):
    shown = reached(tmp_path, "https://acme.azurewebsites.net/api/scaling?code=s3cret", None)

    assert shown == "app: acme.azurewebsites.net (--app)"


def test_a_command_that_is_quick_says_nothing_of_whom_it_asks(capsys):
    with say_if_slow(lambda: "nobody", terminal.Console(stderr=True)):
        pass

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [
        *("status", "status --calls", "log", "shadow", "replay t@20261121T045000.000Z", "doctor"),
        *("order pause t --by ann", "consumer status", "consumer rate c 5 --by ann", "checkpoints show"),
        *("dead-letters list", "dead-letters replay --all --yes", "discover --out new.toml"),
        *("publish --hub flights --file {file}", "send --queue q --connection Bus --file {file}"),
    ],
)
def test_while_the_local_stack_is_down_each_command_is_one_sentence(command, tmp_path, monkeypatch):
    """And not ten, of which each has an SDK's advice about identities and firewalls."""
    monkeypatch.setattr("tidemark.foundation.http.which_app._STORAGE_PORT", 1)
    nowhere = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    settings = {
        STORAGE: "UseDevelopmentStorage=true",
        HUB: nowhere,
        "Bus": nowhere,
        "EVENTHUB_NAME": "flights",
        "COSMOS_DATABASE": "flights",
        "COSMOS_CONTAINER": "flights",
        "PLAN": "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/local",
        "AZURE_RESOURCE_MANAGER_ENDPOINT": "https://localhost:1",
    }
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": settings}))
    (tmp_path / "lines.txt").write_text("one\n")
    words = command.format(file=tmp_path / "lines.txt").split()

    ended = CliRunner().invoke(command_line(), [*words, "--root", str(tmp_path)])

    assert ended.exit_code == 1
    assert ended.output.startswith("error: the local stack is not running: ")
    assert ended.output.count("\n") == 1


def test_a_consumer_waits_for_no_stack_whose_certificate_is_missing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tidemark.foundation.http.which_app._STORAGE_PORT", 1)
    settings = {STORAGE: "UseDevelopmentStorage=true", "TIDEMARK_CA_BUNDLE": ".devstack/localhost.pem"}
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": settings}))
    monkeypatch.setattr(
        "consumer.cli.consume.load_definition", lambda _: SimpleNamespace(hubs=[SimpleNamespace(config=None)])
    )

    with pytest.raises(Exit) as ended:
        consume(root=tmp_path, until="latest")

    assert ended.value.exit_code == 2
    assert "this waits for it" not in caplog.text


def test_a_consumer_that_waits_for_the_local_stack_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tidemark.foundation.http.which_app._STORAGE_PORT", 1)
    monkeypatch.setattr(
        "consumer.cli.consume.load_definition", lambda _: SimpleNamespace(hubs=[SimpleNamespace(config=None)])
    )
    monkeypatch.setattr("consumer.cli.consume._run", AsyncMock())
    (tmp_path / "local.settings.json").write_text(
        json.dumps({"Values": {STORAGE: "UseDevelopmentStorage=true"}})
    )

    with pytest.raises(Exit) as ended:
        consume(root=tmp_path, until="latest")

    assert ended.value.exit_code == 0
    assert "the local stack is not running" in caplog.text
    assert "make start" in caplog.text


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({STORAGE: "UseDevelopmentStorage=true"}, f"the local stack ({STORAGE})"),
        ({STORAGE: "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=c2VjcmV0"}, f"acme ({STORAGE})"),
        ({f"{STORAGE}__accountName": "acme"}, f"acme ({STORAGE}__accountName)"),
        ({f"{STORAGE}__clientId": "id", f"{STORAGE}:tableServiceUri": "https://acme.table.test/?sig=c2VjcmV0"}, f"acme.table.test ({STORAGE}:tableServiceUri)"),
        ({STORAGE: "Endpoint=sb://me:c2VjcmV0@acme.test/;SharedAccessKey=c2VjcmV0"}, f"acme.test ({STORAGE})"),
        ({STORAGE: "c2VjcmV0"}, f"a connection string ({STORAGE})"),
        ({STORAGE: "AccountName=[;AccountKey=c2VjcmV0"}, f"a connection string ({STORAGE})"),
        ({f"{STORAGE}__blobServiceUri": "https://acme.blob.test/"}, f"acme.blob.test ({STORAGE}__blobServiceUri)"),
        ({f"{STORAGE}__accountName": "other", STORAGE.upper(): " ", STORAGE: "AccountName=acme"}, f"acme ({STORAGE})"),
        ({STORAGE: " ", "Other": "AccountName=acme"}, f"{STORAGE} is not set"),
    ],
)  # fmt: skip
def test_where_a_connection_leads_is_shown_beside_its_setting_and_never_a_secret(settings, shown):
    assert connection_text(settings, STORAGE, "storage") == f"storage: {shown}"
