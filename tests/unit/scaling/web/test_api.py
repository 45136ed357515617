"""The HTTP API without HTTP, over in-memory ports."""

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest

from scaling.calls.usage import CallsView, ProcessCalls
from scaling.config.policy import DrainSpec, Policy, RuleSpec
from scaling.config.policy_file import Config
from scaling.log_entry import LogKind
from scaling.model import Capacity, MetricSample, MetricsReport, TargetState
from scaling.ports import NewerStateError
from scaling.service.autoscaler import Autoscaler
from scaling.service.messages import encode
from scaling.service.shell import Ports
from scaling.storage.orders import ATTEMPTS
from scaling.web import api
from tests.support.scaling.fakes import MemoryDecisionLog, MemoryPoisonQueues, MemoryStateStore
from tests.support.scaling.runner import metric
from tests.support.scaling.runner import policy as policy_of
from tidemark.foundation.errors import ConflictError, StoreUnavailableError
from tidemark.foundation.http.answers import json_response
from tidemark.foundation.http.callers import Caller, RefusedError

NOW = 1_700_000_000.0
PAUSE = {"direction": None, "for": "5m"}


def policy(name="plan-a"):
    return policy_of(target=name, metrics={"backlog": metric(span=60.0, min_samples=1)})


@pytest.fixture
def world():
    ports = Ports(
        collectors={},
        sources=(),
        scalers={},
        states=MemoryStateStore(),
        log=MemoryDecisionLog(),
        poison=MemoryPoisonQueues(queues=["metrics", "actions"]),
    )
    config = Config({"plan-a": policy(), "plan-b": policy("plan-b")}, 60.0, 86_400.0)
    return Autoscaler(config, ports, clock=lambda: NOW)


async def report(world, backlog, *, target="plan-a", at=NOW):
    message = encode(
        MetricsReport(target, at, (MetricSample("backlog", at, backlog),), (), Capacity(3, at, ceiling=30))
    )
    return await world.evaluate(message)


def body(response):
    return json.loads(response.body)


async def order(world, name, fields=None, *, target="plan-a", principal=None, raw=None):
    data = raw if raw is not None else msgspec.json.encode({"by": "anna"} | (fields or {}))
    return await api.control(world, api.Order(target, name, data, Caller(name=principal, object_id="0b1c")))


async def test_status_shows_every_target_with_its_last_decision(world):
    await report(world, 800.0)

    answer = await api.status(world)

    first, second = body(answer)["targets"]
    assert (answer.status, answer.media_type) == (200, "application/json")
    assert (first["target"], first["reason"], first["desired"]) == ("plan-a", "scale_out", 4)
    assert (second["target"], second["reason"]) == ("plan-b", None)


async def test_calls_shows_what_the_processes_of_the_app_have_called(world):
    assert body(await api.calls(world)) == {"now": NOW, "processes": []}
    view = CallsView("service_bus", "orders", 50, 5.0, 4, 240)
    counts = SimpleNamespace(read=lambda: told([ProcessCalls("machine/1", NOW - 30, (view,))]))
    ports = msgspec.structs.replace(world.ports, calls=SimpleNamespace(counts=counts))

    shown = body(await api.calls(Autoscaler(world.config, ports, clock=world.clock)))

    assert shown["processes"][0]["calls"][0] == {
        "api": "service_bus",
        "scope": "orders",
        "budget": 50,
        "seconds": 5.0,
        "last_minute": 4,
        "last_hour": 240,
        "refused_minute": 0,
        "refused_hour": 0,
        "throttled_hour": 0,
        "waits_until": None,
    }


async def told(value):
    return value


async def test_status_tells_what_lint_finds_in_the_rules(world):
    assert body(await api.status(world))["problems"] == []
    flapping = policy("plan-a")
    options = {"metric": "backlog", "scale_out_above": "200 * instances", "scale_in_below": "150 * instances"}
    spec = msgspec.structs.replace(
        flapping.spec, rules=(RuleSpec(type="threshold", name="threshold", options=options),)
    )
    config = msgspec.structs.replace(world.config, policies={"plan-a": Policy(spec)})

    (problem,) = body(await api.status(Autoscaler(config, world.ports, clock=world.clock)))["problems"]

    assert problem.startswith("error: targets.plan-a: ")


async def test_status_shows_poison_messages(world):
    world.ports.poison.messages["metrics"] = [(NOW, "rubbish")]

    poison = body(await api.status(world))["poison"]

    assert (poison["count"], poison["messages"][0]["body"]) == (1, "rubbish")


async def test_the_log_is_paged_without_loss_or_repetition(world):
    for minute in range(5):
        await report(world, 800.0 + minute, at=NOW - 60.0 * minute)

    seen, parameters = [], {"target": "plan-a", "limit": "2"}
    while True:
        page = body(await api.log(world, parameters))
        seen += [entry["decision_id"] for entry in page["entries"]]
        if page["continuation"] is None:
            break
        parameters["continuation"] = page["continuation"]

    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen, reverse=True)


async def test_since_may_be_a_duration_back_from_now(world):
    await report(world, 800.0, at=NOW - 7200.0)
    await report(world, 800.0, at=NOW - 60.0)

    recent = body(await api.log(world, {"since": "1h"}))
    exact = body(await api.log(world, {"since": str(NOW - 7200.0)}))

    assert [len(recent["entries"]), len(exact["entries"])] == [1, 2]


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"target": "plan-x"}, 404, "configured are plan-a, plan-b"),
        ({"limit": "0"}, 400, "limit: found '0'; accepted are whole numbers 1 to 1000"),
        ({"limit": "many"}, 400, "limit: found 'many'"),
        ({"since": "yesterday"}, 400, "since: found 'yesterday'; accepted are epoch seconds or a duration"),
        ({"since": "nan"}, 400, "since: found 'nan'"),
        ({"continuation": "forged"}, 400, "continuation 'forged'"),
        ({"targets": "plan-a"}, 400, "targets: accepted are target, since, limit, continuation"),
    ],
)
async def test_wrong_parameters_of_the_log_are_named(world, parameters, status, text):
    answer = await api.log(world, parameters)

    assert answer.status == status
    assert text in body(answer)["error"]


async def test_an_order_is_stored_shown_and_written_to_the_log(world):
    answer = await order(world, "pause", {"direction": "out", "for": "30m", "by": "anna"})

    assert answer.status == 200
    controls = (await world.ports.states.load("plan-a")).controls
    assert [(p.direction, p.by, p.until) for p in controls.pauses] == [("out", "anna", NOW + 1800.0)]
    (entry,) = (await world.ports.log.read("plan-a")).entries
    assert (entry.kind, entry.by) == (LogKind.CONTROL, "anna")
    assert entry.line == "control plan-a: scaling out paused for 30 min, by anna"


async def test_the_signed_in_user_counts_for_more_than_the_name_in_the_body(world):
    await order(world, "resume", {"by": "somebody"}, principal="anna@example.org")

    (entry,) = (await world.ports.log.read("plan-a")).entries
    assert entry.by == "anna@example.org"


@pytest.mark.parametrize(
    ("name", "fields", "status", "text"),
    [
        ("explode", {}, 404, "accepted are acknowledge, dry-run, override, pause, promote, resume"),
        (
            "pause",
            {"direction": "up", "for": None},
            400,
            "direction: found 'up'; accepted are 'out', 'in' and null",
        ),
        ("pause", {"until": 5}, 400, "until: is not accepted here"),
        ("override", {}, 400, "capacity: found None; accepted are whole numbers 1 to 10"),
        ("override", {"capacity": 11}, 400, "found 11"),
        ("override", {"capacity": 2.5}, 400, "found 2.5"),
        ("override", {"capacity": 2, "for": "30d"}, 400, "at most 7 d"),
        ("dry-run", {"on": "yes"}, 400, "on: found 'yes'; accepted are true, false and null"),
        ("pause", {"by": "x" * 300}, 400, "by: found"),
    ],
)
async def test_a_wrong_order_changes_nothing_and_says_what_is_accepted(world, name, fields, status, text):
    answer = await order(world, name, fields)

    assert answer.status == status
    assert text in body(answer)["error"]
    assert (await world.ports.states.load("plan-a")).controls.pauses == ()
    assert (await world.ports.log.read("plan-a")).entries == ()


@pytest.mark.parametrize(
    "raw",
    [
        *(b"{", b"[]", b'"text"', b"{" + b" " * 70_000 + b"}"),
        *(b'{"by": "\xff"}', b"\xff\xfe", b"\x00", b'{"by": "\xed\xa0\x80"}', b"[" * 60_000),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(world, raw):
    answer = await order(world, "pause", raw=raw)

    assert answer.status == 400
    assert body(answer)["error"].startswith("body: ")


async def test_an_order_for_an_unknown_target_is_refused(world):
    assert (await order(world, "pause", target="plan-x")).status == 404


async def test_an_order_that_keeps_losing_the_race_is_a_conflict(world, monkeypatch):
    tries = []

    async def save(*arguments):
        tries.append(arguments)
        raise ConflictError("changed")

    monkeypatch.setattr(world.ports.states, "save_controls", save)
    monkeypatch.setattr("scaling.storage.orders.PAUSE", 0.0)

    answer = await order(world, "pause", PAUSE)

    assert (answer.status, len(tries)) == (409, ATTEMPTS)
    (entry,) = (await world.ports.log.read("plan-a")).entries
    assert entry.line == (
        "control plan-a: scaling paused for 5 min, by anna: refused, other orders kept arriving"
    )
    assert (await world.ports.states.load("plan-a")).controls.pauses == ()


async def test_an_order_is_given_though_the_state_is_of_a_newer_release(world):
    world.ports.states.rows["plan-a"] = {"state": ("tag", {"Schema": 2})}

    with pytest.raises(NewerStateError):  # what it led to cannot be shown
        await order(world, "pause", PAUSE)

    assert (await world.ports.states.load_controls("plan-a")).controls.pauses


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize(
    ("point", "told", "paused"),
    [
        ("log.append", None, False),
        ("controls.save", "being given", False),
        ("after controls.save", "being given", True),
    ],
)
async def test_an_order_whose_process_dies_is_told_as_of_unknown_outcome(world, point, told, paused):
    def crash(called):
        if called == point.removeprefix("after "):
            raise Crash

    if point.startswith("after"):
        world.ports.states.after = crash
    else:
        world.ports.log.before = world.ports.states.before = crash

    with pytest.raises(Crash):
        await order(world, "pause", PAUSE)

    world.ports.log.before = world.ports.states.before = world.ports.states.after = None
    lines = [entry.line for entry in (await world.ports.log.read("plan-a")).entries]
    assert [line.rpartition(": ")[2] for line in lines] == ([told] if told else [])
    assert bool((await world.ports.states.load("plan-a")).controls.pauses) is paused


async def test_an_order_holds_though_its_last_word_in_the_log_was_lost(world, monkeypatch):
    append, calls = world.ports.log.append, []

    async def once(entries):
        calls.append(entries)
        if len(calls) > 1:
            raise StoreUnavailableError("gone")
        await append(entries)

    monkeypatch.setattr(world.ports.log, "append", once)

    assert (await order(world, "pause", PAUSE)).status == 200
    assert (await world.ports.states.load("plan-a")).controls.pauses


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"direction": "in"}', b'{"for": "5m", "by": "anna"}'])
async def test_a_pause_that_does_not_say_what_and_how_long_is_refused_with_what_is_accepted(world, raw):
    answer = await order(world, "pause", raw=raw)

    assert answer.status == 400
    assert any(
        f"{name}: is missing; accepted are" in body(answer)["error"]
        or "by: is missing" in body(answer)["error"]
        for name in ("direction", "for")
    )
    assert (await world.ports.states.load("plan-a")).controls.pauses == ()


@pytest.mark.parametrize("by", [None, "", "  ", 7, ["anna"], "\n", "x" * 201])
async def test_an_order_has_a_name(world, by):
    answer = await order(world, "resume", {"by": by})

    assert answer.status == 400
    assert body(answer)["error"].startswith("by: ")
    assert (await world.ports.log.read("plan-a")).entries == ()


async def test_a_name_forges_no_line_and_moves_no_cursor(world):
    forged = "anna\n2026-11-21 control plan-a: resumed, by boss\x1b[2J\u202e"

    await order(world, "pause", PAUSE | {"by": forged})

    (entry,) = (await world.ports.log.read("plan-a")).entries
    (pause,) = (await world.ports.states.load("plan-a")).controls.pauses
    for text in (entry.line, entry.by, pause.by):
        assert text.isprintable()
    assert pause.by == "anna 2026-11-21 control plan-a: resumed, by boss\\x1b[2J\\u202e"


async def test_the_signed_in_caller_is_logged_with_their_object_id_and_told_to_the_page(world):
    data = msgspec.json.encode({"by": "boss@example.org"})
    await api.control(world, api.Order("plan-a", "resume", data, Caller("anna@example.org", "0b1c")))

    (entry,) = (await world.ports.log.read("plan-a")).entries
    assert entry.by == "anna@example.org"
    assert entry.line.endswith("by anna@example.org (object 0b1c)")
    assert (
        body(await api.status(world, Caller("anna@example.org", "0b1c")))["signed_in"] == "anna@example.org"
    )
    assert body(await api.status(world))["signed_in"] is None


async def test_the_page_is_told_whether_the_role_gives_orders(world):
    for may_order in (True, False, None):
        seen = await api.status(world, Caller("anna@example.org", "0b1c", may_order))

        assert body(seen)["may_order"] is may_order


def test_a_browser_is_told_on_a_page_why_it_sees_nothing_and_a_program_as_ever():
    refusal = RefusedError(403, "'<anna>' lacks the role")
    shown = api.refused(refusal, "text/html,application/xhtml+xml", sign_in=True)
    forged = api.refused(refusal, "Text/HTML", sign_in=False)
    told = api.refused(refusal, "application/json", sign_in=True)

    text = shown.body.decode()
    assert (shown.status, shown.media_type, shown.headers["Cache-Control"]) == (403, "text/html", "no-store")
    assert "&#x27;&lt;anna&gt;&#x27; lacks the role" in text
    assert 'href="/.auth/logout"' in text
    assert "{{" not in text
    assert "/.auth/" not in forged.body.decode()
    assert (told.status, body(told)) == (403, {"error": "'<anna>' lacks the role"})


def test_whoever_is_not_signed_in_is_sent_there_and_back_to_the_page():
    answer = api.sign_in()

    assert answer.status == 302
    assert answer.headers["Location"] == "/.auth/login/aad?post_login_redirect_uri=%2Fapi%2Fdashboard"


async def test_an_answer_that_takes_longer_than_it_is_kept_is_made_once_all_the_same():
    """An examination takes minutes; it must not begin anew every ten seconds."""
    made, ready, clock = [], asyncio.Event(), [0.0]

    async def make():
        made.append(clock[0])
        await ready.wait()
        return json_response(len(made))

    kept = api.CachedAnswer(5.0, clock=lambda: clock[0])
    first = asyncio.ensure_future(kept.get(make))
    await asyncio.sleep(0)
    clock[0] = 60.0
    second = asyncio.ensure_future(kept.get(make))
    await asyncio.sleep(0)
    ready.set()

    assert (await first).body == (await second).body == b"1"
    clock[0] = 64.9
    assert (await kept.get(make)).body == b"1"  # kept from when it was there
    clock[0] = 65.0
    assert (await kept.get(make)).body == b"2"


async def test_an_answer_for_everybody_is_made_once_in_a_while(world):
    made, clock = [], [0.0]

    async def make():
        made.append(clock[0])
        await asyncio.sleep(0)
        return json_response(len(made))

    kept = api.CachedAnswer(5.0, clock=lambda: clock[0])
    answers = await asyncio.gather(*(kept.get(make) for _ in range(50)))
    clock[0] = 4.9
    answers.append(await kept.get(make))
    assert ({answer.body for answer in answers}, made) == ({b"1"}, [0.0])
    clock[0] = 5.0
    assert (await kept.get(make)).body == b"2"


async def test_a_failure_is_not_kept():
    tries = []

    async def make():
        tries.append(1)
        if len(tries) == 1:
            raise KeyError("first")
        return json_response("second")

    kept = api.CachedAnswer(5.0, clock=lambda: 0.0)
    with pytest.raises(KeyError):
        await kept.get(make)

    assert (await kept.get(make)).body == b'"second"'


async def test_health_says_no_more_than_that_the_store_answers(world):
    answer = await api.health(world)

    assert (answer.status, set(body(answer))) == (200, {"status", "version"})


async def test_health_without_a_store_raises_for_the_503(world, monkeypatch):
    async def load(_target):
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(world.ports.states, "load", load)

    with pytest.raises(StoreUnavailableError):
        await api.health(world)


def test_the_dashboard_is_one_page_without_foreign_addresses():
    answer = api.dashboard()

    text = answer.body.decode()
    assert (answer.status, answer.media_type) == (200, "text/html")
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


async def test_the_state_of_a_target_is_not_touched_by_reading_it(world):
    await report(world, 800.0)
    before = (await world.ports.states.load("plan-a")).state

    await api.status(world)

    assert (await world.ports.states.load("plan-a")).state == before != TargetState()


def draining(world):
    policies = {
        "plan-a": policy_of(target="plan-a", metrics=policy().spec.metrics, drain=DrainSpec(notice=120.0))
    }
    return Autoscaler(
        msgspec.structs.replace(world.config, policies=policies), world.ports, clock=lambda: NOW
    )


async def test_workers_read_their_notice_and_acknowledge_it_once_however_often_they_say_so(world):
    world = draining(world)
    assert body(await api.drain(world, "plan-a"))["state"] == "none"
    await report(world, 20.0)
    notice = body(await api.drain(world, "plan-a"))
    assert (notice["state"], notice["from_capacity"], notice["to_capacity"], notice["needed"]) == (
        "draining",
        3,
        2,
        3,
    )
    assert (notice["deadline"], notice["acknowledged"], notice["goes_anyway"]) == (NOW + 120.0, [], False)

    for worker in ("a", "b", "a"):
        answer = await order(world, "acknowledge", {"notice": notice["notice"], "worker": worker})
        assert answer.status == 200
    shown = body(answer)

    assert (shown["done"], shown["drain"]["acknowledged"]) == ("acknowledged already", ["a", "b"])
    lines = [
        entry.line
        for entry in (await world.ports.log.read("plan-a")).entries
        if entry.kind == LogKind.CONTROL
    ]
    assert len(lines) == 2
    assert any(
        line.startswith(f"control plan-a: drain notice {notice['notice']} acknowledged by worker b")
        for line in lines
    )


async def test_an_acknowledgement_that_comes_too_late_is_told_so_and_keeps_nothing(world):
    world = draining(world)
    await report(world, 20.0, at=NOW - 60.0)
    notice = body(await api.drain(world, "plan-a"))["notice"]
    await report(world, 300.0)

    answer = await order(world, "acknowledge", {"notice": notice, "worker": "a"})
    view = body(await api.drain(world, "plan-a"))

    assert (view["state"], view["notice"], view["acknowledged"]) == ("withdrawn", notice, [])
    assert answer.status == 409
    assert (
        body(answer)["error"]
        == f"notice: found '{notice}', which is over; no notice stands: all go on with their work"
    )


async def test_what_is_no_acknowledgement_and_no_target_is_refused(world):
    assert (await order(world, "acknowledge", {"worker": "a"})).status == 400
    assert (await api.drain(world, "nowhere")).status == 404
