"""`tidemark consumer` at the storage account that the command line names."""

import asyncio

from typer.testing import CliRunner

from consumer.cli.status import consumer_app
from consumer.web import api
from tests.support.consumer.telemetry import MemoryRateStore, MemoryStatsStore
from tests.support.scaling.fakes import MemoryDecisionLog
from tidemark.foundation.consumer_stats import ConsumerStats

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
