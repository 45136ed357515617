"""Functions of queues run by hand with the name of a target: an answer, and nothing else happens."""

import json

import pytest

from scaling.config.policy_file import Config
from scaling.service.by_hand import target_named
from scaling.service.messages import MessageError
from scaling.web import api
from tests.support.scaling.runner import MINUTE, World, policy
from tidemark.foundation.log.tail import MARK, log_line

CONFIG = Config({"plan": policy(), "other": policy(target="other")}, MINUTE, 86_400.0)


@pytest.mark.parametrize("body", ["plan", b"plan", ' "plan"\n', b'"plan"'])
def test_the_name_of_a_target_is_understood_as_people_type_it(body):
    assert target_named(CONFIG, body, "a report") == "plan"


def test_a_message_is_no_name_even_a_broken_one():
    assert target_named(CONFIG, '{"v": 1, "kind"', "a report") is None


@pytest.mark.parametrize("body", ["", "plain", b"\xff\xfe", "[1]"])
def test_what_is_neither_is_refused_with_the_names_there_are(body):
    with pytest.raises(
        MessageError, match=r"not a report message: found .* type the name of a target: plan, other"
    ):
        target_named(CONFIG, body, "a report")


def test_where_there_is_one_target_an_empty_body_means_it():
    assert target_named(Config({"plan": policy()}, MINUTE, 86_400.0), b"", "an action") == "plan"


async def untouched(world, ask):
    """What an answer says; state, log and platform are as before."""
    before = (await world.state(), await world.entries(), list(world.platform.ledger))
    outcome = await ask
    assert (await world.state(), await world.entries(), list(world.platform.ledger)) == before
    assert (outcome.messages, outcome.warnings) == ((), ())
    return outcome.lines


async def test_scaling_logic_says_what_it_would_decide_now():
    world = World()
    world.backlog = 812.0
    await world.pass_minutes(4)

    lines = await untouched(world, world.autoscaler().evaluate("plan"))

    assert lines[0] == "collector plan: backlog 812, capacity 2"
    assert lines[1].startswith(
        "asked plan: now it would be: scaling plan out 2 -> 3: average backlog 812 > 500 over 5 min (5 samples)"
    )
    assert lines[1].endswith("nothing was changed")
    assert not any(MARK in log_line(line) for line in lines)  # it counts as no decision


async def test_scaling_logic_says_why_it_cannot_decide():
    world = World()
    world.platform.unreachable = True

    lines = await untouched(world, world.autoscaler().evaluate(b""))

    assert "asked plan: capacity: the platform does not answer" in lines
    assert "capacity unknown" in lines[-1]


async def test_scaler_says_how_the_target_stands():
    world = World()
    world.backlog = 812.0
    while not world.actions:
        world.actions += (await world.later()).messages

    (pending,) = await untouched(world, world.autoscaler().apply("plan"))
    await world.deliver()
    world.clock.now += MINUTE
    (moved,) = await untouched(world, world.autoscaler().apply("plan"))

    assert pending.startswith("asked plan: capacity 2 (1 to 30 on this platform); 2 -> 3 is pending [plan@")
    assert "no action is pending; last change 2 -> 3, 1 min ago; nothing was changed" in moved


async def test_a_check_says_how_many_it_looked_at_and_whether_there_was_anything_to_tell():
    world = World()
    await world.pass_minutes(6)

    quiet = (await world.autoscaler().verify()).lines
    world.platform.move(7)
    found = (await world.autoscaler().verify()).lines

    assert quiet == ("verify: 1 target checked, as requested",)
    assert found == ("verify: 1 target checked, 1 finding",)


async def test_an_order_answers_with_what_it_did_and_tells_the_log():
    world, told = World(), []
    body = b'{"direction": null, "for": "30m", "by": "ann"}'

    answer = await api.control(world.autoscaler(), api.Order("plan", "pause", body), log_line=told.append)
    refused = await api.control(world.autoscaler(), api.Order("plan", "pause", b"{}"), log_line=told.append)

    assert json.loads(answer.body)["done"] == "scaling paused for 30 min"
    assert json.loads(answer.body)["target"] == "plan"
    assert refused.status == 400
    (line,) = told
    tail = json.loads(log_line(line)[log_line(line).rindex(MARK) :])
    assert (tail["kind"], tail["target"], tail["reason"], tail["by"]) == ("control", "plan", "pause", "ann")
