"""The lines of decisions, effects and findings end with the fields that the HTTP API has for the same row."""

import json

import msgspec
import pytest
from msgspec import structs

from scaling.model import MetricFailure, Reason
from scaling.ports import Reading
from scaling.service import messages as codec
from scaling.service.reading import MetricSource, make_report, report_line
from scaling.web.views import log_view
from tests.support.scaling.fakes import MemoryPoisonQueues
from tests.support.scaling.runner import MINUTE, NOW, World, changed, metric, policy, report
from tests.support.scaling.shadow import SERVICE_LEVEL, fixed, shadowed
from tidemark.foundation.log.tail import MARK, log_line


def tail_of(line):
    told = log_line(line)
    return json.loads(told[told.rindex(MARK) :])


async def rows(world):
    """The log as the API gives it."""
    return json.loads(msgspec.json.encode(log_view(await world.log.read("plan", limit=1000))))["entries"]


def is_part(told, shown):
    """Whether what a line says is what the API says: the same names, the same values; the API may have more."""
    if isinstance(told, dict):
        return all(name in shown and is_part(value, shown[name]) for name, value in told.items())
    if isinstance(told, list):
        return len(told) == len(shown) and all(map(is_part, told, shown))
    return told == shown


def row_of(tail, shown):
    """The one row that a line is of."""
    identity = ("kind", "target", "at", "reason")
    (row,) = [row for row in shown if all(row[name] == tail[name] for name in identity)]
    return row


async def lines_of(world, minutes):
    """All that decisions, effects and checks tell."""
    found = []
    for _ in range(minutes):
        world.clock.now += MINUTE
        await world.tick()
        decided = await world.decide()
        world.actions += decided.messages
        done = [await world.deliver() for _ in range(len(world.actions))]
        checked = await world.autoscaler().verify()
        found += [line for each in (decided, *done, checked) for line in (*each.lines, *each.warnings)]
    return found


async def test_decisions_and_effects_say_in_fields_what_the_api_says_of_them():
    world = World()
    world.backlog = 812.0

    tails = [tail for line in await lines_of(world, 6) if (tail := tail_of(line))["kind"] != "check"]

    shown = await rows(world)
    kinds = [(tail["kind"], tail["reason"]) for tail in tails]
    assert {("decision", "scale_out"), ("effect", "applied")} <= set(kinds)
    for tail in tails:
        row = row_of(tail, shown)
        told = {name: value for name, value in tail.items() if name != "tidemark"}
        assert is_part(told, row), (told, row)


async def test_a_decision_tells_its_numbers_and_what_limited_it():
    world = World(changed(policy(), maximum=3))
    world.backlog = 5_000.0
    await world.pass_minutes(8)
    await world.tick()

    (line,) = (await world.decide()).lines

    tail = tail_of(line)
    assert line.startswith("scaling plan hold 3: at maximum")
    assert {name: tail[name] for name in ("tidemark", "kind", "target", "reason", "current", "desired")} == {
        "tidemark": 1,
        "kind": "decision",
        "target": "plan",
        "reason": "at_maximum",
        "current": 3,
        "desired": 3,
    }
    assert (tail["minimum"], tail["maximum"], tail["proposed"]) == (1, 3, 4)
    assert tail["limited_by"] == ["at_maximum"]
    assert tail["metrics"] == {"backlog": 5000.0}
    (evidence,) = tail["evidence"]
    assert (evidence["metric"], evidence["statistic"], evidence["value"], evidence["threshold"]) == (
        "backlog",
        "average",
        5000.0,
        500.0,
    )


async def test_a_rule_with_an_objective_tells_the_late_messages_of_today():
    world = World(shadowed(fixed(2), live=(SERVICE_LEVEL,)))
    await world.tick()

    lines = (await world.decide()).lines

    (level,) = tail_of(lines[-1])["service_levels"]
    assert level == {
        "rule": "service_level",
        "wait": 60.0,
        "allowed": 1.0,
        "late_today": 0.0,
        "begun_today": 0.0,
    }


async def test_what_a_shadow_decided_stands_in_the_fields_too():
    world = World(shadowed(fixed(7)))
    await world.tick()

    lines = (await world.decide()).lines

    tail = tail_of(lines[-1])
    assert tail["shadow"]["desired"] is not None
    assert is_part(tail["shadow"], row_of(tail, await rows(world))["shadow"])


def test_a_report_tells_its_values_and_what_could_not_be_read():
    failed = msgspec.structs.replace(
        report(None, None),
        failures=(MetricFailure("backlog", NOW, "no answer within 20 s", Reason.COLLECT_FAILED),),
    )

    assert tail_of(report_line(report(7.0, 4))) == {
        "tidemark": 1,
        "kind": "report",
        "target": "plan",
        "at": NOW,
        "metrics": {"backlog": 7.0},
        "current": 4,
    }
    assert tail_of(report_line(failed)) == {
        "tidemark": 1,
        "kind": "report",
        "target": "plan",
        "at": NOW,
        "metrics": {},
        "failures": [
            {
                "metric": "backlog",
                "at": NOW,
                "message": "no answer within 20 s",
                "reason": "collect_failed",
            }
        ],
        "capacity_error": "no answer",
    }


async def test_an_effect_that_is_found_later_is_told_when_it_is_found():
    world = World()
    world.backlog = 812.0
    while not world.actions:
        world.actions += (await world.later()).messages
    world.platform.capacity = 3  # carried out, and the process died before it could say so

    lines = (await world.later()).lines

    assert [tail_of(line)["kind"] for line in lines] == ["effect", "decision"]


async def test_what_lies_in_the_poison_queues_is_told_at_each_check_until_it_is_gone():
    world = World()
    world.poison = MemoryPoisonQueues(queues=["metrics", "actions"])
    world.poison.messages = {"metrics": [(NOW, "body")]}

    told = (await world.autoscaler().verify()).warnings
    world.poison.messages = {}
    gone = (await world.autoscaler().verify()).warnings

    assert told == ("poison queues: 1 message in metrics-poison, which the host gave up on",)
    assert tail_of(told[0]) == {
        "tidemark": 1,
        "kind": "poison",
        "at": NOW,
        "count": 1,
        "queues": ["metrics-poison"],
    }
    assert gone == ()


async def test_a_counter_is_read_as_it_is_and_logged_and_decided_by_as_its_increase():
    """From the reading to the row: decided upon, stored, and shown is what came within an interval."""
    world = World()
    collect, total = world.collector.collect, 5_000_000.0

    async def counted(*, now):
        found = await collect(now=now)
        return structs.replace(found, values={"active": total}, counters={"active": 7})

    world.collector.collect = counted
    lines = []
    for _ in range(3):
        lines += await lines_of(world, 1)
        total += 812.0

    told = [(tail["kind"], tail["metrics"]) for line in lines if "metrics" in (tail := tail_of(line))]
    assert [metrics for kind, metrics in told if kind == "decision"] == [{"backlog": 812.0}] * 2
    assert "backlog" not in str([metrics for kind, metrics in told if kind == "report"])
    assert (await world.states.load("plan")).windows["backlog"].values == [812.0, 812.0]


async def test_what_is_in_seconds_is_logged_as_a_duration_too():
    world = World(policy(metrics={"backlog": structs.replace(metric(), unit="s")}))
    world.backlog = 90.0

    tails = [tail_of(line) for line in await lines_of(world, 1)]

    (decision,) = (tail for tail in tails if tail["kind"] == "decision")
    assert decision["metrics"] == decision["durations"] == {"backlog": 90.0}


@pytest.mark.parametrize("counter", [2**53, -1, 1.5, True, "hub", 10**70])
def test_a_counter_that_cannot_be_stored_fails_its_metric_alone(counter):
    sources = [MetricSource("plan", name, "hub", name) for name in ("came", "lag")]
    reading = Reading(NOW, {"came": 5.0, "lag": 1.0}, {"came": counter})

    made = make_report("plan", NOW, sources, {"hub": reading}, "unknown")

    assert [sample.metric for sample in made.samples] == ["lag"]
    assert "a whole number below 2**53 is accepted" in made.failures[0].message
    codec.encode(made)


def test_a_counter_without_a_name_is_a_counter_all_the_same():
    source = MetricSource("plan", "done", "mine", "value", counter=True)

    made = make_report(
        "plan", NOW, [source], {"mine": Reading(NOW, {"value": 5.0}, {"value": None})}, "unknown"
    )

    assert made.samples[0].counter == 0
