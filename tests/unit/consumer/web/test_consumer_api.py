"""What HTTP and the command line say of consumers, and the orders they take."""

import asyncio
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from consumer.cli import status as cli_status
from consumer.config import ConsumerConfig
from consumer.options import TelemetryConfig
from consumer.running.assembly import Parts
from consumer.running.assembly import reporter as make_reporter
from consumer.telemetry.rate_orders import Limits, RateOrder, Unit
from consumer.web import api
from consumer.web.views import consumers_view
from tests.support.consumer.telemetry import MemoryRateStore, MemoryStatsStore, partition, statistics
from tests.support.scaling.fakes import MemoryDecisionLog
from tidemark.foundation.consumer_stats import ConsumerStats, PartitionStats
from tidemark.foundation.http.callers import Caller

NOW = 1_795_000_000.0


def row(instance="vm-1", *, consumer="flights", age=2.0, lag=(), **changes):
    fields = {"rate_limit": 500.0, "written_per_s": 100.0, "last_ru_per_record": 6.0, **changes}
    return ConsumerStats(consumer=consumer, instance=instance, at=NOW - age, lag=tuple(lag), **fields)


def part(name, lag=10):
    return PartitionStats(name, 100, 95, 90, lag, 5)


@pytest.fixture
def tables():
    """With one consumer, `flights`."""
    stats = MemoryStatsStore()
    asyncio.run(stats.put(row()))
    return api.ConsumerTables(stats, MemoryRateStore(), MemoryDecisionLog(), lambda: NOW)


def test_instances_stand_newest_first_and_stale_ones_are_told_and_not_summed():
    rows = [
        row("a", age=61, dead_letters_total=3, lag=[part("0")]),
        row("b", age=3, paused=True, dead_letters_total=1, lag=[part("1")]),
        row("c", age=1, lag=[part("2"), part("10")]),
        row("d", age=2, stopping=True),
        row("e", age=4, stopping=True, problem="no container; it has ended"),
    ]
    [view] = consumers_view(rows, {}, now=NOW).consumers

    assert [(one.instance, one.state, one.age) for one in view.instances] == [
        ("c", "alive", 1.0),
        ("d", "stopped", 2.0),
        ("b", "paused", 3.0),
        ("e", "failed", 4.0),
        ("a", "stale", 61.0),
    ]
    assert (view.live, view.rate_limit, view.written_per_s, view.ru_per_record) == (2, 1000.0, 200.0, 6.0)
    assert view.instances[0].rate_limit == 500.0
    assert view.dead_letters_total == 4
    assert [(each.partition, each.live) for each in view.partitions] == [
        ("0", False),
        ("1", True),
        ("2", True),
        ("10", True),
    ]
    assert view.lag == 40


def test_a_partition_that_moved_is_shown_as_its_newest_live_owner_tells():
    rows = [
        row("gone", age=100, lag=[part("0", 1), part("1", 1)]),
        row("before", age=4, lag=[part("0", 2)]),
        row("now", age=1, lag=[part("0", 3)]),
        row("stopped", age=0, stopping=True, lag=[part("0", 4), part("1", 4)]),
    ]
    [view] = consumers_view(rows, {}, now=NOW).consumers

    assert [(each.partition, each.instance, each.lag, each.live) for each in view.partitions] == [
        ("0", "now", 3, True),
        ("1", "stopped", 4, False),
    ]


def test_what_is_not_known_is_null_and_no_live_instance_means_no_sums():
    orders = {"new": RateOrder(rate=5.0, by="ann", at=NOW), "lifted": RateOrder(by="ann", at=NOW)}
    rows = [row("a", lag=[PartitionStats("0", None, 5, 4, None, 1)]), row("z", consumer="old", age=999)]
    view = consumers_view(rows, orders, now=NOW)
    by_name = {consumer.consumer: consumer for consumer in view.consumers}

    assert list(by_name) == ["flights", "new", "old"]
    assert by_name["flights"].lag is None
    assert (by_name["old"].live, by_name["old"].written_per_s, by_name["old"].ru_per_record) == (
        0,
        None,
        None,
    )
    assert (by_name["new"].instances, by_name["new"].order.rate) == ((), 5.0)


async def test_status_shows_rows_of_the_last_day_with_their_orders(tables):
    await tables.stats.put(row())
    await tables.stats.put(row("ancient", age=90_000))
    await tables.rates.save("flights", RateOrder(fleet_rate=2000.0, by="ann", at=NOW))
    answer = await api.status(tables)

    body = json.loads(answer.body)
    [view] = body["consumers"]
    assert (answer.status, body["now"], body["stale_after"]) == (200, NOW, 60.0)
    assert [one["instance"] for one in view["instances"]] == ["vm-1"]
    assert view["order"] == {"rate": None, "fleet_rate": 2000.0, "by": "ann", "at": NOW}


async def test_an_order_is_stored_and_stands_in_the_scaling_log(tables):
    answer = await api.set_rate(tables, "flights", b'{"rate": 500, "by": "ann"}')

    assert (answer.status, json.loads(answer.body)["rate"]) == (200, 500.0)
    assert await tables.rates.load("flights") == RateOrder(rate=500.0, by="ann", at=NOW)
    [entry] = (await tables.log.read()).entries
    assert (entry.kind, entry.by, entry.line) == (
        "control",
        "ann",
        "control consumer flights: the rate is 500 records/s for each instance, by ann",
    )


async def test_an_order_for_request_units_stands_beside_that_for_records(tables):
    await api.set_rate(tables, "flights", b'{"rate": 500, "by": "ann"}')
    answer = await api.set_rate(
        tables, "flights", b'{"fleet_rate": 4000, "unit": "request_units", "by": "ann"}'
    )

    assert (answer.status, json.loads(answer.body)["fleet_rate"]) == (200, 4000.0)
    assert await tables.rates.load("flights") == RateOrder(rate=500.0, by="ann", at=NOW)
    assert await tables.rates.load("flights", Unit.REQUEST_UNITS) == RateOrder(
        fleet_rate=4000.0, by="ann", at=NOW
    )
    [view] = json.loads((await api.status(tables)).body)["consumers"]
    assert (view["order"]["rate"], view["ru_order"]["fleet_rate"]) == (500.0, 4000.0)
    told = [entry.line for entry in (await tables.log.read()).entries]
    assert (
        sum(
            "the rate of request units is 4,000 RU/s for all instances together, by ann" in line
            for line in told
        )
        == 1
    )


async def test_lifting_and_unlimited_are_orders_too_and_the_signed_in_user_is_believed(tables):
    ann = Caller("ann@example.com", "0b1c")
    await api.set_rate(tables, "flights", b'{"fleet_rate": 0, "by": "somebody"}', ann)
    first = await tables.rates.load("flights")
    await api.set_rate(tables, "flights", b'{"rate": null, "by": "ben"}')

    assert first == RateOrder(fleet_rate=0.0, by="ann@example.com", at=NOW)
    assert await tables.rates.load("flights") == RateOrder(by="ben", at=NOW)
    told = [entry.line for entry in (await tables.log.read()).entries]  # two at one instant: in either order
    assert sum(line.endswith("by ann@example.com (object 0b1c)") for line in told) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "fligths",
            "found 'fligths', which has not reported within the last day and is under no order; did you",
        ),
        ("zzz", "known are flights"),
        ("ancient", "known are flights"),
    ],
)
async def test_a_rate_for_a_consumer_that_nobody_has_seen_is_404_and_makes_no_ghost(tables, name, told):
    await tables.stats.put(row("old", consumer="ancient", age=90_000))

    answer = await api.set_rate(tables, name, b'{"rate": 5, "by": "ann"}')

    assert answer.status == 404
    assert told in json.loads(answer.body)["error"]
    assert await tables.rates.load_all() == {}
    assert (await tables.log.read()).entries == ()


async def test_an_order_of_a_consumer_that_is_gone_can_be_lifted(tables):
    await tables.rates.save("gone", RateOrder(rate=5.0, by="ann", at=NOW))

    assert (await api.set_rate(tables, "gone", b'{"rate": null, "by": "ann"}')).status == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "by: is missing; a name is accepted"),
        (b"[]", "body: a JSON object"),
        (b'{"by": "\xff"}', "body: a JSON object in UTF-8 is accepted"),
        (b'{"rate": 5}', "by: is missing"),
        (b'{"by": "ann"}', "rate: is missing"),
        (b'{"rate": -1, "by": "ann"}', "rate: found -1; accepted are records per second"),
        (b'{"rate": true, "by": "ann"}', "rate: found True"),
        (b'{"rate": "5", "by": "ann"}', "rate: found '5'"),
        (b'{"fleet_rate": 1e999}', "JSON object in UTF-8 is accepted"),
        (b'{"rate": 5, "fleet_rate": 6, "by": "ann"}', "one of them is accepted"),
        (b'{"rate": 5, "speed": 6, "by": "ann"}', "speed: is not accepted here"),
        (b'{"rate": 5, "by": 7}', "by: found 7"),
        (
            b'{"rate": 5, "unit": "bytes", "by": "ann"}',
            "unit: found 'bytes'; accepted are records and request_units",
        ),
    ],
)
async def test_an_order_that_cannot_be_is_refused_and_changes_nothing(tables, body, told):
    answer = await api.set_rate(tables, "flights", body)

    assert answer.status == 400
    assert told in json.loads(answer.body)["error"]
    assert await tables.rates.load("flights") is None
    assert (await tables.log.read()).entries == ()


async def test_an_order_that_cannot_be_logged_is_not_given(tables, monkeypatch):
    async def fail(_):
        raise RuntimeError("no log")

    monkeypatch.setattr(tables.log, "append", fail)
    with pytest.raises(RuntimeError):
        await api.set_rate(tables, "flights", b'{"rate": 5, "by": "ann"}')

    assert await tables.rates.load("flights") is None


@pytest.fixture
def tidemark(tables, monkeypatch):
    """The commands, on the tables in memory."""
    monkeypatch.setattr(api, "open_tables", lambda *_: tables)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("consumer.cli.status.check_app", lambda *_, **__: None)
    monkeypatch.setattr("consumer.cli.status.console", Console(width=200))
    return lambda *arguments: CliRunner().invoke(cli_status.consumer_app(), [*arguments])


def test_the_command_shows_lag_and_instances(tidemark, tables):
    begun = PartitionStats("1", 8, 7, None, 0, 8)
    asyncio.run(tables.stats.put(row(lag=[part("0", 1234), begun])))
    asyncio.run(tables.rates.save("flights", RateOrder(rate=500.0, by="ann")))
    answer = tidemark("status")

    assert answer.exit_code == 0
    assert "flights: 1 live, 100 records/s (limit 500), 6 RU per record" in answer.output
    assert "│ 1         │ 0    │ none yet  │" in answer.output
    assert "ordered: 500 records/s for each instance, by ann" in answer.output
    assert json.loads(tidemark("status", "--json").output)["consumers"][0]["lag"] == 1234
    assert "no instance of 'other' has reported" in tidemark("status", "other").output


def test_of_a_consumer_without_live_instances_no_unknown_rates_are_shown(tidemark, tables):
    asyncio.run(tables.stats.put(row(age=3600, dead_letters_total=1)))
    answer = tidemark("status")

    first, *lines = answer.output.splitlines()
    assert first == "flights: 0 live, 1 dead letter made"
    assert not any("low-water" in line for line in lines)


def test_a_limit_that_hubs_share_is_not_shown_as_that_of_each(tidemark, tables):
    asyncio.run(tables.stats.put(row(rate_hubs_count=3)))
    answer = tidemark("status")

    assert "100 records/s (limit 500 of 3 hubs together)" in answer.output
    assert answer.output.count("500 of 3 hubs together") == 2
    assert json.loads(tidemark("status", "--json").output)["consumers"][0]["rate_hubs_count"] == 3


def test_the_command_orders_and_lifts_a_rate(tidemark, tables):
    answer = tidemark("rate", "flights", "250.5", "--by", "ann")

    assert (
        answer.output == "control consumer flights: the rate is 250.5 records/s for each instance, by ann\n"
    )
    assert tidemark("rate", "flights", "--lift", "--by", "ann").exit_code == 0
    assert asyncio.run(tables.rates.load("flights")) == RateOrder(by="ann", at=NOW)
    units = tidemark("rate", "flights", "--fleet", "4000", "--request-units", "--by", "ann")
    assert units.output == (
        "control consumer flights: the rate of request units is 4,000 RU/s for all instances together, by ann\n"
    )
    assert asyncio.run(tables.rates.load("flights", Unit.REQUEST_UNITS)).fleet_rate == 4000.0
    assert "ordered: 4000 RU/s for all together, by ann" in tidemark("status").output
    assert tidemark("rate", "flights").exit_code == 2
    assert tidemark("rate", "flights", "5", "--fleet", "6").exit_code == 2
    assert tidemark("rate", "flights", "--", "-5").exit_code == 1


HUB = (
    "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=flights-hub"
)


@pytest.mark.wire
async def test_a_reporter_of_settings_writes_its_row_and_follows_the_order(azurite, tmp_path):
    settings = {"AzureWebJobsStorage": azurite, "EventHubConnection": HUB}
    config = ConsumerConfig(
        hub="flights-hub",
        name="wired",
        rate=500.0,
        telemetry=TelemetryConfig(every=0.05, folder=str(tmp_path)),
    )
    told, rates = asyncio.Event(), []

    def set_rate(rate):
        rates.append(rate)
        told.set()

    tables = api.open_tables(settings, lambda: NOW)
    reporter = make_reporter(
        Parts(config, settings),
        "vm-1",
        lambda: statistics(partition()),
        {Unit.RECORDS: Limits(set_rate, rates.append), Unit.REQUEST_UNITS: Limits(print, print)},
    )
    try:
        await tables.rates.save("wired", RateOrder(by="ann", at=NOW))
        await api.set_rate(tables, "wired", b'{"rate": 50, "by": "ann"}')
        reporter.start()
        async with asyncio.timeout(20):
            await told.wait()
        await reporter.aclose(asyncio.get_running_loop().time() + 20)
        [found] = [stats for stats in await tables.stats.load_all(0.0) if stats.consumer == "wired"]
    finally:
        await tables.aclose()

    assert rates == [None, 50.0]
    assert (found.instance, found.stopping, found.lag[0].lag) == ("vm-1", True, 160)
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1
