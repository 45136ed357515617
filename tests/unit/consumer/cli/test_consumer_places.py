"""`tidemark consumer` at the storage account that the command line names."""

import asyncio

import pytest
from typer.testing import CliRunner

from consumer.cli.dead_letters import dead_letters_app
from consumer.cli.status import consumer_app
from consumer.web import api
from tests.support.consumer.telemetry import MemoryRateStore, MemoryStatsStore
from tests.support.scaling.fakes import MemoryDecisionLog
from tidemark.foundation.consumer_stats import ConsumerStats
from tidemark.foundation.errors import UnavailableError

NOW = 1_800_000_000.0


def test_the_account_that_is_named_is_the_one_looked_at_and_ordered_in(tmp_path, monkeypatch):
    seen, stats, rates = [], MemoryStatsStore(), MemoryRateStore()
    asyncio.run(stats.put(ConsumerStats(consumer="flights", instance="vm-1", at=NOW - 2)))

    def opened(settings, _clock):
        seen.append(dict(settings))
        return api.ConsumerTables(stats, rates, MemoryDecisionLog(), lambda: NOW)

    monkeypatch.setattr(api, "open_tables", opened)
    monkeypatch.setenv("AzureWebJobsStorage", "UseDevelopmentStorage=true")
    here = ["--account", "sttidemark", "--root", str(tmp_path)]
    shown = CliRunner().invoke(consumer_app(), ["status", *here], catch_exceptions=False)
    given = CliRunner().invoke(consumer_app(), ["rate", "flights", "5", "--by", "ann", *here])

    assert [shown.exit_code, given.exit_code] == [0, 0]
    assert "flights" in shown.output
    assert rates.orders["flights"].by == "ann"
    for settings in seen:
        assert settings["AzureWebJobsStorage__accountName"] == "sttidemark"
        assert "AzureWebJobsStorage" not in settings


@pytest.mark.parametrize(
    ("arguments", "retries"),
    [
        ("list", [1]),
        ("list --parked", [1]),
        ("purge --all --dry-run", [1]),
        ("replay --all --dry-run", [1]),
        ("replay --all --yes", [None]),
    ],
)
def test_only_what_writes_is_tried_as_often_as_by_a_consumer(arguments, retries, tmp_path, monkeypatch):
    asked = []

    def no_container(*_, retry_total=None):
        asked.append(retry_total)
        raise UnavailableError("no container")

    monkeypatch.setattr("consumer.running.assembly.blob_container", no_container)
    (tmp_path / ".env").write_text(
        "AzureWebJobsStorage__accountName=acme\nEventHubConnection__fullyQualifiedNamespace=acme\n"
        "EVENTHUB_NAME=flights\nCOSMOS_DATABASE=flights\nCOSMOS_CONTAINER=flights\n"
    )

    CliRunner().invoke(dead_letters_app(), [*arguments.split(), "--root", str(tmp_path)])

    assert asked == retries
