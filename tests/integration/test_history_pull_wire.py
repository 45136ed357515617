"""`tidemark history pull` against the local Resource Manager, and its file in `tidemark backtest`."""

import asyncio
import os
import re
import signal
import sys
import time
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import pytest
from azure.core.exceptions import HttpResponseError

from devstack.resource_manager.throttling import BucketSize
from devstack.servers.faults import Fault
from scaling.calls.limiter import limiter_of
from scaling.scalers.arm.clients import open_resources
from scaling.scalers.arm.resources import ArmResources
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager
from tests.support.waiting import until
from tidemark.analysis.backtest.reading import read_arrivals
from tidemark.commands.history import files
from tidemark.commands.history.azure_monitor import VERSION, MetricsReader, _points, _series
from tidemark.commands.history.choosing import Options, chosen
from tidemark.commands.history.journal import place_of
from tidemark.commands.history.model import DAY, MINUTE, SETTLING, Minute, PullError, Span
from tidemark.commands.history.pull import ATTEMPTS, Puller
from tidemark.foundation.errors import UnavailableError

pytestmark = pytest.mark.wire

NOW = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC).timestamp()
LAST = int(NOW // MINUTE) - SETTLING
PROVIDERS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers"
BUS = f"{PROVIDERS}/Microsoft.ServiceBus/namespaces/contoso-bus"


class Watching:
    def __init__(self):
        self.total, self.done, self.stories = 0, 0, []

    def begin(self, minutes):
        self.total = minutes

    def advance(self, minutes):
        self.done += minutes

    def waiting(self, story):
        self.stories.append(story)


class World:
    """A server whose clock stands at `NOW`, a plan of two instances that were three for a while, and the way to pull."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.slept, self.shown = [], Watching()
        self.clock_offset = 0.0

    def add(self, values, entity="orders", resource=BUS):
        times = {minute * MINUTE: value for minute, value in values.items()}
        return self.server.metrics.add(resource, "IncomingMessages", times, EntityName=entity)

    def options(self, **more):
        return Options(**{"target": "plan-orders", "resource_id": BUS, "entity": "orders", **more})

    async def sleep(self, seconds):
        self.slept.append(seconds)

    async def pull(self, options=None, *, days=1, out="history.csv"):
        settings = arm_settings(self.server)
        # What was slept has passed for the ledger of calls, too.
        limiter_of(settings)._clock = lambda: time.monotonic() + sum(self.slept)
        reader = MetricsReader(settings)
        wanted = chosen(options or self.options(), {}, settings)
        puller = Puller(reader, self.shown, lambda: NOW + self.clock_offset, self.sleep)
        async with aclosing(reader):
            return await puller.pull(wanted, days, self.folder / out)

    def fault(self, kind, **options):
        self.server.faults.add(Fault("arm.get_metrics", kind, **options))

    def asked(self):
        return [entry.status for entry in self.server.ledger if entry.path.endswith("/metrics")]


@pytest.fixture
async def world(tmp_path_factory, tmp_path, monkeypatch):
    async with resource_manager(tmp_path_factory, monkeypatch, clock=lambda: NOW) as server:
        yield World(server, tmp_path)


def minutes_before(count):
    return range(LAST - count, LAST)


async def test_a_queues_minutes_become_a_file_whose_gaps_are_empty(world):
    came = {at: float(at % 7) for at in minutes_before(3 * DAY) if at % 100}
    world.add(came)
    world.add(dict.fromkeys(came, 1_000.0), entity="invoices")

    result = await world.pull(days=2)

    assert result.minutes == {at: Minute(came.get(at)) for at in range(LAST - 2 * DAY, LAST)}
    assert {minute.arrivals for minute in result.minutes.values()} == {None, *map(float, range(7))}
    assert files.load(world.folder / "history.csv", "plan-orders", "contoso-bus/orders") == result.minutes
    assert (world.shown.total, world.shown.done) == (2 * DAY, 2 * DAY)
    assert list(world.folder.iterdir()) == [world.folder / "history.csv"]


async def test_the_newest_minutes_which_the_service_has_by_half_are_left_out(world):
    world.add(dict.fromkeys(range(LAST - 60, LAST + SETTLING), 8.0))

    result = await world.pull()

    assert {minute.arrivals for minute in result.minutes.values()} == {None, 8.0}
    assert max(result.minutes) == LAST - 1


async def test_azures_clock_counts_where_this_machines_is_ahead(world):
    world.add(dict.fromkeys(minutes_before(60), 8.0))
    world.clock_offset = 3_600.0

    result = await world.pull()

    assert max(result.minutes) == LAST - 1
    assert result.clock_offset == pytest.approx(3_600.0, abs=1.0)


async def test_instances_are_counted_by_who_reported(world):
    world.add(dict.fromkeys(minutes_before(120), 8.0))
    plan = f"{PROVIDERS}/Microsoft.Web/serverfarms/plan"
    for number in range(1, 41):  # more than fit into one answer of a day
        ran = minutes_before(60) if number > 2 else minutes_before(90)
        cpu = {at * MINUTE: 0.0 for at in ran}
        world.server.metrics.add(plan, "CpuPercentage", cpu, Instance=f"RD{number:04}")

    result = await world.pull(world.options(plan_id=plan), days=1)

    told = [result.minutes[at].instances for at in minutes_before(120)]
    assert told == [*[None] * 30, *[2] * 30, *[40] * 60]


async def test_a_plan_of_the_local_server_tells_its_own_instances(world):
    world.add(dict.fromkeys(minutes_before(60), 8.0))
    started = NOW - 1_800
    world.server._clock = lambda: started
    plan_id = world.server.add_plan(SUBSCRIPTION, "rg", "plan", capacity=3)

    result = await world.pull(world.options(plan_id=plan_id))

    ran = {minute.instances for minute in result.minutes.values()}
    assert ran == {None, 3}
    assert result.minutes[int(started // MINUTE) - 2].instances is None
    assert result.minutes[LAST - 1].instances == 3


async def test_throttling_and_failures_are_waited_for(world):
    world.add(dict.fromkeys(minutes_before(60), 8.0))
    world.fault("error", status=429, condition="TooManyRequests", retry_after=17)
    world.fault("error", status=500, count=2)
    world.fault("drop_connection")  # the SDK itself connects again

    result = await world.pull()

    assert len(result.minutes) == DAY
    assert world.slept == [17.0, 2.0, 4.0]
    assert "waiting 17 s" in world.shown.stories[0]


async def test_a_service_that_stays_away_ends_the_pull_which_goes_on_there_later(world):
    world.add(dict.fromkeys(minutes_before(3 * DAY), 8.0))
    server_error = Fault("arm.get_metrics", "error", status=503, count=None)
    advance = world.shown.advance

    def then_break(minutes):
        advance(minutes)
        if world.shown.done == 2 * DAY:
            world.server.faults.add(server_error)

    world.shown.advance = then_break
    with pytest.raises(PullError, match="what was read is kept, and the same command goes on there"):
        await world.pull(days=3)
    assert len(world.slept) == ATTEMPTS - 1
    assert not (world.folder / "history.csv").exists()
    before = len(world.asked())

    world.server.faults.clear()
    world.shown.advance = advance
    result = await world.pull(days=3)

    assert result.minutes == dict.fromkeys(minutes_before(3 * DAY), Minute(8.0))
    assert len(world.asked()) == before + 2  # the clock, and the one day that was missing
    assert not place_of(world.folder / "history.csv").exists()


async def test_minutes_an_answer_left_out_are_asked_for_again(world):
    world.add(dict.fromkeys(minutes_before(DAY), 8.0))
    await world.pull(out="whole.csv")

    world.server.faults.add(Fault("arm.get_metrics", "latency", seconds=0))  # the question for the time
    world.fault("truncated")
    result = await world.pull(out="again.csv")

    assert (world.folder / "again.csv").read_bytes() == (world.folder / "whole.csv").read_bytes()
    assert result.untold == 0


async def test_minutes_that_stay_left_out_are_gaps_and_told(world):
    world.add(dict.fromkeys(minutes_before(DAY), 8.0))
    world.fault("truncated", count=None)

    result = await world.pull()

    empty = [at for at, minute in result.minutes.items() if minute.arrivals is None]
    assert result.untold == len(empty) > 0
    assert len(result.minutes) == DAY


async def test_a_later_pull_adds_what_is_new_and_asks_for_nothing_else(world):
    came = world.add(dict.fromkeys(minutes_before(2 * DAY), 8.0))
    await world.pull(days=1, out="history.parquet")
    first = files.load(world.folder / "history.parquet", "plan-orders", "contoso-bus/orders")
    came.update(dict.fromkeys(came, 9.0))

    result = await world.pull(days=2, out="history.parquet")

    assert result.new == DAY
    assert {at: result.minutes[at] for at in first} == first
    assert len(result.minutes) == 2 * DAY
    again = await world.pull(days=2, out="history.parquet")
    assert (again.new, again.minutes) == (0, result.minutes)


@pytest.mark.parametrize("entity", ["orders/eu", "o'clock", "a b (c) 100%", "größe"])
async def test_odd_names_are_asked_for_as_they_are(world, entity):
    world.add(dict.fromkeys(minutes_before(60), 8.0), entity=entity)
    world.add(dict.fromkeys(minutes_before(60), 5.0), entity="other")

    result = await world.pull(world.options(entity=entity))

    assert {minute.arrivals for minute in result.minutes.values()} == {None, 8.0}


async def test_a_name_without_a_series_is_told_with_those_there_are_and_leaves_no_file(world):
    world.add(dict.fromkeys(minutes_before(60), 8.0), entity="invoices")
    world.add(dict.fromkeys(minutes_before(60), 8.0), entity="orders-eu")

    with pytest.raises(PullError, match=r"none of 1440 minutes has a value .* values of invoices, orders-eu"):
        await world.pull()

    assert list(world.folder.iterdir()) == []


async def test_resources_that_do_not_exist_or_may_not_be_read_are_named(world):
    world.add({LAST - 5: 8.0})

    with pytest.raises(PullError, match=r"namespaces/nobody: does not exist \(404"):
        await world.pull(world.options(resource_id=BUS.replace("contoso-bus", "nobody")))
    with pytest.raises(PullError, match="serverfarms/none: does not exist"):
        await world.pull(world.options(plan_id=f"{PROVIDERS}/Microsoft.Web/serverfarms/none"))
    world.fault("error", status=403, condition="AuthorizationFailed")
    with pytest.raises(PullError, match="needs the role Monitoring Reader"):
        await world.pull()
    assert world.slept == []


async def test_event_hubs_and_storage_queues_have_their_own_metrics(world):
    hubs = f"{PROVIDERS}/Microsoft.EventHub/namespaces/hubs"
    account = f"{PROVIDERS}/Microsoft.Storage/storageAccounts/store"
    world.add(dict.fromkeys(minutes_before(60), 8.0), entity="flights", resource=hubs)
    for api, response in (
        ("PutMessage", "Success"),
        ("PutMessage", "ClientOtherError"),
        ("GetMessage", "Success"),
    ):
        world.server.metrics.add(
            f"{account}/queueServices/default",
            "Transactions",
            {at * MINUTE: 3.0 for at in minutes_before(60)},
            ApiName=api,
            ResponseType=response,
        )

    flights = await world.pull(world.options(resource_id=hubs, entity="flights"), out="a.csv")
    queue = await world.pull(world.options(resource_id=account, entity=""), out="b.csv")

    assert flights.minutes[LAST - 1] == Minute(8.0)
    assert queue.minutes[LAST - 1] == Minute(3.0)


async def test_the_local_server_takes_30_days_at_a_time_and_cuts_time_series_silently(world):
    world.add({LAST - 5: 8.0})
    wanted = chosen(world.options(), {}, {}).arrivals
    client = open_resources(arm_settings(world.server))

    async def ask(days, **options):
        span = f"{datetime.fromtimestamp(NOW - days * 86_400, UTC):%Y-%m-%dT%H:%MZ}/2026-11-20T12:00Z"
        asked = {"timespan": span, "metricnames": wanted.metric, "$filter": wanted.filter, **options}
        document, _ = await client.get_dated(
            f"{BUS}/providers/Microsoft.Insights/metrics", VERSION, urlencode(asked)
        )
        return document["value"][0]["timeseries"]

    try:
        assert await ask(30)
        for refused in (
            {"days": 31},
            {"days": 1, "interval": "PT7M"},
            {"days": 1, "metricnames": "Incoming"},
        ):
            with pytest.raises(HttpResponseError, match="BadRequest"):
                await ask(**refused)
        for number in range(12):
            world.add({LAST - 5: 8.0}, entity=f"queue{number}")
        every = {"$filter": "EntityName eq '*'", "resultType": "Metadata"}
        assert len(await ask(1, **every)) == 10
        assert len(await ask(1, **every, top=50)) == 13
        with pytest.raises(HttpResponseError, match="dimension"):
            await ask(1, **{"$filter": "Queue eq 'orders'"})
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("days", "gone"),
    [(15, 0), pytest.param(93, 2 * SETTLING, marks=pytest.mark.torture, id="all that is kept")],
)
async def test_many_days_are_pulled_in_days_within_the_calls_a_subscription_has(world, days, gone):
    world.add({LAST - days * DAY + 50: 1.0, LAST - 1: 2.0})
    world.server._throttle.reads = BucketSize(250, 0.0)

    result = await world.pull(days=days)

    assert len(result.minutes) == days * DAY - gone
    assert len(world.asked()) == days + 1
    assert result.minutes[LAST - days * DAY + 50] == Minute(1.0)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_times_without_a_zone_are_in_utc(monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    series = {"data": [{"timeStamp": f"2026-11-20T12:00:00{zone_of}", "total": 3.0} for zone_of in ("", "Z")]}

    points = _points("total", series)

    monkeypatch.undo()
    time.tzset()
    assert points == [(NOW - 30, 3.0)] * 2


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"value": []},
        {"value": [{"id": "/m", "timeseries": [], "errorCode": "Throttled"}]},
    ],
)
def test_an_answer_without_the_metric_is_asked_for_again_and_is_no_gap(answer):
    with pytest.raises(UnavailableError, match=r"holds no metric|/m: Throttled"):
        _series(answer)


@pytest.mark.parametrize(
    "answer",
    [{"value": 1}, {"value": ["m"]}, {"value": [{"timeseries": [{"data": [{"total": 1.0}]}]}]}],
    ids=["no list", "no metric", "no time"],
)
async def test_an_answer_of_another_form_is_refused_by_the_name_of_the_resource(world, monkeypatch, answer):
    async def get_dated(*_):
        return answer, ""

    monkeypatch.setattr(ArmResources, "get_dated", get_dated)
    reader = MetricsReader(arm_settings(world.server))

    with pytest.raises(PullError, match="contoso-bus: the answer holds no time series"):
        await reader.read(chosen(world.options(), {}, {}).arrivals, Span(LAST - 3, LAST), top=10)

    await reader.aclose()


async def test_a_reader_asks_in_utc_and_reads_utc(world):
    world.add({LAST - 2: 8.0})
    reader = MetricsReader(arm_settings(world.server))

    async with aclosing(reader):
        wanted = chosen(world.options(), {}, {})
        answer = await reader.read(wanted.arrivals, Span(LAST - 3, LAST), top=10)

    assert answer.series == [[((LAST - 3) * 60.0, None), ((LAST - 2) * 60.0, 8.0), ((LAST - 1) * 60.0, None)]]
    assert answer.date == NOW - NOW % 1


# The command, in a process of its own


CONFIG = """
[targets.plan-orders]
scaler = "app_service_plan"
resource_id = "{plan}"
maximum = 5

[targets.plan-orders.metrics.backlog]
collector = "service_bus_subscription"
connection = "Orders"
topic = "orders"
subscription = "fulfilment"

[[targets.plan-orders.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = "250 * instances"
scale_in_below = "100 * (instances - 1)"
"""

GRID = """
base = "plan-orders"
late_budget = "1%"
[model]
service_rate = 4
slo = "2m"
[vary]
rules.threshold.scale_out_above = ["150 * instances", "400 * instances"]
"""


async def started(folder, *arguments, **environment):
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidemark", *map(str, arguments)),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "COLUMNS": "300", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def tidemark(folder, *arguments, **environment):
    process = await started(folder, *arguments, **environment)
    output, _ = await process.communicate()
    return process.returncode, " ".join(output.decode().split())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
async def test_a_process_that_is_ended_goes_on_where_it_was(tmp_path_factory, tmp_path, monkeypatch, end):
    async with resource_manager(tmp_path_factory, monkeypatch) as server:
        now = int(server._clock() // MINUTE)
        came = {at * MINUTE: float(at % 7) for at in range(now - 8 * DAY, now) if at % 50}
        server.metrics.add(BUS, "IncomingMessages", came, EntityName="orders")
        server.faults.add(Fault("arm.get_metrics", "latency", seconds=1.5, count=None))
        out = tmp_path / "history.csv"
        command = (
            "--target",
            "orders",
            "--resource-id",
            BUS,
            "--entity",
            "orders",
            "--days",
            "6",
            "--out",
            out,
        )

        process = await started(
            tmp_path, "history", "pull", *command, "--root", tmp_path, **arm_settings(server)
        )
        await until(lambda: len(server.ledger) >= 4, within=100, what="three answers")
        process.send_signal(end)
        told = (await process.communicate())[0].decode()

        assert process.returncode == (-end if end == signal.SIGKILL else 1), told
        assert (end == signal.SIGKILL) or "what was read is in" in told
        assert [*tmp_path.iterdir()] == [place_of(out)]
        before = len(server.ledger)
        server.faults.clear()
        status, told = await tidemark(
            tmp_path, "history", "pull", *command, "--root", tmp_path, **arm_settings(server)
        )

        assert status == 0, told
        assert len(server.ledger) - before < 7
        minutes = files.load(out, "orders", "contoso-bus/orders")
        assert len(minutes) in {6 * DAY, 6 * DAY + 1, 6 * DAY + 2}  # minutes went by between the two
        assert minutes == {at: Minute(came.get(at * MINUTE)) for at in range(min(minutes), max(minutes) + 1)}
        assert [*tmp_path.iterdir()] == [out]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ending", [pytest.param("csv", marks=pytest.mark.torture), "parquet"])
async def test_a_pulled_file_is_backtested_at_once_in_any_time_zone(
    tmp_path_factory, tmp_path, monkeypatch, ending
):
    async with resource_manager(tmp_path_factory, monkeypatch) as server:
        now = int(server._clock() // MINUTE)
        came = {at * MINUTE: 900.0 if at // 90 % 2 else 60.0 for at in range(now - DAY, now) if at % 50}
        server.metrics.add(BUS, "IncomingMessages", came, EntityName="orders")
        plan = server.add_plan(SUBSCRIPTION, "rg", "plan", capacity=2)
        cpu = {at * MINUTE: 5.0 for at in range(now - DAY, now)}
        for number in range(2):
            server.metrics.add(plan, "CpuPercentage", cpu, Instance=str(number))
        (tmp_path / "tidemark.toml").write_text(CONFIG.format(plan=plan))
        (tmp_path / "grid.toml").write_text(GRID)
        settings = arm_settings(server, Orders__fullyQualifiedNamespace="contoso-bus.servicebus.windows.net")
        settings["TZ"] = "Asia/Kolkata"
        out = tmp_path / f"history.{ending}"

        status, told = await tidemark(
            tmp_path,
            "history",
            "pull",
            "--target",
            "plan-orders",
            "--days",
            1,
            "--out",
            out,
            "--root",
            tmp_path,
            **settings,
        )

        assert status == 0, told
        assert "contoso-bus/orders from 20" in told
        assert "are gaps, not zeros" in told
        assert "the newest 10 minutes are left out" in told
        assert "arrivals are those of the topic 'orders'" in told
        readings = {order.at: order for order in read_arrivals(out)["plan-orders"]}
        assert {at: reading.arrivals for at, reading in readings.items()} == {
            at: came[at] for at in came if at >= min(readings) and at <= max(readings)
        }
        assert {reading.instances for reading in readings.values()} == {2}

        status, told = await tidemark(
            tmp_path, "backtest", tmp_path / "grid.toml", "--arrivals", out, "--config", tmp_path / "tidemark.toml",
            "--output", tmp_path / "out", "--processes", 1, **settings,
        )  # fmt: skip

        assert status == 0, told
        assert (tmp_path / "out" / "backtest.html").exists()

        # Five hours of it, for advise replays its policies 60 times. What is assumed of the target, and its policy, come
        # from tidemark.toml, whose settings only the app has.
        minutes = files.load(out, "plan-orders", "contoso-bus/orders")
        files.save(
            out, "plan-orders", "contoso-bus/orders", {at: minutes[at] for at in sorted(minutes)[-300:]}
        )
        status, told = await tidemark(
            tmp_path, "advise", out, "--service-rate", 4, "--price", 0.2, "--output", tmp_path / "advice", **settings
        )  # fmt: skip

        assert status == 0, told
        assert "today's policy" in told
        assert "instance-hours ran in truth" in told
        assert re.search(r"2 % of the time is missing \(\d+ min in \d+ gaps\)", told)
        assert (tmp_path / "advice" / "advice.html").exists()


async def test_metrics_come_over_the_control_port_too(world):
    address = f"{world.server.control_url}/metrics"
    series = {
        "resource_id": BUS,
        "metric": "IncomingMessages",
        "dimensions": {"EntityName": "orders"},
        "values": {str(at * MINUTE): 4 for at in minutes_before(30)},
    }
    async with aiohttp.ClientSession() as session:
        async with session.post(address, json={**series, "values": [1]}) as answer:
            assert (answer.status, "accepted" in await answer.text()) == (400, True)
        async with session.post(address, json=series) as answer:
            assert answer.status == 204

    result = await world.pull()

    assert result.minutes[LAST - 1] == Minute(4.0)
