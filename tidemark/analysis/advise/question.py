"""From one target's readings, its policy and options to what is replayed; every assumption becomes a note. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, isnan
from statistics import median
from typing import Any

from msgspec import Struct, structs

from scaling.config.policy import PolicySpec, QueueSpec
from scaling.rules.service_level.instances import FIRST_CONCURRENCY, FIRST_START_UP
from tidemark.analysis.backtest.candidates.grid import metric_of
from tidemark.analysis.backtest.candidates.variation import GridError
from tidemark.analysis.backtest.replay.history import (
    History,
    HistoryError,
    Reading,
    estimate_service_rate,
    from_active,
    from_arrivals,
)
from tidemark.analysis.simulation.answer import Recorded, late_at_maximum
from tidemark.analysis.simulation.driving import BACKLOG, INCOMING, OUTGOING
from tidemark.analysis.simulation.field import Target, objective_of, reads_of
from tidemark.foundation.durations import seconds_text
from tidemark.foundation.wording import count_text, duration_text, number_text, percent_text, time_text

HOUR, DAY = 3600.0, 86_400.0
LONGEST = 30 * DAY  # of a message. Chosen

MINUTE = 60.0
"""Seconds between two evaluations where nothing is configured: the default of COLLECT_SCHEDULE."""

MOST = 100
"""Most instances where nothing is configured."""

OFF = 0.01
"""Share by which a service rate may be off the one that follows from the concurrency and the time of a message: rounding."""

ASK = (
    "give --service-rate (messages per second of one busy instance), or --takes and --concurrency (how long a message takes, and "
    "how many an instance processes at once)"
)


class Options(Struct, frozen=True, kw_only=True):
    """What the command line says; None and empty are not said. Durations in seconds, `late` a share, `service_rate` messages
    per second of a busy instance, `takes` the time of a message, `price` of an instance-hour.
    """

    service_rate: float | None = None
    concurrency: float | None = None
    takes: float | None = None
    start_up: float | None = None
    wait: float | None = None
    late: float | None = None
    minimum: int | None = None
    maximum: int | None = None
    metric: str | None = None
    price: float | None = None
    currency: str = ""


class Question(Struct, frozen=True):
    """A target ready to replay. `hours` are those of which the load is known, of `whole`; `notes` say what the answer rests
    on. `saturated` says that the maximum is too low for the objective, and what is late at best; empty where it is not.
    """

    target: Target
    recorded: Recorded
    hours: float
    whole: float
    notes: tuple[str, ...]
    saturated: str = ""


def prepare(name: str, readings: Sequence[Reading], options: Options, spec: PolicySpec | None) -> Question:
    """Raises HistoryError, naming the option that would help."""
    queue = queue_of(spec, options)
    reads = {"backlog": BACKLOG} if spec is None else reads_of(spec, queue)
    interval = _interval(name, spec, queue)
    objective = None if spec is None else objective_of(spec)
    options = _completed(name, options, objective)
    known = _Known(options, objective)
    concurrency = known.value("concurrency", FIRST_CONCURRENCY)
    history, rate, how = _load(name, readings, options, objective, reads, interval, concurrency)
    concurrency = known.time_of_messages(concurrency, rate)
    if history.step < 1 or history.step != int(history.step):
        raise HistoryError(f"{name}: bins of {history.step:g} s; accepted are whole seconds")
    low, high = _bounds(name, options, spec)
    policy, left_out = _today(spec, reads, low, high)
    target = Target(
        name=name,
        service_rate=rate,
        concurrency=concurrency,
        start_up=known.value("start_up", FIRST_START_UP),
        wait=known.value("wait", 60.0),
        late=known.value("late", 0.01),
        minimum=low,
        maximum=high,
        interval=interval,
        reads=reads,
        policy=policy,
        given=known.given,
    )
    notes = (
        *_coverage(history, target.wait),
        f"one busy instance serves {rate:.4g} messages/s: {how}",
        *known.notes,
        *left_out,
        *history.notes,
        *_ran(readings, history),
    )
    first, hour = _first(history, rate, low, high), history.step / HOUR
    recorded = Recorded(history.start, int(history.step), history.arrivals, first)
    known_bins = sum(not isnan(count) for count in recorded.bins)
    whole = len(recorded.bins) * hour
    return Question(target, recorded, known_bins * hour, whole, notes, _saturation(history, target, recorded))


def _completed(name: str, options: Options, objective: QueueSpec | None) -> Options:
    """Any two of service rate, concurrency and time of a message say the third. Raises HistoryError where they differ."""
    takes, rate, concurrency = options.takes, options.service_rate, options.concurrency
    if takes is None:
        return options
    if rate is not None and concurrency is not None and abs(rate * takes / concurrency - 1.0) > OFF:
        raise HistoryError(
            f"{name}: an instance that processes {concurrency:g} messages at once, {takes:g} s each, serves "
            f"{concurrency / takes:.4g} a second, and --service-rate is {rate:g}: leave one of --takes, --concurrency and "
            "--service-rate away"
        )
    if rate is not None:
        return structs.replace(options, concurrency=rate * takes)
    if concurrency is None and objective is not None:
        concurrency = objective.concurrency
    return options if concurrency is None else structs.replace(options, service_rate=concurrency / takes)


def _interval(name: str, spec: PolicySpec | None, queue: str) -> float:
    """Seconds between two evaluations of the target."""
    interval = MINUTE if spec is None else spec.metrics[queue].window.interval
    if interval < 1 or interval != int(interval):
        raise HistoryError(
            f"{name}: evaluated every {interval:g} s; a replay goes by whole seconds: see COLLECT_SCHEDULE"
        )
    return interval


def _bounds(name: str, options: Options, spec: PolicySpec | None) -> tuple[int, int]:
    """Fewest and most instances; never fewer than one."""
    low, high = (1, MOST) if spec is None else (spec.minimum, spec.maximum)
    low = max(low if options.minimum is None else options.minimum, 1)
    high = high if options.maximum is None else options.maximum
    if low > high:
        raise HistoryError(
            f"{name}: minimum {low}, maximum {high}; accepted is a maximum that is no less: see --minimum and --maximum"
        )
    return low, high


def queue_of(spec: PolicySpec | None, options: Options) -> str:
    """The metric that is the queue: the one asked for, that of the rule `service_level`, the only one, or `backlog`."""
    if spec is None:
        return "backlog"
    known = objective_of(spec)
    if options.metric is None and known is not None:
        return known.backlog
    try:
        return metric_of(spec, options.metric)
    except GridError as error:
        raise HistoryError(str(error).replace("set `metric` to", "give --metric")) from error


def _today(
    spec: PolicySpec | None, reads: Mapping[str, str], low: int, high: int
) -> tuple[PolicySpec | None, list[str]]:
    """The policy to replay, and why it is not there."""
    if spec is None:
        return None, ["no policy of today: the target is not in tidemark.toml"]
    others = sorted(set(spec.metrics) - set(reads))
    if others:
        left = f"it reads {', '.join(others)}, and what a history contains is the queue"
        return None, [f"today's policy is left out: {left}. `tidemark backtest` replays recorded metrics"]
    notes = ["today's policy is in dry-run; it is replayed as if it were not"] if spec.dry_run else []
    return structs.replace(spec, dry_run=False, shadow=None, minimum=low, maximum=high), notes


# -- the load, and what an instance serves --------------------------------------------------------------


def _load(
    name: str,
    readings: Sequence[Reading],
    options: Options,
    objective: QueueSpec | None,
    reads: Mapping[str, str],
    interval: float,
    concurrency: float,
) -> tuple[History, float, str]:
    """The history, messages per second of an instance, and how that is known."""
    metrics = {kind: metric for metric, kind in reads.items()}
    seen = [reading for reading in readings if reading.backlog is not None]
    step = _step(seen, interval)
    counts = _counts(readings, metrics, step)
    given, how = options.service_rate, "given"
    if given is None and objective is not None:
        given, how = objective.service_rate, "as the policy says"
    if not counts:
        if given is None:
            raise HistoryError(
                f"{name}: the history has no arrivals, and how many follow from its backlogs depends on what an instance "
                f"serves: {ASK}"
            )
        return from_active(name, seen, step=step, service_rate=given, concurrency=concurrency), given, how
    history = from_arrivals(name, counts)
    ran = {reading.at: reading.instances for reading in readings if reading.instances is not None}
    history = structs.replace(history, instances=ran.get(history.start))
    if given is not None:
        return history, given, how
    try:
        estimate = estimate_service_rate(name, history, seen)
    except HistoryError as error:
        raise HistoryError(
            f"{name}: what an instance serves cannot be known from this history: {_why(seen, error)}: {ASK}"
        ) from error
    times = count_text(estimate.bins, "bin")
    how = (
        f"estimated from the {times} of {duration_text(history.step)} in which more waited at both ends than was served, as "
        f"the median of what each instance served then (half of them: {estimate.low:.4g} to {estimate.high:.4g})"
    )
    return history, estimate.rate, how


def _why(seen: Sequence[Reading], error: HistoryError) -> str:
    if not any(reading.instances for reading in seen):
        return "it has no backlog with the instances of that time"
    return str(error).partition("estimated: ")[2].partition(". Give")[0] or str(error)


def _counts(
    readings: Sequence[Reading], metrics: Mapping[str, str], interval: float
) -> list[tuple[float, float]]:
    """Arrivals by bins: as recorded, or from metrics of the scaling log that count them."""
    counts = [(reading.at, reading.arrivals) for reading in readings if reading.arrivals is not None]
    if counts:
        return counts
    came, done = metrics.get(INCOMING), metrics.get(OUTGOING)
    if came is not None:
        return _bins([(r.at, r.metrics[came]) for r in readings if came in r.metrics], interval)
    if done is None:
        return []
    known = sorted((r for r in readings if r.backlog is not None and done in r.metrics), key=lambda r: r.at)
    grown = (
        (later.at, max(later.metrics[done] + (later.backlog or 0.0) - (earlier.backlog or 0.0), 0.0))
        for earlier, later in pairwise(known)
        if later.at - earlier.at < 1.5 * interval
    )
    return _bins(list(grown), interval)


def _bins(counted: Sequence[tuple[float, float]], interval: float) -> list[tuple[float, float]]:
    """What a sample counted is in the bin that ends with it. Samples are a little off their time."""
    first = min((at for at, _ in counted), default=0.0)
    return [(first + (round((at - first) / interval) - 1) * interval, value) for at, value in counted]


def _step(seen: Sequence[Reading], interval: float) -> float:
    """Seconds between two readings, where there are any."""
    apart = [later.at - earlier.at for earlier, later in pairwise(sorted(seen, key=lambda r: r.at))]
    return max(float(round(median(apart))), 1.0) if apart else interval


def _first(history: History, rate: float, low: int, high: int) -> int:
    """Instances to begin with: those recorded, or what the first known hour needs on average."""
    if history.instances is not None:
        return min(max(history.instances, low), high)
    known = [count for count in history.arrivals if not isnan(count)][: max(int(HOUR / history.step), 1)]
    return min(max(ceil(sum(known) / (len(known) * history.step) / rate), low), high)


# -- notes ----------------------------------------------------------------------------------------------


class _Known:
    """Numbers from options, else from the policy, else assumed; with a note of those that are assumed. `given` are those
    that `service_level` need not learn.
    """

    def __init__(self, options: Options, objective: QueueSpec | None) -> None:
        self._options, self._objective = options, objective
        self.notes: list[str] = []
        self.given: dict[str, float | str] = {}

    def value(self, option: str, otherwise: float) -> float:
        value: Any = getattr(self._options, option)
        if value is None and self._objective is not None:
            value = getattr(self._objective, option)
        if value is None:
            shown = percent_text(otherwise) if option == "late" else number_text(otherwise)
            self.notes.append(ASSUMED[option].format(shown))
            return otherwise
        if option == "concurrency":
            self.given[option] = int(value) if value == int(value) else float(value)
        elif option == "start_up":
            self.given[option] = seconds_text(value)
        return float(value)

    def time_of_messages(self, concurrency: float, rate: float) -> float:
        """Messages an instance processes at once, which a given time of a message may say; notes what one takes."""
        if (takes := self._options.takes) is not None and "concurrency" not in self.given:
            concurrency = self.given["concurrency"] = float(f"{rate * takes:.4g}")
            assumed = ASSUMED["concurrency"].format(number_text(FIRST_CONCURRENCY))
            self.notes = [note for note in self.notes if note != assumed]
        seconds = concurrency / rate
        if seconds > LONGEST:
            raise HistoryError(
                f"a message takes {seconds:.3g} s by {concurrency:g} at once and {rate:g} served a second; accepted are up to {duration_text(LONGEST)}: {ASK}"
            )
        note = f"a message takes {number_text(seconds)} s: what an instance processes at once, by what it serves a second"
        if "concurrency" not in self.given:
            note += (
                ". If that is not so, waits and instances of these replays are wrong: give --takes (how long a message takes), or "
                "--concurrency"
            )
        else:  # until a busy time has shown it the rule would hold what is there, a quarter dearer for fast messages
            self.given["takes"] = seconds_text(float(f"{seconds:.4g}"))
        self.notes.append(note)
        return concurrency


ASSUMED = {
    "concurrency": "an instance holds {} messages at once: assumed (--concurrency)",
    "start_up": "an instance serves {} s after it was asked for: assumed (--start-up)",
    "wait": "no message should wait longer than {} s: assumed (--wait)",
    "late": "{} of the messages may wait longer than they should: assumed (--late)",
}


def _coverage(history: History, wait: float) -> list[str]:
    """From when to when, how much of it is not known, and what that can prove."""
    unknown = sum(map(isnan, history.arrivals))
    whole, known = len(history.arrivals), len(history.arrivals) - unknown
    span = known * history.step
    when = f"{time_text(history.start)} to {time_text(history.end)}, by {duration_text(history.step)}"
    notes = [f"{when}: {duration_text(span)} of load is known"]
    if unknown:
        # The first bin is always known.
        gaps = sum(isnan(b) and not isnan(a) for a, b in pairwise(history.arrivals))
        notes.append(
            f"{_percent(unknown / whole)} of the time is missing ({duration_text(unknown * history.step)} in "
            f"{count_text(gaps, 'gap')}); nothing is assumed for it, and it counts for nothing"
        )
    if not any(value > 0 for value in history.arrivals):  # NaN is not
        notes.append("no message arrives in all of that time: what follows distinguishes no policies")
    if history.step > max(wait, MINUTE):
        notes.append(
            f"each row counts {duration_text(history.step)}, over which its messages are spread: those that come at once, as of a batch, wait "
            "longer than in these replays; rows of a minute tell"
        )
    if span < DAY:
        notes.append(
            f"{duration_text(span)} is less than a day: other hours may look different, and nothing of what follows is "
            "proven for them"
        )
    elif span < 7 * DAY:
        notes.append("less than a week: days of the week that are not in it may look different")
    return notes


def _percent(share: float) -> str:
    """Never 100 % for what is not all, nor 0 % for what is something."""
    percent = 100.0 * share
    return f"{percent:.2g} %" if percent < 99 else f"{min(percent, 99.99):.4g} %"


def _saturation(history: History, target: Target, recorded: Recorded) -> str:
    """Where more comes in the busiest bin than the maximum serves: how late messages are with the maximum all the time. Empty where that
    keeps the objective, as it may where messages are allowed to wait.
    """
    most = max(count for count in history.arrivals if not isnan(count)) / history.step / target.service_rate
    if most <= target.maximum:
        return ""
    late = late_at_maximum(target, recorded.load(target.name))
    if late <= target.late:
        return ""
    peak, high = f"{ceil(most):,} instances busy", f"{target.maximum:,}"
    return f"what comes at the peak keeps {peak}, and the maximum is {high}: with {high} all the time, {_percent(late)} of the messages would be late, so no policy keeps the objective"


def _ran(readings: Sequence[Reading], history: History) -> list[str]:
    """What was there in truth, where it was recorded."""
    ran = [r.instances for r in readings if r.arrivals is not None and r.instances is not None]
    known = sum(not isnan(count) for count in history.arrivals)
    if len(ran) < 0.99 * known or not ran:
        return []
    hours = sum(ran) * history.step / HOUR
    return [f"{number_text(hours)} instance-hours ran in truth, in {count_text(len(ran), 'bin')} that tell"]
