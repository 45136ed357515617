"""The collectors of one number on the wire: Azure Monitor, logs, Prometheus, and documents of any form."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from aiohttp import web

from devstack.monitor import MonitorServer
from devstack.servers.certificates import ensure_certificate
from devstack.servers.faults import Fault
from scaling.collectors.number.azure_monitor import AzureMonitorCollector
from scaling.collectors.number.calendar import CalendarCollector
from scaling.collectors.number.http_json import HttpJsonCollector
from scaling.collectors.number.log_query import LogQueryCollector
from scaling.collectors.number.metrics_reader import AT_ONCE, REFUSED_FOR
from scaling.collectors.number.prometheus import PrometheusCollector
from scaling.ports import CollectError
from tests.conformance.test_collectors import NOW, CollectorConformance
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager

pytestmark = pytest.mark.wire
WORKSPACE = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg"


class NumberConformance(CollectorConformance):
    TOTAL = "value"
    POINT: str

    async def test_throttling_is_told_with_the_time_to_wait(self, world):
        world.fault("error", status=429, condition="too many", retry_after=42)

        with pytest.raises(CollectError, match=r"throttles these requests; it asks to wait 42 s \(.+\)"):
            await world.collector.collect(now=NOW)

    async def test_a_refusal_is_told_with_what_is_needed(self, world):
        world.fault("error", status=403, condition="not for you")

        with pytest.raises(CollectError, match=r"access refused; reading .* needs the .* \(.+\)"):
            await world.collector.collect(now=NOW)

    async def test_one_broken_connection_does_not_spoil_a_read(self, world):
        world.fault("drop_connection")

        assert (await world.collector.collect(now=NOW)).values == {"value": 0.0}

    async def test_an_answer_that_is_late_ends_at_the_deadline(self, world):
        world.fault("latency", seconds=0.4)
        world.collector._deadline = 0.2

        with pytest.raises(CollectError, match=r"no answer within 0\.2 s"):
            await world.collector.collect(now=NOW)


class ClosingWorld:
    """Closes at its end the collectors that it has made."""

    def __init__(self) -> None:
        self._kept = []

    def kept(self, collector):
        self._kept.append(collector)
        return collector

    async def aclose(self) -> None:
        for collector in self._kept:
            await collector.aclose()


class AskedWorld(ClosingWorld):
    """A server of which one number is asked; `value` is what it answers."""

    def __init__(self, server: MonitorServer) -> None:
        super().__init__()
        self.server = server
        self.settings = {
            "TIDEMARK_CA_BUNDLE": str(server.ca_path),
            "TIDEMARK_TRUSTED_HOSTS": server.base_url.removeprefix("https://"),
            "AZURE_LOGS_ENDPOINT": server.base_url,
            "AzureResourceManager__credential": "managedidentity",
            "ORDERS_KEY": "s3cret-value",
        }
        self.value = 0
        self.tell()
        self.collector = self.made()

    async def put(self, count: int) -> None:
        self.value += count
        self.tell()

    def fault(self, kind: str, **options) -> None:
        self.server.faults.add(Fault("monitor.*", kind, **options))

    async def failure(self, collector=None) -> str:
        with pytest.raises(CollectError) as raised:
            await (collector or self.collector).collect(now=NOW)
        return str(raised.value)


@pytest.fixture
async def server(tmp_path_factory) -> AsyncIterator[MonitorServer]:
    async with MonitorServer(ensure_certificate(tmp_path_factory.getbasetemp() / "certificate")) as server:
        yield server


@pytest.fixture
async def identity(tmp_path_factory, monkeypatch):
    async with resource_manager(tmp_path_factory, monkeypatch, clock=lambda: NOW + 60) as server:
        yield server


class DocumentWorld(AskedWorld):
    name = "queue.length"

    def made(self, **options) -> HttpJsonCollector:
        options = {"url": f"{self.server.base_url}/documents/orders", "path": self.name, **options}
        return self.kept(HttpJsonCollector(HttpJsonCollector.Params(**options), self.settings))

    def tell(self) -> None:
        queue = {"length": self.value, "text": "7", "none": None, "some": [5, float("nan")]}
        self.server.documents["orders"] = {"queue": queue}

    async def remove(self) -> None:
        del self.server.documents["orders"]


class TestHttpJson(NumberConformance):
    @pytest.fixture
    async def world(self, server) -> AsyncIterator[DocumentWorld]:
        async with aclosing(DocumentWorld(server)) as world:
            yield world

    async def test_headers_come_from_app_settings_and_are_never_shown(self, world):
        collector = world.made(headers={"X-Api-Key": "ORDERS_KEY"})

        await collector.collect(now=NOW)
        world.fault("error", status=401, condition="who is s3cret-value?")
        told = await world.failure(collector)

        assert world.server.asked[-1].headers["X-Api-Key"] == "s3cret-value"
        assert "ORDERS_KEY" not in told
        assert "s3cret" not in HttpJsonCollector.entity(collector._params)

    async def test_a_header_whose_setting_is_missing_is_named(self, world):
        collector = world.made(headers={"X-Api-Key": "OTHER_KEY"})

        assert "named for the header X-Api-Key is not set" in await world.failure(collector)

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("queue.text", 'it is "7"; accepted is one finite number'),
            ("queue", "accepted is one finite number"),
            ("queue.none", "holds no value, which is not zero"),
            ("missing", "holds no value, which is not zero"),
            ("abs(queue.text)", "cannot be found in the answer"),
            ("to_number('n/a')", 'was given "n/a", which is no number'),
            ("sum([to_number(queue.text), to_number('n/a')])", 'was given "n/a", which is no number'),
            ("to_number(queue)", "which is no number"),
            ("to_number('1_000')", 'was given "1_000", which is no number'),
            ("max([to_number(queue.text), to_number('NaN')])", 'was given "NaN", which is no number'),
            ("queue.some[1]", 'it is "NaN"; accepted is one finite number'),
            ("max(queue.some)", "cannot be found in the answer"),  # 5 would leave out what is not known
        ],
    )
    async def test_what_is_no_number_is_an_error_that_shows_it(self, world, path, words):
        """Also where `empty` says what no value counts as: what cannot be read is not that (B3)."""
        collectors = [world.made(path=path)]
        if "no value" not in words:
            collectors.append(world.made(path=path, empty=0.0))

        for collector in collectors:
            assert words in await world.failure(collector)

    async def test_a_text_that_is_a_number_is_read(self, world):
        collector = world.made(path="to_number(queue.text)", empty=0.0)

        assert (await collector.collect(now=NOW)).values == {"value": 7.0}

    async def test_what_a_null_counts_as_is_said_by_an_option(self, world):
        collector = world.made(path="queue.none", empty=5.0)

        assert (await collector.collect(now=NOW)).values == {"value": 5.0}

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (b"<html>", "the answer of 6 bytes is no JSON"),
            (b"[" * 100_000, "is no JSON"),
            (b"1" * (5 << 20), "larger than"),
            (b'{"queue": {"length": 1e999}}', "accepted is one finite number"),
            (b'{"queue": {"length": ' + b"9" * 400 + b"}}", "accepted is one finite number"),
            (
                web.Response(status=302, headers={"Location": "https://other.example/x?key=abc"}),
                "it redirects to other.example; redirects are not followed",
            ),
        ],
    )
    async def test_answers_that_are_none_are_told_apart(self, world, answer, words):
        world.server.documents["orders"] = answer

        assert words in await world.failure()

    @pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "168.63.129.16", "127.0.0.1"])
    async def test_addresses_of_the_platform_are_refused(self, world, host):
        collector = world.made(url=f"https://{host}/metadata")

        assert "address of this machine or its link" in await world.failure(collector)

    async def test_a_name_that_stands_for_this_machine_is_refused_when_it_is_called(self, world):
        del world.settings["TIDEMARK_TRUSTED_HOSTS"]
        collector = world.made()

        assert "address of this machine or its link" in await world.failure(collector)
        assert world.server.asked == []


class PrometheusWorld(AskedWorld):
    name = "sum(work)"

    def made(self, **options) -> PrometheusCollector:
        params = PrometheusCollector.Params(**{"url": self.server.base_url, "query": self.name, **options})
        return self.kept(PrometheusCollector(params, self.settings))

    def tell(self) -> None:
        self.server.series[self.name] = {"a": self.value}

    async def remove(self) -> None:
        del self.server.series[self.name]


class TestPrometheus(NumberConformance):
    @pytest.fixture
    async def world(self, server) -> AsyncIterator[PrometheusWorld]:
        async with aclosing(PrometheusWorld(server)) as world:
            yield world

    async def test_a_managed_one_is_asked_with_a_token_for_it(self, world, identity):
        collector = world.made(azure=True)

        await collector.collect(now=NOW)
        await collector.collect(now=NOW)

        tokens = {asked.token for asked in world.server.asked}
        assert len(tokens) == 1
        assert "" not in tokens

    async def test_an_error_is_told_in_the_words_of_the_server(self, world):
        await world.remove()

        assert "does not exist" in await world.failure()


class LogWorld(AskedWorld):
    name = WORKSPACE

    def made(self, **options) -> LogQueryCollector:
        options = {"workspace": WORKSPACE, "query": "requests | count", **options}
        return self.kept(LogQueryCollector(LogQueryCollector.Params(**options), self.settings))

    def tell(self) -> None:
        self.server.logs["requests | count"] = [[self.value]]

    async def remove(self) -> None:
        del self.server.logs["requests | count"]


class TestLogQuery(NumberConformance):
    @pytest.fixture
    async def world(self, server, identity) -> AsyncIterator[LogWorld]:
        async with aclosing(LogWorld(server)) as world:
            yield world

    async def test_a_query_is_sent_with_its_timespan_and_a_token(self, world):
        resource = f"{GROUP}/providers/Microsoft.Insights/components/app"
        collector = world.made(workspace="", resource_id=f"{resource}/", timespan="30m")

        await collector.collect(now=NOW)

        counted = world.made(delay="5m", grain="1m")
        assert (
            await counted.collect(now=NOW)
        ).at == NOW - 320  # the newest whole minute that ended 5 min ago
        asked, _ = world.server.asked
        assert asked.path == f"/v1{resource}/query"
        assert asked.body == {"query": "requests | count", "timespan": "PT1800S"}
        assert asked.token
        assert asked.headers["Prefer"] == "wait=10"


class MetricWorld(ClosingWorld):
    """Messages that came into a namespace, by the minute."""

    name = "orders-bus"

    def __init__(self, management, server: MonitorServer) -> None:
        super().__init__()
        self.management = management
        self.server = server
        server.metrics = management.metrics
        self.settings = arm_settings(management, AZURE_METRICS_ENDPOINT=server.base_url)
        self.resource = f"{GROUP}/providers/Microsoft.ServiceBus/namespaces/{self.name}"
        self.add(self.resource, 0)
        self.collector = self.made()

    def made(self, resource: str = "", **options) -> AzureMonitorCollector:
        chosen = {
            "metric": "IncomingMessages",
            "aggregation": "total",
            "dimensions": {"EntityName": "orders"},
        }
        params = AzureMonitorCollector.Params(resource_id=resource or self.resource, **{**chosen, **options})
        return self.kept(AzureMonitorCollector(params, self.settings))

    def add(self, resource: str, count: float, entity: str = "orders") -> None:
        values = {NOW - 60.0 * minute: count for minute in range(-1, 12)}
        self.management.metrics.add(resource, "IncomingMessages", values, EntityName=entity)

    async def put(self, count: int) -> None:
        self.add(self.resource, count)

    async def remove(self) -> None:
        self.management.metrics.resources.clear()

    def fault(self, kind: str, **options) -> None:
        self.management.faults.add(Fault("arm.get_metrics", kind, **options))

    @property
    def reads(self) -> tuple[int, int]:
        """Single reads, and reads of several resources."""
        single = sum("insights/metrics" in entry.path.lower() for entry in self.management.ledger)
        return single, len(self.server.asked)


class TestAzureMonitor(NumberConformance):
    AGE = 200.0  # NOW is 20 s after a minute, and minutes count that ended three minutes ago

    @pytest.fixture
    async def world(self, identity, server) -> AsyncIterator[MetricWorld]:
        async with aclosing(MetricWorld(identity, server)) as world:
            yield world

    async def test_the_newest_minutes_are_left_to_become_whole(self, world):
        await world.put(10)
        hasty = world.made(delay="0s")

        assert (await world.collector.collect(now=NOW)).values == {"value": 10.0}
        assert (await hasty.collect(now=NOW)).values == {"value": 5.0}  # half of what it will be

    async def test_the_newest_of_the_last_grains_counts_at_its_end(self, world):
        known = {NOW - 60.0 * minute: float(minute) for minute in range(6, 12)}  # the newest ended 5 min ago
        world.management.metrics.add(world.resource, "IncomingMessages", known, EntityName="late")
        collectors = [
            world.made(dimensions={"EntityName": "late"}, **options)
            for options in ({}, {"grains": 2}, {"grains": 3}, {"empty": 0.0})
        ]

        whole = await collectors[0].collect(now=NOW)
        with pytest.raises(CollectError, match=r"the newest is 2 before that\..*give `grains = 3`"):
            await collectors[1].collect(now=NOW)
        advised = await collectors[2].collect(now=NOW)
        empty = await collectors[3].collect(now=NOW)

        assert (whole.at, whole.values) == (advised.at, advised.values) == (NOW - 320, {"value": 6.0})
        assert (empty.at, empty.values) == (NOW - 200, {"value": 0.0})

    async def test_a_value_that_rose_after_it_was_read_is_told_once(self, world, caplog):
        for count in (0, 4, 9):
            await world.put(count)
            await world.collector.collect(now=NOW)

        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(told) == 1
        assert "read as 0, a grain has 4 now: Azure Monitor added to it after the `delay` of 3 min" in told[0]

    async def test_a_coarser_grain_is_one_value(self, world):
        await world.put(10)
        collector = world.made(grain="5m")

        assert (await collector.collect(now=NOW)).values == {"value": 50.0}

    @pytest.mark.parametrize("region", ["", "westeurope"])
    async def test_names_of_any_form_find_their_series(self, world, region):
        name = "o'orders (eu) 100% & more"
        world.add(world.resource, 3, name)
        collector = world.made(dimensions={"EntityName": name}, region=region)

        assert (await collector.collect(now=NOW)).values == {"value": 3.0}

    async def test_no_value_is_not_zero_unless_it_is_said_to_be(self, world):
        silent = world.made(dimensions={"EntityName": "silent"})
        counted = world.made(dimensions={"EntityName": "silent"}, empty=0.0)

        with pytest.raises(CollectError, match="Azure Monitor has no value, which is not zero"):
            await silent.collect(now=NOW)
        assert (await counted.collect(now=NOW)).values == {"value": 0.0}

    async def test_a_metric_that_does_not_exist_is_told_in_azures_words(self, world):
        collector = world.made(metric="Incoming")

        with pytest.raises(
            CollectError, match=r"answered 400 \(Failed to find metric configuration .*metric: Incoming"
        ):
            await collector.collect(now=NOW)

    async def several(self, world, count: int, **options) -> list[AzureMonitorCollector]:
        resources = [f"{world.resource}-{number}" for number in range(count)]
        for number, resource in enumerate(resources):
            world.add(resource, number)
        made = [world.made(resource, **options) for resource in resources]
        AzureMonitorCollector.together(made)
        return made

    async def values(self, collectors, now: float = NOW) -> list[float]:
        found = await asyncio.gather(*(collector.collect(now=now) for collector in collectors))
        return [reading.values["value"] for reading in found]

    async def test_metrics_of_resources_that_are_alike_are_read_together(self, world):
        collectors = await self.several(world, 2 * AT_ONCE + 1, region="westeurope")

        assert await self.values(collectors) == [float(number) for number in range(2 * AT_ONCE + 1)]

        assert world.reads == (0, 3)
        assert sorted(len(asked.body["resourceids"]) for asked in world.server.asked) == [1, AT_ONCE, AT_ONCE]
        assert world.server.asked[0].token

    async def test_a_region_that_is_not_the_resources_own_tells_nothing(self, world):
        collectors = await self.several(world, 2, region="northeurope", empty=0.0)

        assert await self.values(collectors) == [0.0, 1.0]

        assert world.reads == (2, 1)

    async def test_who_closes_first_does_not_take_the_connection_of_the_others(self, world):
        first, *others = collectors = await self.several(world, 3, region="westeurope")
        await self.values(collectors)

        reading = asyncio.gather(*(other.collect(now=NOW) for other in others))
        await asyncio.sleep(0)
        await first.aclose()

        assert [found.values["value"] for found in await reading] == [1.0, 2.0]

    async def test_the_region_is_learned_from_the_first_answer(self, world):
        collectors = await self.several(world, 3)

        await self.values(collectors)
        await self.values(collectors)

        assert world.reads == (3, 1)

    async def test_where_reading_together_is_refused_each_is_read_alone_for_a_while(self, world, caplog):
        collectors = await self.several(world, 3, region="westeurope", empty=0.0)
        world.server.faults.add(Fault("monitor.batch", "error", status=403, condition="not in this region"))

        assert await self.values(collectors) == [0.0, 1.0, 2.0]
        assert world.reads == (3, 1)
        assert await self.values(collectors) == [0.0, 1.0, 2.0]
        assert world.reads == (6, 1)
        await self.values(collectors, NOW + REFUSED_FOR)
        assert world.reads == (6, 2)

        assert "cannot be read together" in caplog.text

    async def test_a_metric_that_does_not_exist_keeps_no_others_from_being_read_together(self, world):
        collectors = await self.several(world, 3, region="westeurope")
        wrong = world.made(metric="Incoming", region="westeurope")
        AzureMonitorCollector.together([*collectors, wrong])

        for _ in range(2):
            with pytest.raises(CollectError, match="metric: Incoming"):
                await wrong.collect(now=NOW)
            assert await self.values(collectors) == [0.0, 1.0, 2.0]

        assert world.reads == (2, 3)

    async def test_throttled_together_is_read_alone_from_resource_manager_which_counts_for_itself(
        self, world
    ):
        collectors = await self.several(world, 3, region="westeurope")
        world.server.faults.add(Fault("monitor.batch", "error", status=429, retry_after=7))

        found = await asyncio.gather(*(collector.collect(now=NOW) for collector in collectors))

        assert [each.values["value"] for each in found] == [0.0, 1.0, 2.0]
        assert world.reads == (3, 1)

    async def test_one_resource_that_is_gone_costs_its_own_value_only(self, world):
        collectors = await self.several(world, 3, region="westeurope")
        del world.management.metrics.resources[f"{world.resource}-1".lower()]

        found = await asyncio.gather(
            *(collector.collect(now=NOW) for collector in collectors), return_exceptions=True
        )

        assert [found[0].values, found[2].values] == [{"value": 0.0}, {"value": 2.0}]
        assert "does not exist" in str(found[1])


class CalendarWorld(AskedWorld):
    """A calendar that has 15 November 2023, from Berlin's midnight; NOW is 23:13 of the day before there."""

    def made(self, **options) -> CalendarCollector:
        options = {"url_setting": "HOLIDAYS", "time_zone": "Europe/Berlin", **options}
        self.settings["HOLIDAYS"] = f"{self.server.base_url}/documents/private-t0ken"
        return self.kept(CalendarCollector(CalendarCollector.Params(**options), self.settings))

    def tell(self) -> None:
        self.server.documents["private-t0ken"] = (
            b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART;VALUE=DATE:20231115\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
        )

    async def read(self, *, days: float, collector: CalendarCollector | None = None) -> float:
        return (await (collector or self.collector).collect(now=NOW + 86_400 * days)).values["value"]


class TestCalendar:
    @pytest.fixture
    async def world(self, server) -> AsyncIterator[CalendarWorld]:
        async with aclosing(CalendarWorld(server)) as world:
            yield world

    async def test_it_is_one_on_days_of_the_calendar_and_zero_on_others(self, world):
        nights = world.made(day_begins="12:00")

        assert [await world.read(days=n / 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 0]
        assert [await world.read(days=n / 4, collector=nights) for n in (1, 2, 3, 6, 7)] == [0, 0, 1, 1, 0]

    async def test_it_is_fetched_once_a_day_and_once_an_hour_after_a_failure(self, world):
        for hours in (0, 12, 23.9):
            await world.read(days=hours / 24)
        assert len(world.server.asked) == 1
        world.fault("error", status=500)
        world.fault("error", status=500)
        for hours in (24, 24.9, 25, 26, 49.9):
            await world.read(days=hours / 24)
        assert len(world.server.asked) == 4

    async def test_the_last_good_copy_counts_for_a_week_and_then_nothing_is_known(self, world, caplog):
        await world.read(days=0)
        world.server.documents["private-t0ken"] = b"<html>sign in</html>"

        assert await world.read(days=1) == 1
        assert "the calendar of HOLIDAYS: line 1: is no line of iCalendar" in caplog.text
        assert "its last good copy counts" in caplog.text
        with pytest.raises(CollectError, match="not read for 7 d, so its last good copy no longer counts"):
            await world.read(days=7.1)
        world.tell()
        assert await world.read(days=7.2) == 0

    async def test_without_a_copy_a_failed_fetch_is_no_zero_and_shows_no_address(self, world):
        world.fault("error", status=403)
        refused = await world.failure()
        world.server.documents.clear()
        gone = await world.failure()
        world.settings.pop("HOLIDAYS")
        unset = await world.failure(world.kept(CalendarCollector(world.collector._params, world.settings)))

        assert refused.startswith(
            "the calendar of HOLIDAYS: access refused; reading the counts needs an address"
        )
        assert gone == "the calendar of HOLIDAYS: does not exist"
        assert unset == "the calendar of HOLIDAYS: there is no app setting 'HOLIDAYS'"
        assert "t0ken" not in refused + gone + CalendarCollector.entity(world.collector._params)

    async def test_an_answer_that_never_ends_leaves_the_copy_in_use(self, world):
        await world.read(days=0)
        world.fault("latency", seconds=0.4)
        world.collector._deadline = 0.2

        with pytest.raises(CollectError, match=r"no answer within 0\.2 s"):
            await world.read(days=1)
        assert await world.read(days=1.01) == 1

    async def test_a_calendar_without_events_counts_and_is_warned_of(self, world, caplog):
        await world.read(days=0)
        assert "no event" not in caplog.text
        world.server.documents["private-t0ken"] = b"BEGIN:VCALENDAR\nEND:VCALENDAR\n"

        assert await world.read(days=1) == 0
        assert "the calendar of HOLIDAYS: it holds no event, so no day is one of it" in caplog.text

    async def test_an_address_to_subscribe_to_is_asked_over_tls(self, world):
        world.settings["HOLIDAYS"] = "webcal://127.0.0.1:1/published/t0ken"
        world.settings["TIDEMARK_TRUSTED_HOSTS"] = "127.0.0.1:1"
        collector = world.kept(CalendarCollector(world.collector._params, world.settings))
        told = await world.failure(collector)

        assert "TLS" not in told
        assert "t0ken" not in told
        assert collector._url == "https://127.0.0.1:1/published/t0ken"

    @pytest.mark.parametrize("address", ["http://localhost/a", "https://169.254.169.254/a", "holidays"])
    async def test_addresses_are_refused_as_elsewhere(self, world, address):
        world.settings["HOLIDAYS"] = address

        told = await world.failure(world.kept(CalendarCollector(world.collector._params, world.settings)))
        assert "app setting HOLIDAYS" in told

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"url_setting": "https://calendar.test/t0ken"}, "is no name of an app setting"),
            ({"time_zone": "Berlin"}, "IANA"),
            ({"day_begins": "6"}, "accepted are times"),
        ],
    )
    def test_wrong_options_are_told_without_the_address(self, options, said):
        found = CalendarCollector.Params(**{"url_setting": "HOLIDAYS", **options}).problems()

        assert list(found) == list(options)
        assert said in "".join(found.values())
        assert "t0ken" not in "".join(found.values())
