"""No vote, no data and disabled are three things at every place where they are met.

docs/policies.md has the table of places; here every cell of it is run. The metric `backlog` has a window that fills, a read
that failed, or a queue that is disabled; everything else is as in a quiet target of three instances.
"""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from scaling.collectors.service_bus.collector import ServiceBusQueueCollector
from scaling.config.notify_table import Notify
from scaling.config.policy import Budget, Fallback, Pace, Plateau, QueueSpec, RuleSpec
from scaling.decision.decide import no_longer_wanted
from scaling.decision.explain import line
from scaling.decision.seen import known_values
from scaling.decision.transitions import absorb, advance, learn_from_report
from scaling.doctor import checks, running
from scaling.flips.explained import decide_and_explain
from scaling.log_entry import LogKind
from scaling.model import (
    NO_CONTROLS,
    EffectRecord,
    MetricFailure,
    MetricsReport,
    Reason,
    ScaleAction,
    Spent,
)
from scaling.notices.events import announced
from scaling.ports import CollectError, Reading, Snapshot
from scaling.rules.view import MetricsView
from scaling.service.reading import MetricSource, make_report, report_line
from scaling.shadow.memory import Shadow
from scaling.shadow.queue import observe
from scaling.web.views import target_view
from spark_jobs.sources.records.telemetry_rows import decision_row
from tests.kusto.test_queries import Tables, ask, moment, subjects
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, World, at, full, metric, policy
from tidemark.analysis.backtest.reading import from_entries
from tidemark.foundation.log.tail import log_line

POLICIES = Path(__file__).parents[3] / "docs/policies.md"
REASONS = {"no data": Reason.COLLECT_FAILED, "disabled": Reason.ENTITY_DISABLED}
CPU = RuleSpec(
    type="threshold", name="cpu", options={"metric": "cpu", "scale_out_above": 80.0, "scale_in_below": 20.0}
)
SERVED = RuleSpec(type="service_level", name="sla", options={"backlog": "backlog"})


def read_table() -> dict[tuple[str, str], str]:
    """What holds, by place and kind."""
    text = POLICIES.read_text(encoding="utf-8").partition("### No vote, no data, disabled")[2]
    rows = [
        line.strip("| ").split(" | ") for line in text.partition("\n## ")[0].splitlines() if line[:2] == "| "
    ]
    (_, *kinds), *cells = rows
    return {
        (place, kind): cell.strip("`")
        for place, *found in cells
        for kind, cell in zip(kinds, found, strict=True)
    }


TABLE = read_table()


def window(kind, value=10.0, now=NOW):
    if kind == "no vote":
        return full(value, now=now, count=2)
    failure = MetricFailure("backlog", now, "no answer", REASONS[kind])
    return msgspec.structs.replace(full(value, now=now), failure=failure)


def read_or_fail(kind, value=10.0):
    if kind == "no vote":
        return Reading(NOW, {"active": value})
    return CollectError("the service answered 500", reason=REASONS[kind])


def decided(kind, value=10.0, *, made=None, state=None, cpu=None, **spec):
    """What is decided on this backlog, and on the other metric where it is given."""
    metrics = {"backlog": metric(**spec)} | ({} if cpu is None else {"cpu": metric()})
    made = made or policy(metrics=metrics, rules=(THRESHOLD, CPU)[: len(metrics)])
    windows = {"backlog": window(kind, value)} | ({} if cpu is None else {"cpu": full(cpu)})
    return decide_and_explain(made, windows, state or at(3), now=NOW, decision_id="plan@1")


def scale_in(kind):
    return "held" if decided(kind).desired == 3 else "carried out"


def scale_out_of_another(kind):
    return "carried out" if decided(kind, cpu=90.0).desired == 4 else "held"


def pending(to, value):
    def ask_again(kind):
        action = ScaleAction("plan@0", "plan", 3, to, NOW - MINUTE, NOW + 3600.0, Reason.SCALE_OUT)
        windows, state = {"backlog": window(kind, value)}, at(3, pending=action)
        found = no_longer_wanted(policy(), windows, state, now=NOW, controls=NO_CONTROLS)
        return "carried out" if found is None else "withdrawn"

    return ask_again


def used(**spec):
    return lambda kind: "used" if decided(kind, 900.0, **spec).reason is Reason.SCALE_OUT else "not used"


def fallback(kind):
    made, state = policy(fallback=Fallback(capacity=5, after=300.0)), at(3, missing_since=NOW - 900.0)
    return "acts" if decided(kind, made=made, state=state).reason is Reason.FALLBACK else "does not act"


def stabilization(kind):
    made = policy(inward=Pace(stabilization=600.0))
    after, _ = advance(made, at(3), decided(kind, made=made), report_at=NOW, level=None)
    return "the capacity counts" if after.recommendations == ((NOW, 3),) else "nothing counts"


def budget(kind):
    made = policy(budget=Budget(amount=24.0))
    day = NOW - NOW % 86_400.0
    state = at(3, spent=Spent(day, day, NOW, 24.0, 3, 3.0))
    whole = decide_and_explain(made, {"backlog": full(300.0)}, state, now=NOW)
    assert whole.desired == 1
    return "stays" if decided(kind, 300.0, made=made, state=state).desired == 3 else "goes"


def guard(when_missing):
    def ask(kind):
        options = {"metric": "backlog", "block_out_above": 5000.0, "when_missing": when_missing}
        rules = (CPU, RuleSpec(type="guard", name="guard", options=options))
        made = policy(metrics={"backlog": metric(), "cpu": metric()}, rules=rules)
        return "allows" if decided(kind, made=made, cpu=90.0).desired == 4 else "blocks"

    return ask


def activation(kind):
    rules = (RuleSpec(type="activation", name="wake", options={"metric": "backlog"}), CPU)
    made = policy(metrics={"backlog": metric(), "cpu": metric()}, rules=rules, minimum=0)
    return "starts none" if decided(kind, made=made, cpu=90.0, state=at(0)).desired == 0 else "starts one"


def plateau(kind):
    effects = tuple(EffectRecord(NOW - MINUTE * n, 3 - n, 4 - n, 700.0) for n in (3, 2, 1))
    metrics = {"backlog": metric(failures_allowed=2), "cpu": metric()}
    made = policy(metrics=metrics, rules=(CPU,), plateau=Plateau(metric="backlog"))
    state, cpu = at(3, effects=effects), {"cpu": full(90.0)}
    read = decide_and_explain(made, {"backlog": full(700.0), **cpu}, state, now=NOW)
    assert read.reason is Reason.PLATEAU
    found = decided(kind, 700.0, made=made, state=state, cpu=90.0)
    return "holds nothing" if found.reason is Reason.SCALE_OUT else "holds"


def service_level(kind):
    made = policy(rules=(SERVED,))
    before = learn_from_report(made, {"backlog": full(10.0, now=NOW - MINUTE)}, at(3), now=NOW - MINUTE)
    after = learn_from_report(made, {"backlog": window(kind)}, before, now=NOW)
    return "learns" if after.memories != before.memories else "learns nothing"


def shadow_queue(kind):
    shadow, queue = Shadow(capacity=3), QueueSpec(backlog="backlog", service_rate=1.0, start_up=60.0)

    def view(window, now):
        bounds = {"minimum": 1, "maximum": 10, "now": now}
        return MetricsView({"backlog": window}, {"backlog": metric().window}, 3, ready=3, **bounds)

    for minute in (-3, -2, -1):
        observe(shadow, queue, view(full(10.0, now=NOW + minute * MINUTE), NOW + minute * MINUTE))
    passed = observe(shadow, queue, view(window(kind), NOW))
    if passed is not None:
        return "goes on"
    later = full(10.0, now=NOW + 5 * MINUTE)
    return "starts again" if observe(shadow, queue, view(later, NOW + 5 * MINUTE)) is None else "goes on"


def told_flip(kind):
    text = line(decided(kind))
    return next(
        cell
        for cell in (TABLE["what would change the decision", each] for each in KINDS)
        if f"if {cell}" in text
    )


def collector_line(kind):
    source = MetricSource("plan", "backlog", "queue", "active")
    report = make_report("plan", NOW, [source], {"queue": read_or_fail(kind)}, at(3).capacity)
    text = str(report_line(report))
    return text.partition(": ")[2].partition(",")[0]


async def world_of(kind, minutes=3):
    """A target in its third minute of it; with a whole window before it, but for one that fills."""
    world = World(capacity=3)
    if kind != "no vote":
        await world.pass_minutes(8)

        async def collect(*, now):
            raise read_or_fail(kind)

        world.collector.collect = collect
    await world.pass_minutes(minutes)
    return world


async def last_row(kind):
    world = await world_of(kind)
    return (await world.entries(LogKind.DECISION))[-1]


async def logged_metrics(kind):
    return "newest value" if (await last_row(kind)).metrics == {"backlog": 300.0} else "left out"


async def aggregated(kind):
    row = decision_row(msgspec.json.encode(await last_row(kind)))
    return "a sample" if row["metrics"] == [("backlog", 300.0)] else "no sample"


async def recorded(kind):
    return "a reading" if from_entries([await last_row(kind)], None) else "unknown time"


async def status(kind):
    loaded = await (world := await world_of(kind)).states.load("plan")
    return target_view(world.policy, Snapshot("plan", loaded.state, loaded.windows), now=world.clock.now)


async def quality(kind):
    return (await status(kind)).metrics[0].quality


async def missing_since(kind):
    return {None: "none", NOW + 8 * MINUTE: "first read that failed"}[(await status(kind)).missing_since]


def alert(kind):
    source = MetricSource("plan", "backlog", "queue", "active")
    rows = []
    for minute in range(5):
        now = NOW + minute * MINUTE
        report = make_report("plan", now, [source], {"queue": read_or_fail(kind)}, at(3).capacity)
        rows.append({"TimeGenerated": moment(now), "Message": log_line(report_line(report, MINUTE))})
    found = subjects(ask(Tables(AppTraces=rows), "alerts/collectors", minutes=10, at=NOW + 5 * MINUTE))
    return {frozenset(): "silent", frozenset({"plan: backlog"}): "raised"}[frozenset(found)]


async def notice(kind):
    state, made = (await (await world_of(kind)).state()), Notify(held_after=60.0, missing_after=60.0)
    for _ in range(2):
        later = msgspec.structs.replace(state.last, at=state.last.at + MINUTE, decision_id="plan@2")
        state = announced(made, "plan", state, msgspec.structs.replace(state, last=later))
    return state.telling.standing.kind.value


async def doctor(kind):
    async def collect(*, now):
        found = read_or_fail(kind)
        if isinstance(found, Exception):
            raise found
        return found

    async def aclose():
        pass

    collector = SimpleNamespace(collect=collect, aclose=aclose, ROLE=ServiceBusQueueCollector.ROLE)
    check = checks._metric(SimpleNamespace(clock=lambda: NOW), "queue", collector)
    (finding,) = (await running.run([check])).findings
    return finding.verdict.value


PLACES = {
    "reason of the decision": lambda kind: decided(kind).reason.value,
    "scaling in": scale_in,
    "scaling out, asked for by a rule of another metric": scale_out_of_another,
    "scaling out of a pending action": pending(4, 900.0),
    "scaling in of a pending action": pending(2, 10.0),
    "`default` of the metric": used(default=700.0),
    "`failures_allowed`": used(failures_allowed=3),
    "`[fallback]`, once `after` has passed": fallback,
    "`stabilization`": stabilization,
    "capacity that the budget of the day does not pay for": budget,
    '`guard` with `when_missing = "block"`': guard("block"),
    '`guard` with `when_missing = "allow"`': guard("allow"),
    "`activation`, at zero": activation,
    "`plateau` of the metric": plateau,
    "`service_level`": service_level,
    "the queue that a shadow simulates": shadow_queue,
    "what would change the decision": told_flip,
    "line of the collector": collector_line,
    "`metrics` of a decision's row and line": logged_metrics,
    "`quality` on the dashboard and in the status": quality,
    "`missing_since` there": missing_since,
    "alert `tidemark-collectors`": alert,
    "notice, once it has lasted": notice,
    "`tidemark doctor`": doctor,
    "telemetry aggregation of the log": aggregated,
    "`backtest`, `advise` and `seasons` on the log": recorded,
}
KINDS = ("no vote", "no data", "disabled")


@pytest.mark.parametrize(("place", "kind"), TABLE)
async def test_no_vote_no_data_and_disabled_are_what_the_table_says(place, kind):
    found = PLACES[place](kind)

    assert (found if isinstance(found, str) else await found) == TABLE[place, kind]


def test_the_table_has_every_place_with_all_three_kinds():
    assert set(TABLE) == {(place, kind) for place in PLACES for kind in KINDS}


@pytest.mark.parametrize("order", [("backlog", "cpu"), ("cpu", "backlog")])
def test_the_fallback_answers_a_metric_that_is_not_read_beside_a_disabled_queue_whatever_rule_stands_first(
    order,
):
    rules = {"backlog": THRESHOLD, "cpu": CPU}
    both = {name: metric() for name in order}
    made = policy(
        metrics=both, rules=tuple(rules[name] for name in order), fallback=Fallback(capacity=5, after=300.0)
    )
    state, reasons = at(3), []
    for minute in range(6):
        now = NOW + minute * MINUTE
        failed = msgspec.structs.replace(window("no data", now=now), failure=MetricFailure("cpu", now, "no"))
        windows = {"backlog": window("disabled", now=now), "cpu": failed}
        found = decide_and_explain(made, windows, state, now=now, decision_id=f"plan@{minute}")
        state, _ = advance(made, state, found, report_at=now, level=None)
        reasons.append(found.reason is Reason.FALLBACK)

    assert reasons == [False] * 5 + [True]


@pytest.mark.parametrize(("age", "known"), [(180.0, {"backlog": 300.0}), (181.0, {})])
def test_a_sample_that_is_too_old_is_not_logged_as_the_value_of_now(age, known):
    assert known_values(policy(), {"backlog": full(300.0, now=NOW - age)}, now=NOW) == known


def test_a_report_without_the_metric_is_a_failed_read_and_not_a_zero() -> None:
    made = policy()
    windows, state = absorb(
        made,
        {"backlog": full(20.0, now=NOW - MINUTE)},
        at(3),
        MetricsReport("plan", NOW),
        now=NOW,
        controls=NO_CONTROLS,
    )

    assert decide_and_explain(made, windows, at(3), now=NOW).reason is Reason.COLLECT_FAILED
    assert state.capacity_error is not None
