"""`tidemark lint FILE` tells what the consumer's start would refuse."""

import asyncio
import dataclasses
import json
import subprocess
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from consumer.cli import support
from consumer.definition import reading
from consumer.running.hosted import hosted
from consumer.sinks.types import find_sink_type
from tidemark.__main__ import command_line
from tidemark.foundation.errors import SettingsError

FILE = """
version = 1
[hubs.flights]
hub = "flights"
[[hubs.flights.routes]]
to = "documents"
{route}
[[hubs.flights.routes]]
to = "documents"
[sinks.documents]
type = "cosmos"
database = "db"
container = "{container}"
{sink}
"""
SETTINGS = {
    "EventHubConnection": "Endpoint=sb://n.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "CosmosConnection": "AccountEndpoint=https://x.documents.azure.com:443/;AccountKey=a2V5;",
    "AzureWebJobsStorage": "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=a2V5;EndpointSuffix=core.windows.net",
}


@pytest.fixture
def lint(tmp_path, monkeypatch):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": SETTINGS}))

    def run(*options, route="", container="c", sink="", parts=None):
        text = FILE.format(route=route, container=container, sink=sink)
        (tmp_path / "consumer.toml").write_text(text)
        app = command_line(parts) if parts else command_line()
        arguments = ["lint", str(tmp_path / "consumer.toml"), "--root", str(tmp_path), *options]
        return CliRunner().invoke(app, arguments)

    return run


def test_a_file_in_order_is_told_with_its_warnings(lint):
    result = lint()

    assert result.exit_code == 0
    assert "hubs.flights.routes[1]: never reached" in result.output.replace("\n", "")
    assert "1 hub and 1 sink checked, 1 warning" in result.output


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"route": "wehn = 'a'"}, "routes[0].wehn: is not an option here; did you mean 'when'?"),
        ({"sink": "guard = 'sometimes'"}, "sinks.documents"),
        ({"sink": "connection = 'Nope'"}, "no app setting is named Nope"),
    ],
)
def test_what_a_start_would_refuse_is_told_with_exit_status_1(lint, what, told):
    result = lint(**what)

    assert result.exit_code == 1
    assert told in result.output.replace("\n", "")


def test_what_a_trigger_would_refuse_is_told_too(lint, tmp_path):
    values = {
        **SETTINGS,
        "CONSUMER_PARK": "status_404",
        "CONSUMER_HOSTING": "trigger",
        "EVENTHUB_NAME": "flights",
    }
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": values}))
    result = lint()

    assert result.exit_code == 1
    assert (
        "consumer.toml:3 hubs.flights: CONSUMER_PARK is set: with CONSUMER_HOSTING=trigger"
        in result.output.replace("\n", "")
    )


def test_json_has_problems_and_doubts_apart(lint):
    assert len(json.loads(lint("--json").output)["doubts"]) == 1
    [problem] = json.loads(lint("--json", route="x = 1").output)["problems"]
    assert problem.startswith("consumer.toml:7 hubs.flights.routes[0].x: is not an option here")


def test_problems_of_sinks_hubs_and_transforms_are_a_line_each_in_the_order_of_the_file(lint, monkeypatch):
    def build(options, context):
        if context.name == "broken":
            raise ZeroDivisionError
        raise SettingsError(f"sinks.{context.name}: no database\nno key")

    kind = find_sink_type("cosmos")
    monkeypatch.setattr(reading, "find_sink_type", lambda _: dataclasses.replace(kind, build=build))
    wrong = "[hubs.gates]\nhub = 'gates'\ntransform = 'json:nothing'\n[[hubs.gates.routes]]\nto = 1"
    wrong += "\n[hubs.all]\nhub = 'all'\n[[hubs.all.routes]]\nto = 'broken'\n[sinks.broken]\ntype = 'cosmos'\ndatabase = 'd'\ncontainer = 'c'"
    told = json.loads(lint("--json", sink=wrong).output)["problems"]

    assert [line.partition(": ")[::2] for line in told] == [
        ("consumer.toml:10 sinks.documents", "no database"),
        ("consumer.toml:10 sinks.documents", "no key"),
        (
            "consumer.toml:16 hubs.gates.transform",
            "the transform 'json:nothing': module 'json' has no 'nothing'",
        ),
        ("consumer.toml:18 hubs.gates.routes[0].to", "found 1; accepted: text, not empty"),
        ("consumer.toml:23 sinks.broken", "cannot be built: ZeroDivisionError: "),
    ]


@pytest.mark.parametrize("line", ["", "strat = 'latest'"])
def test_editors_check_the_file_by_the_schema_that_the_command_prints(tmp_path, line):
    printed = CliRunner().invoke(command_line({"consumer": "consumer.cli.commands"}), ["consumer", "schema"])
    (tmp_path / "schema.json").write_text(printed.output)
    (tmp_path / "f.toml").write_text(FILE.format(route=line, container="c", sink=""))
    command = [Path(sysconfig.get_path("scripts"), "taplo"), "check", "--schema"]
    answer = subprocess.run(
        [*command, (tmp_path / "schema.json").as_uri(), "f.toml"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )

    assert (answer.returncode == 0) is (line == "")


def test_commands_are_about_the_hub_that_is_named(lint, tmp_path, monkeypatch):
    lint()
    monkeypatch.setenv("CONSUMER_FILE", str(tmp_path / "consumer.toml"))
    text = (tmp_path / "consumer.toml").read_text()
    (tmp_path / "consumer.toml").write_text(f"{text}\n[hubs.gates]\nhub = 'g'\n")

    assert support.open_parts(tmp_path, "gates").config.hub == "g"
    with pytest.raises(SettingsError, match="--hub: is missing; the file has the hubs flights, gates"):
        support.open_parts(tmp_path)


def test_a_trigger_takes_the_one_hub_of_a_file_that_its_binding_names(lint, tmp_path):
    lint()
    settings = {**SETTINGS, "CONSUMER_FILE": str(tmp_path / "consumer.toml"), "EVENTHUB_NAME": "other"}

    async def main(name):
        return hosted({**settings, "EVENTHUB_NAME": name})

    assert asyncio.run(main("FLIGHTS")) is not None
    with pytest.raises(SettingsError, match="EVENTHUB_NAME is 'other'; accepted: 'flights'"):
        asyncio.run(main("other"))


def test_the_consumer_alone_has_the_command_too(lint):
    result = lint(parts={"consumer": "consumer.cli.commands"})

    assert result.exit_code == 0
    assert Path("consumer.toml").name in result.output
