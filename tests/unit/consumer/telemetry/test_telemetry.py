"""The reporter: intervals, lines, rows, records, outages, rate orders; in virtual time."""

import asyncio
import json
import logging

import msgspec
import pytest

from consumer.core.statistics import Totals
from consumer.model import Checkpoint, Claim, Origin
from consumer.telemetry.interval import between, lag_text, line
from consumer.telemetry.rate_orders import (
    Limits,
    RateFollower,
    RateOrder,
    RateOrderError,
    Rates,
    Unit,
    effective,
)
from consumer.telemetry.records import IntervalRecord, line_fields
from consumer.telemetry.reporter import Reporter
from consumer.web.views import ConsumerView, InstanceView
from tests.support.consumer.telemetry import (
    IDENTITY,
    MemoryRateStore,
    MemoryStatsStore,
    following,
    partition,
    statistics,
)
from tests.support.virtual_time import all_in_virtual_time, virtual_time
from tidemark.foundation.consumer_stats import ConsumerStats, PartitionStats, from_row, to_row
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.log.tail import MARK

T0 = 1_795_000_000.0


def wall():
    return T0 + asyncio.get_running_loop().time()


class Source:
    """A pipeline as far as the reporter sees it: 100 records and 600 RU per second from 1000 s on."""

    def __init__(self):
        self.known = True
        self.changes = {}

    def __call__(self):
        if not self.known:
            return None
        done = round((asyncio.get_running_loop().time() - 1000.0) * 100)
        totals = Totals(
            received=done,
            attempts=2 * done,
            written=done,
            retried=done,
            throttled=done,
            request_units=6.0 * done,
            written_units=5.0 * done,
        )
        return statistics(partition(), totals=totals, **self.changes)


async def told(source, seconds=11, **parts):
    """A reporter at work for so many seconds."""
    reporter = Reporter(IDENTITY, source, clock=wall, **parts)
    reporter.start()
    await asyncio.sleep(seconds)
    await reporter.aclose(asyncio.get_running_loop().time() + 5)


def test_an_interval_is_the_difference_of_two_pictures():
    before = Totals(
        received=10, attempts=10, written=8, retried=2, throttled=1, request_units=50.0, written_units=40.0
    )
    after = Totals(
        received=110,
        attempts=140,
        written=98,
        retried=42,
        throttled=36,
        dead_letters=3,
        checkpoints=2,
        request_units=700.0,
        written_units=490.0,
    )

    interval = between(before, after, 5.0)

    assert (interval.received_per_s, interval.written_per_s, interval.retried_per_s) == (20.0, 18.0, 8.0)
    assert (interval.written, interval.dead_letters, interval.retried, interval.checkpoints) == (90, 3, 40, 2)
    assert interval.throttled_share == 35 / 130
    assert interval.request_units_per_record == 5.0
    assert interval.request_units_per_s == 130.0


def test_an_interval_without_work_or_time_has_no_charge_and_no_rates():
    interval = between(Totals(), Totals(), 0.0)

    assert (interval.written_per_s, interval.throttled_share, interval.request_units_per_record) == (
        0.0,
        0.0,
        None,
    )


def test_the_line_has_its_figures_in_their_order():
    totals = Totals(
        attempts=5400,
        written=5000,
        retried=400,
        throttled=270,
        dead_letters=2,
        request_units=30_000.0,
        written_units=29_000.0,
    )
    picture = statistics(partition("0"), partition("1", last=None), paused=True, oldest_age=12.0, cause="429")

    assert line(between(Totals(), totals, 5.0), picture) == (
        "5,000 successes, 2 failures, 400 retries in 5.0 s; avg 5.80 RU; backlog 60 (60.0 KiB);"
        " 1,000.0 records/s of 500; 6,000 RU/s, 5.0 % throttled; lag 160 (0: 160, 1: ?);"
        " oldest begun 12 s ago (429); receiving paused"
    )
    once = between(Totals(), Totals(attempts=2, written=1, retried=1, dead_letters=1), 5.0)
    assert line(once, statistics()).startswith("1 success, 1 failure, 1 retry in 5.0 s; ")
    limited = msgspec.structs.replace(statistics(), request_unit_limit=8000.0)
    assert "; 6,000 RU/s of 8,000, 5.0 % throttled; " in line(between(Totals(), totals, 5.0), limited)


def test_of_many_partitions_a_line_names_those_furthest_behind():
    unknown = statistics(partition("0", last=None), partition("1", last=None))
    assert lag_text(unknown) == "lag ? (0: ?, 1: ?)"

    text = lag_text(statistics(*(partition(str(n), last=1000 + n) for n in range(32))))

    assert text.startswith("lag 5,616 (24: 184, ")
    assert text.endswith("31: 191, 24 more)")


@pytest.mark.parametrize(
    ("last", "received", "low_water", "unsettled", "lag"),
    [
        (1000, 900, 800, 60, 160),  # 40 of those beyond the mark are settled
        (1000, 1000, 1000, 0, 0),
        (900, 1000, 950, 50, 50),  # the hub's newest is older than what came
        (None, 900, 800, 60, None),
        (5000, -1, -1, 0, None),  # where it begins is not known yet
        (-1, -1, -1, 0, 0),  # a partition that never had an event
    ],
)
def test_lag_counts_what_has_not_settled(last, received, low_water, unsettled, lag):
    assert partition(last=last, received=received, low_water=low_water, unsettled=unsettled).lag == lag


@pytest.mark.parametrize("problem", ["no container; it has ended", ""])
async def test_an_instance_that_failed_before_it_began_leaves_a_row_that_says_why(problem):
    stats = MemoryStatsStore()
    reporter = Reporter(IDENTITY, lambda: None, clock=wall, stats=stats)
    reporter.start()
    reporter.problem = problem
    await reporter.aclose(asyncio.get_running_loop().time() + 5)

    assert [(row.problem, row.stopping) for row in stats.history] == [(problem, True)] * bool(problem)
    assert [from_row(to_row(row)).problem for row in stats.history] == [problem] * bool(problem)


async def test_what_holds_up_parked_events_is_in_the_row_until_it_is_over():
    stats = MemoryStatsStore()
    held = [
        msgspec.structs.replace(partition(), partition=name, problem="it waits: purge 'x'") for name in "34"
    ]
    shown = [partition(), *held]
    reporter = Reporter(IDENTITY, lambda: statistics(*shown), every=5.0, clock=wall, stats=stats)
    reporter.notices["positions"] = "elsewhere"
    reporter.start()
    await asyncio.sleep(6)
    del shown[1:]
    await reporter.aclose(asyncio.get_running_loop().time() + 5)

    assert [from_row(to_row(row)).notice for row in stats.history] == [
        "partition 3: it waits: purge 'x' (and 1 more partition); elsewhere",
        "elsewhere",
    ]


async def test_claims_whose_routes_have_changed_are_in_each_row():
    def claim(partition, settled, rerouted):
        checkpoint = Checkpoint(partition, settled, "", origin=Origin(routes="b", rerouted=rerouted))
        return Claim(partition, "me", 1, checkpoint)

    stats = MemoryStatsStore()
    reporter = Reporter(IDENTITY, Source(), every=5.0, clock=wall, stats=stats)
    reporter.start()
    reporter.on_claim(Claim("0", "me", 1))
    reporter.on_claim(claim("1", 50, 41))  # before an earlier start
    await asyncio.sleep(6)
    for name, settled in (("10", 50), ("9", 41), ("0", -1)):
        reporter.on_claim(claim(name, settled, settled))
    await asyncio.sleep(5)
    for number in range(11, 15):
        reporter.on_claim(claim(str(number), 3, 3))
    await reporter.aclose(asyncio.get_running_loop().time() + 5)

    start = "the routes have changed: the new ones take what is not settled after the first position of partition 0, event 41 of"
    end = ", and nothing before it"
    assert [from_row(to_row(row)).notice for row in stats.history] == [
        "",
        f"{start} partition 9, event 50 of partition 10{end}",
        f"{start} partition 9, event 50 of partition 10, event 3 of partition 11, those of 3 other partitions{end}",
    ]


async def test_every_interval_writes_a_row_with_the_rates_of_the_interval():
    stats = MemoryStatsStore()
    await told(Source(), every=5.0, stats=stats)

    assert [(row.at, row.stopping) for row in stats.history] == [
        (T0 + 1005, False),
        (T0 + 1010, False),
        (T0 + 1011, True),
    ]
    assert stats.history[1] == ConsumerStats(
        consumer="flights",
        instance="vm-1",
        at=T0 + 1010,
        hub="flights-hub",
        consumer_group="$Default",
        rate_limit=500.0,
        received_per_s=100.0,
        written_per_s=100.0,
        retried_per_s=100.0,
        throttled_share=0.5,
        ru_per_record=5.0,
        last_ru_per_record=5.0,
        ru_per_s=600.0,
        backlog_count=60,
        backlog_bytes=61_440,
        oldest_age_s=0.5,
        written_total=1000,
        retried_total=1000,
        throttled_total=1000,
        lag=(PartitionStats("0", 1000, 900, 800, 160, 60),),
    )
    assert stats.closed


async def test_the_last_charge_stays_while_nothing_is_written():
    stats, picture = MemoryStatsStore(), statistics(totals=Totals(written=10, written_units=60.0))
    await told(lambda: picture, stats=stats)

    assert [(row.ru_per_record, row.last_ru_per_record) for row in stats.history[:2]] == [
        (6.0, 6.0),
        (None, 6.0),
    ]


async def test_an_outage_of_the_table_is_logged_once_and_stops_nothing(caplog):
    caplog.set_level(logging.INFO, "tidemark.consumer")
    stats, source = MemoryStatsStore(), Source()
    stats.failing = StoreUnavailableError("table 'ConsumerStats' cannot be reached")

    telling = asyncio.create_task(told(source, 31, every=5.0, stats=stats))
    await asyncio.sleep(16)
    stats.failing = None
    await asyncio.sleep(5)
    stats.failing = ValueError("of a kind nobody expected")
    await telling

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.partition(": ")[2] for text in warnings] == [
        "table 'ConsumerStats' cannot be reached; tried again until it works",
        "of a kind nobody expected; tried again until it works",
    ]
    assert [row.at for row in stats.history] == [T0 + 1020]
    lines = [record for record in caplog.records if "successes" in record.getMessage()]
    assert len(lines) == 7


async def test_the_line_of_an_interval_ends_with_the_fields_of_the_api_and_of_the_records(caplog):
    caplog.set_level(logging.INFO, "tidemark.consumer")

    await told(Source(), seconds=6)

    first, last = [json.loads(text[text.rindex(MARK) :]) for text in caplog.messages]
    known = {
        *InstanceView.__struct_fields__,
        *IntervalRecord.__struct_fields__,
        *ConsumerView.__struct_fields__,
    }
    assert set(first) - known == {"tidemark", "kind", "expired", "partition_count"}
    assert {name: first[name] for name in ("kind", "consumer", "instance", "at", "seconds")} == {
        "kind": "consumer",
        "consumer": "flights",
        "instance": "vm-1",
        "at": T0 + 1005,
        "seconds": 5.0,
    }
    assert [first[name] for name in ("written", "throttled", "throttled_share", "ru_per_s")] == [
        *(500, 500, 0.5, 600.0)
    ]
    assert (first["lag"], first["dead_letters_total"], first["rate_limit"]) == (160, 0, 500.0)
    assert (first["stopping"], last["stopping"]) == (False, True)


async def test_a_lag_that_is_not_known_of_every_partition_is_not_told(caplog):
    caplog.set_level(logging.INFO, "tidemark.consumer")

    fields = line_fields(
        IDENTITY,
        between(Totals(), Totals(), 5.0),
        statistics(partition("0"), partition("1", last=None)),
        at=T0,
        stopping=False,
    )

    assert (fields["lag"], fields["partition_count"]) == (None, 2)


async def test_a_table_that_hangs_delays_neither_the_lines_nor_the_end(caplog):
    caplog.set_level(logging.INFO, "tidemark.consumer")
    stats, source = MemoryStatsStore(), Source()

    asked = []

    async def hang(row):
        asked.append(row.stopping)
        await asyncio.Event().wait()

    stats.put = hang

    reporter = Reporter(IDENTITY, source, every=5.0, stats=stats, clock=wall)
    reporter.start()
    await asyncio.sleep(26)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await reporter.aclose(begun + 3)

    assert loop.time() - begun == 3.0
    assert asked == [False, True]  # one call at a time
    assert len([record for record in caplog.records if "successes" in record.getMessage()]) == 6
    assert stats.closed


async def test_nothing_is_told_before_there_are_statistics():
    stats, rates, source = MemoryStatsStore(), MemoryRateStore(), Source()
    rates.failing = AssertionError("asked too early")
    source.known = False

    follower = following(rates)
    await told(source, stats=stats, rates=follower)

    assert stats.history == []
    assert rates.closed


class Landed:
    """Records as they are added."""

    def __init__(self):
        self.records = []

    def start(self):
        pass

    def add(self, record):
        self.records.append(record)

    async def aclose(self, deadline):
        pass


def test_a_checkpoint_below_the_first_event_names_no_number(caplog):
    caplog.set_level(logging.INFO, "tidemark.consumer")

    Reporter(IDENTITY, Source()).on_checkpoint(Checkpoint("0", -1, "", epoch=1), 6)

    assert caplog.messages == ["partition 0: checkpointed before the first event, leaving 6"]


def test_a_checkpoint_is_a_line_and_a_record(caplog):
    caplog.set_level(logging.INFO, "tidemark.consumer")
    landed = Landed()
    reporter = Reporter(IDENTITY, Source(), landing=landed, clock=lambda: T0)

    reporter.on_checkpoint(Checkpoint("3", 812, "4294967296", epoch=2), 17)

    assert caplog.messages == [
        "partition 3: checkpointed at sequence number 812 (offset 4294967296), leaving 17"
    ]
    assert json.loads(msgspec.json.encode(landed.records[0])) == {
        "kind": "checkpoint",
        "at": T0,
        "consumer": "flights",
        "instance": "vm-1",
        "hub": "flights-hub",
        "consumer_group": "$Default",
        "partition": "3",
        "sequence_number": 812,
        "offset": "4294967296",
        "epoch": 2,
        "left": 17,
    }


@pytest.mark.parametrize(
    ("order", "configured", "expected"),
    [
        (None, Rates(500.0), Rates(500.0)),
        (RateOrder(), Rates(None, 1000.0), Rates(None, 1000.0)),
        (RateOrder(rate=50.0), Rates(500.0), Rates(50.0)),
        (RateOrder(rate=50.0), Rates(None, 1000.0), Rates(50.0)),
        (RateOrder(fleet_rate=80.0), Rates(500.0), Rates(None, 80.0)),
        (RateOrder(rate=0.0), Rates(500.0), Rates()),
        (RateOrder(fleet_rate=0.0), Rates(500.0, 1000.0), Rates()),
    ],
)
def test_an_order_replaces_what_is_configured(order, configured, expected):
    assert effective(order, configured) == expected


async def test_a_follower_calls_only_when_something_changes_and_keeps_the_rate_through_an_outage():
    store, calls = MemoryRateStore(), []
    follower = following(store, Rates(500.0), Rates(4000.0), calls=calls)
    await follower.poll()
    store.orders["flights"] = RateOrder(rate=50.0, by="ann")
    await follower.poll()
    await follower.poll()
    assert calls == [("rate", "fleet", None), ("rate", "own", 50.0)]
    store.failing = RateOrderError("cannot be read")
    with pytest.raises(RateOrderError):
        await follower.poll()
    assert follower.rates == {Unit.RECORDS: Rates(50.0), Unit.REQUEST_UNITS: Rates(4000.0)}

    store.failing = None
    store.orders["flights"] = RateOrder(fleet_rate=1000.0)
    await follower.poll()
    store.orders["flights"] = RateOrder(by="ann")
    store.unit_orders["flights"] = RateOrder(fleet_rate=9000.0)  # each unit has its own order
    await follower.poll()
    store.unit_orders["flights"] = RateOrder(rate=0.0)
    await follower.poll()

    assert calls[2:] == [
        ("rate", "fleet", 1000.0),
        ("rate", "fleet", None),
        ("rate", "own", 500.0),
        ("request_units", "fleet", 9000.0),
        ("request_units", "fleet", None),
        ("request_units", "own", None),
    ]


def test_an_order_reaches_a_running_instance_within_an_interval_and_again_after_a_restart():
    store, calls = MemoryRateStore(), []

    async def instance(order):
        now = asyncio.get_running_loop().time
        limits = Limits(lambda rate: calls.append((now(), rate)), lambda _: None)
        follower = RateFollower(store, "flights", {Unit.RECORDS: Rates()}, {Unit.RECORDS: limits})
        telling = asyncio.create_task(told(Source(), 14, every=5.0, rates=follower))
        await asyncio.sleep(7)
        if order:
            store.orders["flights"] = order
        await telling

    for order in (RateOrder(rate=50.0), None):
        with virtual_time() as run:
            run(instance(order))

    assert calls == [(1010.0, 50.0), (1005.0, 50.0)]


all_in_virtual_time(globals())
