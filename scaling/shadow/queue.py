"""The queue as it would be with the simulated instances. Pure.

Arrivals do not depend on what is decided: they are those of the target as it is, by what the rule `service_level`
learns of any queue (`scaling.rules.service_level.learning`). The simulated instances serve as the real ones do: where all of
these were busy, what one of them served in that very interval; where they were not, what one is known to serve at most.
So rules that decide alike have the same queue to the message, whatever was learned.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct, structs

from scaling.config.policy import Policy, QueueSpec
from scaling.rules.service_level import estimates, instances, learning, memory
from scaling.rules.service_level.candidates import late_share
from scaling.rules.service_level.queue import arrived_at
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.rules.service_level.sizing import serving_instances
from scaling.rules.view import MetricsView
from scaling.shadow.memory import Shadow, Tally
from scaling.window import Window
from tidemark.foundation.wording import duration_text

APART = 480
"""Steps kept by which the simulated queue differs: two hours of one every 15 s. What is older in a window is as measured."""


class Passed(Struct, frozen=True):
    """What happened since the last observation, in messages: `arrived`; begun too late, and overdue at its end, with the
    instances there are and with the simulated ones.
    """

    seconds: float
    arrived: float
    live_late: float
    live_overdue: float
    simulated_late: float
    simulated_overdue: float


@lru_cache(maxsize=256)
def watcher(queue: QueueSpec) -> ServiceLevelRule:
    """The rule that learns of the queue what there is to know; its advice is not asked."""
    given: dict[str, Any] = {}
    if queue.concurrency is not None:
        given["concurrency"] = queue.concurrency
    if queue.start_up is not None:
        given["start_up"] = f"{queue.start_up}s"
    params = ServiceLevelRule.Params(
        backlog=queue.backlog,
        incoming=queue.incoming,
        outgoing=queue.outgoing,
        wait=f"{queue.wait}s",
        late=queue.late,
        **given,
    )
    return ServiceLevelRule(params, name="queue")


def begin(shadow: Shadow, known: bytes) -> None:
    """The simulated queue is the real one, as far as `known`, which was learned of it, says."""
    learned = memory.decode(known)
    shadow.known, shadow.waiting, shadow.apart = b"", 0.0, []
    if learned is not None:
        shadow.known, shadow.waiting = known, learned.waiting


def learner(policy: Policy, queue: QueueSpec | None) -> str | None:
    """The name of the rule of a policy that learns of this very queue, too."""
    if queue is None:
        return None
    metrics = watcher(queue).metrics()
    learning_it = (rule for rule in policy.flat_rules if isinstance(rule, ServiceLevelRule))
    return next((rule.name for rule in learning_it if rule.metrics() == metrics), None)


def of_real_instances(memories: dict[str, bytes], rule: str | None, known: bytes) -> dict[str, bytes]:
    """The memories with what is known of the instances themselves as the real ones have taught it: the simulated ones only
    repeat what they were taught, and from a backlog alone a rule would read its own guesses back.
    """
    if rule is None or (simulated := memory.decode(memories.get(rule))) is None:
        return memories
    real = memory.decode(known)
    if real is None:
        return memories
    return memories | {rule: memory.encode(structs.replace(simulated, learned=real.learned))}


def start_up_of(queue: QueueSpec | None, known: bytes) -> float:
    """Seconds from asked-for to serving."""
    if queue is not None and queue.start_up is not None:
        return queue.start_up
    learned = memory.decode(known)
    if queue is None or learned is None:
        return instances.FIRST_START_UP
    return estimates.start_up_time(learned, watcher(queue).objective)


def called_ready_of(queue: QueueSpec | None, known: bytes) -> float:
    """Seconds until the platform calls an instance ready. A rule that learns adds what it then takes to warm up itself."""
    learned = memory.decode(known) if queue is not None and queue.start_up is None else None
    return start_up_of(queue, known) if learned is None else learned.learned.start_up


def service_rate_of(queue: QueueSpec, known: memory.Memory | None) -> float | None:
    """Messages per second of a busy instance; None while nothing is known of it."""
    if queue.service_rate is not None:
        return queue.service_rate
    return known.learned.service_rate if known is not None and known.learned.service_rate > 0.0 else None


def observe(shadow: Shadow, queue: QueueSpec, view: MetricsView) -> Passed | None:
    """Takes what the target shows (`view`, with its real capacity) into the simulated queue; returns what happened since
    the last time. None where that is not known: at first, after a gap, before it is known what an instance serves. The
    simulated queue is the real one then, and the messages that were late in the one before are counted for good.
    """
    rule = watcher(queue)
    seen = rule.observed(view)
    if seen is None:
        return None
    before = memory.decode(shadow.known)
    if before is None:
        first = learning.learn(None, seen, rule.objective)
        shadow.known, shadow.waiting, shadow.apart = memory.encode(first), first.waiting, []
        return None
    seconds = seen.at - before.at
    if 0.0 <= seconds < learning.TOO_SOON * seen.interval:
        return None
    rate = service_rate_of(queue, before)
    old = arrived_at(before, before.at - queue.wait)
    after = learning.learn(before, seen, rule.objective)
    shadow.known = memory.encode(after)
    follows = 0.0 < seconds <= learning.GAP * seen.interval and after.observations == before.observations + 1
    if not follows or rate is None:
        _settle(shadow.tally)
        shadow.waiting, shadow.apart = after.waiting, []
        return None
    old_now = arrived_at(after, after.at - queue.wait)
    held = estimates.concurrency(after, rule.objective)
    start_up = estimates.start_up_time(after, rule.objective)
    ready = serving_instances(shadow.starts, shadow.capacity or 0, seen.at, start_up)
    live = _Live(seconds, before, after, old, old_now, rate, held * ready, held)
    return _serve(shadow, live, given=queue.service_rate is not None)


def _settle(tally: Tally) -> None:
    """Those that wait too long already are late, though no later observation will count them."""
    tally.live_late += tally.live_overdue
    tally.simulated_late += tally.simulated_overdue
    tally.live_overdue = tally.simulated_overdue = 0.0


class _Live(Struct, frozen=True):
    """The target between two observations: of all messages `old` were too old to be begun in time at its start,
    `old_now` at its end. `rate` is what an instance is known to
    serve, `held` the messages it holds, `most` those that all simulated instances hold at the end.
    """

    seconds: float
    before: memory.Memory
    after: memory.Memory
    old: float
    old_now: float
    rate: float
    most: float
    held: float


def _serve(shadow: Shadow, live: _Live, *, given: bool) -> Passed:
    """Lets the simulated instances serve for as long as the real ones did; `given`: their rate is not to be measured."""
    before, after, seconds = live.before, live.after, live.seconds
    came = after.arrived - before.arrived
    begun = before.arrived - before.waiting
    served = max(after.arrived - after.waiting - begun, 0.0)
    rate_now = served / (seconds * before.serving) if before.serving >= 1.0 else 0.0
    busy = after.waiting > 0.0 and rate_now > 0.0
    rate = live.rate if given else rate_now if busy else max(live.rate, rate_now)
    begun_there = before.arrived - shadow.waiting
    there = shadow.waiting + came
    served_there = min(there, shadow.ready * rate * seconds)
    shadow.waiting = there - served_there
    if shadow.waiting < 1e-6:  # what rounding leaves
        shadow.waiting = 0.0
    _note(shadow, live, rate, served, served_there)
    live_late, live_overdue = _late(live, begun, served, after.waiting)
    simulated_late, simulated_overdue = _late(live, begun_there, served_there, shadow.waiting)
    return Passed(seconds, came, live_late, live_overdue, simulated_late, simulated_overdue)


def _late(live: _Live, begun: float, served: float, waiting: float) -> tuple[float, float]:
    """Of the messages begun after the first `begun` those that were late, and of those still waiting."""
    overdue = live.old_now - begun - served
    return served * late_share(live.old - begun, overdue), min(max(overdue, 0.0), waiting)


def _note(shadow: Shadow, live: _Live, rate: float, served: float, served_there: float) -> None:
    """By how much the metrics would differ. Messages being processed: as many as the instances hold where more wait, else
    as many as are measured, or by Little's law where too many wait to measure that.
    """
    after, most = live.after, live.most
    processed = after.backlog - after.waiting
    if shadow.waiting > 0.0:
        processed_there = most
    elif after.waiting > 0.0:
        processed_there = served_there / live.seconds * live.held / rate if rate > 0.0 else most
    else:
        processed_there = processed * served_there / served if served > 0.0 else processed
    there = shadow.waiting + min(processed_there, most)
    apart = (after.at, round(there - after.backlog), round(served_there - served))
    if apart[1:] != (shadow.apart[-1][1:] if shadow.apart else (0, 0)):
        shadow.apart = [*shadow.apart, apart][-APART:]


def simulated_windows(windows: dict[str, Window], shadow: Shadow, queue: QueueSpec) -> dict[str, Window]:
    """The windows as they would be: of the queue that would be there. All others are as they are."""
    if not shadow.apart:
        return windows
    changed = {queue.backlog: _moved(windows.get(queue.backlog), shadow.apart, 1)}
    if queue.outgoing is not None:
        changed[queue.outgoing] = _moved(windows.get(queue.outgoing), shadow.apart, 2)
    return windows | {name: window for name, window in changed.items() if window is not None}


def forget(shadow: Shadow, since: float) -> None:
    """Leaves out the steps that no window reaches back to."""
    steps, first = shadow.apart, 0
    while first + 1 < len(steps) and steps[first + 1][0] <= since:
        first += 1
    shadow.apart = steps[first:]
    if len(shadow.apart) == 1 and shadow.apart[0][0] <= since and shadow.apart[0][1:] == (0, 0):
        shadow.apart = []


def _moved(window: Window | None, apart: list[tuple[float, int, int]], which: int) -> Window | None:
    if window is None:
        return None
    values, step = [], 0
    for at, value in zip(window.times, window.values, strict=True):
        while step < len(apart) and apart[step][0] <= at:
            step += 1
        by = apart[step - 1][which] if step else 0
        values.append(max(value + by, 0.0))
    return structs.replace(window, values=values)


def describe_instances(queue: QueueSpec, known: bytes) -> str:
    """What is known of the instances, in words."""
    learned = memory.decode(known)
    rate = service_rate_of(queue, learned)
    if rate is None or learned is None:
        return "what an instance serves is not known yet"
    how = "given" if queue.service_rate is not None else "learned"
    if queue.service_rate is None and not learned.learned.service_rate_count:
        how = "estimated: never seen busy"
    start_up = duration_text(start_up_of(queue, known))
    return f"an instance serves {rate:.3g}/s ({how}) from {start_up} after it was asked for"
