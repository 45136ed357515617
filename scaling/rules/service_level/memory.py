"""What the rule `service_level` remembers between reports: one bounded, versioned value per target. Pure.

The memory travels as bytes in the target's row (`TargetState.memories`), under the same ETag as the rest of the row.
`decode` treats bytes that it cannot read, or of another version, as no memory: the rule then learns from the beginning
and says so.

A memory is at most `MAX_BYTES` long. Constants below bound the lists that grow; all other fields have a fixed length.
Structs are stored as arrays, so the order of their fields is part of the format: append, and give a default.
"""

from __future__ import annotations

from copy import copy
from math import isfinite
from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

VERSION = 1

MAX_BYTES = 16_384
"""The most bytes of a memory. A usual one has 4 to 6 KB. A row of Table Storage holds 1 MiB, and a target has at most four such rules."""

MAX_FORECASTS = 16
"""Forecasts that wait for their time to end. Chosen: one is scored in every sixteenth of the start-up time, so the
weights follow within one start-up, and the list stays below 2 KB.
"""

MAX_MARKS = 24
"""Points kept of the counter of arrivals: sixteen within the allowed wait (`queue.MARKS_PER_WAIT`), the others for reports that come late."""

MAX_STARTS = 16
"""Groups of starting instances. Chosen: one a minute over a quarter of an hour; beyond, the two oldest groups become one."""

MAX_NEEDS = 24
"""Entries of the falling list of needs. Chosen: the list of ten minutes at a report every 15 s has at most 40 entries,
and more than 24 different needs in a row were not seen in the recorded loads. Beyond, entries in the middle go.
"""

MAX_POINTS = 48
"""Points kept of the backlog's history, the older the further apart. Chosen: a dozen minutes of samples every 15 s, and hours behind them."""

SCALES = (30.0, 120.0, 600.0, 3600.0)
"""Seconds over which arrival rates are averaged, beside the rate of the last interval. Measured on 26 recorded loads
(21 November 2026): a blend of these four forecasts better than any one of them; the same time of the day before adds
nothing.
"""

LEVEL_ENDS = (0.5, 1.0, 2.0)
"""Times the usual rate at which a level of the load ends; each has an error variance. Measured on eight recorded loads (28 November
2026): 1.34 times the least cost at 1.21 % late, with one variance 1.36 at 1.27 %. Six levels are no better."""
LEVELS = len(LEVEL_ENDS) + 1

CANDIDATES = 8
"""Candidates that the rule simulates: one for each factor of `candidates.TRADES`."""

FEATURES = 1 + len(SCALES)
MINUTES, HOURS, HOURS_OF_WEEK = 60, 24, 168

Spend = Literal["keep", "balanced", "least"]
"""How idle capacity is traded for late messages: see `candidates.TRADES`."""

Starts = list[tuple[float, int]]
"""(asked at, count) of instances that do not serve yet, oldest first."""

Needs = list[tuple[float, int]]
"""(until, instances) of past needs, falling: those that are the highest of some time range that ends now."""

Rates = Annotated[list[float], Meta(min_length=FEATURES, max_length=FEATURES)]
"""The rate of the last interval, and the averages over `SCALES`, in messages per second."""

Matrix = Annotated[list[Rates], Meta(min_length=FEATURES, max_length=FEATURES)]
ByLevel = Annotated[list[float], Meta(min_length=LEVELS, max_length=LEVELS)]
CountByLevel = Annotated[list[int], Meta(min_length=LEVELS, max_length=LEVELS)]
ByMinute = Annotated[list[float], Meta(min_length=MINUTES, max_length=MINUTES)]
ByHour = Annotated[list[float], Meta(min_length=HOURS, max_length=HOURS)]
CountByHour = Annotated[list[int], Meta(min_length=HOURS, max_length=HOURS)]
ByHourOfWeek = Annotated[list[float], Meta(min_length=HOURS_OF_WEEK, max_length=HOURS_OF_WEEK)]
CountByHourOfWeek = Annotated[list[int], Meta(min_length=HOURS_OF_WEEK, max_length=HOURS_OF_WEEK)]


class Forecast(Struct, array_like=True, kw_only=True):
    """A forecast made at `at` for the time until `until`: `rate` messages per second, from the `rates` of that time.

    `arrived` is the counter of arrivals at `at`. The error is divided by `usual` and `rate` for the margin, and by
    `scale` for the weights.
    """

    at: float
    until: float
    arrived: float
    rate: float
    usual: float
    scale: float
    rates: Rates


class Candidate(Struct, array_like=True, kw_only=True):
    """A simulated target that has one safety factor: its instances, what waits, its cost and its late messages.

    `active` are the messages that wait or are processed. `cost` (instance-seconds) and `late` (messages) are discounted by the
    half-life of the score. `last_need` is what it needed at the newest report; `needs` holds those before.
    """

    total: int = 0
    waiting: float = 0.0
    cost: float = 0.0
    late: float = 0.0
    starting: Starts = field(default_factory=list)
    needs: Needs = field(default_factory=list)
    last_need: int = 0
    active: float = 0.0


class MinuteShape(Struct, array_like=True, kw_only=True):
    """For each minute of the hour, how far arrivals are above (or below) the mean of their hour, as a share.

    `messages` are those of the hour number `index` (hours since the epoch). `agreement` and `power` are the two sums of
    the regression that says how far the shape can be trusted: see `seasonality.shape_trust`.
    """

    shape: ByMinute = field(default_factory=lambda: [0.0] * MINUTES)
    messages: ByMinute = field(default_factory=lambda: [0.0] * MINUTES)
    index: int = -1
    hours: int = 0
    agreement: float = 0.0
    power: float = 0.0


class UsualRates(Struct, array_like=True, kw_only=True):
    """Mean rates by hour of the day and by hour of the week (Monday 00:00 UTC first), in messages per second.

    `*_count` says how often each hour was seen. `sum` and `count` are of the hour number `index` (hours since the epoch).
    """

    day: ByHour = field(default_factory=lambda: [0.0] * HOURS)
    day_count: CountByHour = field(default_factory=lambda: [0] * HOURS)
    week: ByHourOfWeek = field(default_factory=lambda: [0.0] * HOURS_OF_WEEK)
    week_count: CountByHourOfWeek = field(default_factory=lambda: [0] * HOURS_OF_WEEK)
    sum: float = 0.0
    count: int = 0
    index: int = -1


class LearnedInstance(Struct, array_like=True, kw_only=True):
    """What was learned of one instance.

    `service_rate` is in messages per second of a busy instance. `start_up` are the seconds until the platform calls it
    ready, `warm_up` those from then until it serves. `concurrency` are the messages it processes at once, `service_time`
    the seconds of one message. `*_count` counts the measurements behind a number (0: it is assumed), `*_at` is the time
    of the newest one.

    `last_service_time` is what the last interval alone says. `busy_growth` is how fast the backlog grew (messages per
    second) in the last interval in which all `busy_instances` were busy.
    """

    service_rate: float = 0.0
    service_rate_count: int = 0
    service_rate_at: float = 0.0
    start_up: float = 0.0
    start_up_count: int = 0
    start_up_at: float = 0.0
    warm_up: float = 0.0
    warm_up_count: int = 0
    concurrency: float = 0.0
    concurrency_count: int = 0
    service_time: float = 0.0
    last_service_time: float = 0.0
    busy_growth: float = 0.0
    busy_instances: float = 0.0


class LearnedTime(Struct, array_like=True, kw_only=True):
    """What is known of the time that a message takes: see `service_time`.

    `used` are the seconds that the rule reckons with, 0 before the first report; by which `sense`, `since` when, and whether they are
    `identified` or bounded. `points` are (at, backlog, message-seconds of processing until then), oldest first; `worked` is the newest of the
    latter, `processing` how many messages are processed now, `processing_before` at the report before. `busy` are the messages being
    processed, averaged like `Memory.rates`, and `usually_busy` like `Memory.usual_rate`.

    `count_*`, `new_*` and `age_*` are sums of message-seconds and of completed messages: by counts, by the newest `new_seconds` of counts, all
    of which say another time (below 0: a shorter one), and by ages. `counted_until` is the time of the newest count. `idle_age` is the age
    reported while nothing can wait, and says whether `age_includes_processing`. `oldest_came` is when the oldest message came. `least_held` and
    `most_held` are bounds on the concurrency (0: none). `drain_rate` is how fast the backlog falls while all `drain_slots` are taken,
    `drain_end` when nothing waits any more, `drained` the time of a message by `drains` such falls, and `drains_fast` says whether all come to
    rest within a sample; `drain_weight` is what they count for. `bound` is the most that falls of the backlog allow (0: none). `unsure` are the
    newest intervals in which instances began to serve while messages waited.
    """

    used: float = 0.0
    sense: str = ""
    identified: bool = False
    since: float = 0.0
    points: list[tuple[float, float, float]] = field(default_factory=list)
    worked: float = 0.0
    processing: float = 0.0
    processing_before: float = 0.0
    busy: Rates = field(default_factory=lambda: [0.0] * FEATURES)
    usually_busy: float = 0.0
    counted_until: float = 0.0
    count_worked: float = 0.0
    count_completed: float = 0.0
    new_worked: float = 0.0
    new_completed: float = 0.0
    age_worked: float = 0.0
    age_completed: float = 0.0
    idle_age: float = 0.0
    age_includes_processing: bool = False
    oldest_came: float = 0.0
    least_held: float = 0.0
    most_held: float = 0.0
    drain_rate: float = 0.0
    drain_slots: float = 0.0
    drain_end: float = 0.0
    drained: float = 0.0
    drains: int = 0
    drains_fast: bool = False
    bound: float = 0.0
    drain_weight: float = 0.0
    unsure: list[tuple[float, float]] = field(default_factory=list)
    new_seconds: float = 0.0


class Memory(Struct, array_like=True, kw_only=True):
    """All of it. Times are seconds since the epoch, rates messages per second, counters messages since `since`.

    `since` moves on by each gap, `resumed_at` is the end of the newest gap. `flow_counted` is true where arrivals or
    completed messages are counted. `serving` of the `current` instances serve; `starting` are not ready, `warming` are
    ready and do not serve yet, `recently_started` may or may not serve. `last_need` is what the newest report needs,
    `needs` what those before it needed. `chosen` is the index of the best candidate. `restart_reason` says for a day why
    everything is learned anew. `oldest_age` are the seconds for which the oldest message waits; below 0: not known.
    `owed` are messages, below 0, by which inferred arrivals were too many.

    `spend` is the trade that the candidates are of. `late_at_most` are the late messages of the most careful one while it had the
    maximum, discounted like its own. `unkept` is why no candidate keeps the objective, said last at `unkept_at`.
    `level_variances` are `error_variance` by level of the load, of `level_counts` errors each. `late_seen` are late messages, and
    `late_foreseen` those of the candidate that was followed at the time, both discounted like the candidates' own.
    """

    version: int = VERSION
    since: float = 0.0
    resumed_at: float = 0.0
    at: float = 0.0
    interval: float = 15.0
    flow_counted: bool = False
    observations: int = 0
    unchanged_reports: int = 0
    backlog: float = 0.0
    waiting: float = 0.0
    current: int = 0
    serving: float = 0.0
    arrived: float = 0.0
    rates: Rates = field(default_factory=lambda: [0.0] * FEATURES)
    usual_rate: float = 0.0
    weights: Rates = field(default_factory=lambda: [0.0] * FEATURES)
    covariance: Matrix = field(default_factory=lambda: [[0.0] * FEATURES for _ in range(FEATURES)])
    error_variance: float = 0.0
    expected_rate: float = 0.0
    usual_now: float = 0.0
    chosen: int = 0
    forecasts: list[Forecast] = field(default_factory=list)
    marks: list[tuple[float, float]] = field(default_factory=list)
    starting: Starts = field(default_factory=list)
    warming: Starts = field(default_factory=list)
    recently_started: Starts = field(default_factory=list)
    needs: Needs = field(default_factory=list)
    last_need: int = 0
    candidates: Annotated[list[Candidate], Meta(min_length=CANDIDATES, max_length=CANDIDATES)] = field(
        default_factory=list
    )
    scored_arrivals: float = 0.0
    late: float = 0.0  # of no use any more: it keeps the places of the fields below
    day: int = 0
    day_begun: float = 0.0
    day_late: float = 0.0
    overdue: float = 0.0
    minute_shape: MinuteShape = field(default_factory=MinuteShape)
    usual_rates: UsualRates = field(default_factory=UsualRates)
    learned: LearnedInstance = field(default_factory=LearnedInstance)
    restart_reason: str = ""
    oldest_age: float = -1.0
    owed: float = 0.0
    time: LearnedTime = field(default_factory=LearnedTime)
    spend: Spend = "balanced"
    late_at_most: float = 0.0
    unkept: str = ""
    unkept_at: float = 0.0
    level_variances: ByLevel = field(default_factory=lambda: [0.0] * LEVELS)
    level_counts: CountByLevel = field(default_factory=lambda: [0] * LEVELS)
    late_seen: float = 0.0
    late_foreseen: float = 0.0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Memory)

KEPT_DECODED = 32
"""Memories kept decoded. Chosen: a decision and what would have changed it read the same bytes up to some hundred times; 32 memories
of 25 KB take 1 MB, and stay in the cache of a processor.
"""

_decoded: dict[bytes, Memory] = {}


def encode(memory: Memory) -> bytes:
    """The bytes of a memory, which nobody may change from now on: `decode` returns this very memory for them, if it is sound."""
    data = _encoder.encode(memory)
    if _is_sound(memory):
        _keep(data, memory)
    return data


def decode(data: bytes | None) -> Memory | None:
    """The memory in the bytes, which nobody may change: the same one as long as it is kept decoded, because to decode it takes
    longer than to decide (25 against 10 microseconds, November 2026). `changeable_copy` makes one that may be changed.

    None for no bytes, another version, lengths that are not this version's, or a number that is not finite.
    """
    if not data or len(data) > MAX_BYTES:
        return None
    memory = _decoded.get(data)
    if memory is not None:
        return memory
    try:
        memory = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not _is_sound(memory):
        return None
    _keep(data, memory)
    return memory


def _keep(data: bytes, memory: Memory) -> None:
    _decoded[data] = memory
    for oldest in [*_decoded][:-KEPT_DECODED]:  # a list at once, for threads of shadows decode, too
        _decoded.pop(oldest, None)


def changeable_copy(memory: Memory) -> Memory:
    """A memory that has its own of everything that learning changes in place; rates, weights and forecasts it replaces."""
    shape, usual = memory.minute_shape, memory.usual_rates
    return replace(
        memory,
        forecasts=[*memory.forecasts],
        level_variances=[*memory.level_variances],
        level_counts=[*memory.level_counts],
        marks=[*memory.marks],
        needs=[*memory.needs],
        candidates=[replace(candidate, needs=[*candidate.needs]) for candidate in memory.candidates],
        minute_shape=replace(shape, messages=[*shape.messages]),
        usual_rates=copy(usual),
        learned=copy(memory.learned),
        time=replace(memory.time, points=[*memory.time.points]),
    )


def _is_sound(memory: Memory) -> bool:
    """A few sums are finite only where every number in them is."""
    in_range = memory.version == VERSION and bool(memory.marks) and 0 <= memory.chosen < CANDIDATES
    return in_range and isfinite(_sum_of_numbers(memory)) and memory.interval > 0.0


def _sum_of_numbers(memory: Memory) -> float:
    hour, usual, time = memory.minute_shape, memory.usual_rates, memory.time
    total: float = (
        sum(memory.rates)
        + sum(memory.weights)
        + sum(map(sum, memory.covariance))
        + sum(hour.shape)
        + sum(hour.messages)
        + sum(usual.day)
        + sum(usual.week)
        + sum(each.waiting + each.active + each.cost + each.late for each in memory.candidates)
        + sum(map(sum, time.points))
        + sum(map(sum, time.unsure))
        + sum(time.busy)
        + sum(memory.level_variances)
        + sum(_NUMBERS(memory))
        + sum(_NUMBERS_OF_TIME(time))
    )
    return total


_NUMBERS = attrgetter(
    *("arrived", "at", "since", "interval", "backlog", "oldest_age", "owed", "late_at_most", "unkept_at"),
    *("late_seen", "late_foreseen"),
    *("waiting", "error_variance", "expected_rate", "usual_rate", "scored_arrivals", "learned.service_rate"),
    *("learned.concurrency", "learned.service_time", "learned.start_up", "learned.warm_up"),
    *("minute_shape.agreement", "minute_shape.power"),
)
_NUMBERS_OF_TIME = attrgetter(
    *("usually_busy", "used", "worked", "processing", "count_worked", "count_completed", "new_worked"),
    *("new_completed", "age_worked", "age_completed", "idle_age", "least_held", "most_held", "oldest_came"),
    *("new_seconds", "drain_rate", "drain_slots", "drain_end", "drained", "bound", "drain_weight"),
)
