"""Statistics, stores in memory, and a pipeline that only counts: what tests of the telemetry need."""

from consumer.core.statistics import PartitionStatistics, PipelineStatistics, Totals
from consumer.telemetry.rate_orders import Limits, RateFollower, RateOrder, Rates, Unit
from consumer.telemetry.records import Identity
from tidemark.foundation.consumer_stats import from_row, to_row

IDENTITY = Identity("flights", "vm-1", "flights-hub", "$Default")


def partition(name="0", *, last=1000, received=900, low_water=800, unsettled=60):
    return PartitionStatistics(name, 1, last, received, low_water, unsettled, draining=False)


def statistics(*partitions, totals=None, **changes):
    fields = {
        "backlog_count": 60,
        "backlog_bytes": 61_440,
        "oldest_age": 0.5,
        "in_flight_batches": 2,
        "rate_limit": 500.0,
        "paused": False,
        "cause": "",
        "concurrency": {"all": 2},
    }
    return PipelineStatistics(totals=totals or Totals(), partitions=partitions, **{**fields, **changes})


class MemoryStatsStore:
    """Rows by consumer and instance, as the table keeps them. `failing` is raised by every call."""

    def __init__(self):
        self.rows = {}
        self.history = []
        self.failing = None
        self.closed = False

    async def put(self, stats):
        self._answer()
        self.rows[stats.consumer, stats.instance] = to_row(stats)
        self.history.append(stats)

    async def load_all(self, since):
        self._answer()
        return [stats for stats in map(from_row, self.rows.values()) if stats.at >= since]

    async def prune(self, consumer, before):
        self._answer()
        self.rows = {
            key: row for key, row in self.rows.items() if key[0] != consumer or from_row(row).at >= before
        }

    async def aclose(self):
        self.closed = True

    def _answer(self):
        if self.failing is not None:
            raise self.failing


class MemoryRateStore:
    """Orders by consumer and unit. `failing` is raised by every call."""

    def __init__(self):
        self.orders: dict[str, RateOrder] = {}
        self.unit_orders: dict[str, RateOrder] = {}
        self.failing = None
        self.closed = False

    async def load(self, consumer, unit=Unit.RECORDS):
        self._answer()
        return self._of(unit).get(consumer)

    async def load_all(self, unit=Unit.RECORDS):
        self._answer()
        return dict(self._of(unit))

    async def parts(self, consumer):
        return []

    async def save(self, consumer, order, unit=Unit.RECORDS):
        self._answer()
        self._of(unit)[consumer] = order

    def _of(self, unit):
        return self.orders if unit is Unit.RECORDS else self.unit_orders

    async def aclose(self):
        self.closed = True

    def _answer(self):
        if self.failing is not None:
            raise self.failing


def following(store, configured=Rates(), units=Rates(), *, calls=None):
    """A follower of `flights`; each change of a limit is added to `calls` as (unit, "own" or "fleet", rate)."""
    calls = [] if calls is None else calls

    def limits(unit):
        return Limits(
            lambda rate: calls.append((str(unit), "own", rate)),
            lambda rate: calls.append((str(unit), "fleet", rate)),
        )

    both = {Unit.RECORDS: configured, Unit.REQUEST_UNITS: units}
    return RateFollower(store, "flights", both, {unit: limits(unit) for unit in Unit})
