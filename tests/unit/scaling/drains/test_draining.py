"""A scale-in is announced to the workers first: what becomes of it, whatever they answer, whatever is needed meanwhile."""

import asyncio
import re
import sys
import time
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

import msgspec
import pytest

from scaling.analysis.replay import decode_inputs, replay, same
from scaling.config.policy import DrainSpec
from scaling.config.policy_file import load_config
from scaling.decision.orders import ORDERS
from scaling.drains.draining import announced_again_at
from scaling.log_entry import LogKind
from scaling.model import NO_CONTROLS, Controls, Override, Pause, Reason
from scaling.notice import Acknowledged, Drain, DrainEnd
from scaling.service import messages, registry
from scaling.storage.rows import read_target, target_row
from scaling.target_facts import TargetFacts
from tests.support.scaling.runner import MINUTE, NOW, World, at, changed, metric, policy, report
from tidemark.analysis.simulation.driving import evaluate
from tidemark.foundation.errors import OrderError
from tidemark.foundation.settings_reader import ConfigError

LOW, STEADY, HIGH = 20.0, 300.0, 900.0
DRAIN = DrainSpec(notice=120.0)
ANYWAY = DrainSpec(notice=120.0, unacknowledged="scale_in")


def world(drain=DRAIN, *, capacity=3, **changes) -> World:
    fields = {"metrics": {"backlog": metric(span=60.0, min_samples=1)}, "drain": drain} | changes
    made = World(policy(**fields), capacity=capacity)
    made.backlog = LOW
    return made


async def acknowledge(made: World, *workers: str, notice: str = "") -> None:
    drain = (await made.state()).drain
    await made.order(Controls(acknowledged=Acknowledged(notice or drain.notice, workers)))


async def tick_once(made: World) -> None:
    await made.minute()


def acks(*workers, notice=""):
    async def give(made: World) -> None:
        await acknowledge(made, *workers, notice=notice)

    return give


def loads(backlog):
    async def change(made: World) -> None:
        made.backlog = backlog

    return change


def orders(**fields):
    async def give(made: World) -> None:
        await made.order(Controls(**{name: make(made.clock.now) for name, make in fields.items()}))

    return give


async def fails(made: World) -> None:
    async def collect(*, now):
        raise OSError("no answer")

    made.collector.collect = collect


async def sets_maximum(made: World) -> None:
    made.policy = changed(made.policy, maximum=2)


async def nothing(_: World) -> None:
    """Nobody says anything, and nothing changes."""


async def another_process_sees_no_drain(made: World) -> None:
    made.policy = changed(made.policy, drain=None)


ALL = ("a", "b", "c")

# What happens in the minute after the notice of 3 -> 2; then what the platform was set to by minute 2 and minute 6, and how it ended.
TABLE = {
    "all acknowledge": (DRAIN, acks(*ALL), [2], [2], DrainEnd.DONE),
    "one speaks for all": (DRAIN, acks("*"), [2], [2], DrainEnd.DONE),
    "one is missing": (DRAIN, acks("a", "b"), [], [], DrainEnd.UNANSWERED),
    "one says it twice": (
        DRAIN,
        acks("a", "b", "b"),
        [2],
        [2],
        DrainEnd.DONE,
    ),  # orders.acknowledge keeps each once
    "nobody acknowledges": (DRAIN, nothing, [], [], DrainEnd.UNANSWERED),
    "an old notice is acknowledged": (DRAIN, acks(*ALL, notice="plan@0"), [], [], DrainEnd.UNANSWERED),
    "nobody does, and it goes anyway": (ANYWAY, nothing, [], [2, 1], DrainEnd.DONE),
    "all do before it would go anyway": (ANYWAY, acks(*ALL), [2], [2, 1], DrainEnd.DONE),
    "the load is within the target again": (ANYWAY, loads(STEADY), [], [], DrainEnd.WITHDRAWN),
    "the load rises": (ANYWAY, loads(HIGH), [4], [4, 5, 6, 7, 8], DrainEnd.WITHDRAWN),
    "metrics go missing": (ANYWAY, fails, [], [], DrainEnd.WITHDRAWN),
    "it is paused": (ANYWAY, orders(pauses=lambda now: (Pause("kim", now),)), [], [], DrainEnd.WITHDRAWN),
    "dry-run comes": (ANYWAY, orders(dry_run=lambda _: True), [], [], DrainEnd.WITHDRAWN),
    "an override to less": (
        DRAIN,
        orders(override=lambda now: Override(1, "kim", now, now + 3600)),
        [1],
        [1],
        DrainEnd.WITHDRAWN,
    ),
    "an override to more": (
        DRAIN,
        orders(override=lambda now: Override(5, "kim", now, now + 3600)),
        [5],
        [5],
        DrainEnd.WITHDRAWN,
    ),
    "the maximum is lowered below it": (
        DRAIN,
        sets_maximum,
        [],
        [2],
        None,
    ),  # another notice, of the maximum, took its place
    "the policy drains no more": (DRAIN, another_process_sees_no_drain, [], [2, 1], DrainEnd.UNANSWERED),
}


@pytest.mark.parametrize("case", TABLE)
async def test_what_becomes_of_an_announced_scale_in_is_what_the_table_says(case):
    drain, happens, soon, later, end = TABLE[case]
    made = world(drain)
    await tick_once(made)
    notice = (await made.state()).drain
    assert (notice.from_capacity, notice.to_capacity, notice.needed, notice.end) == (3, 2, 3, None)
    assert made.platform.ledger == []

    await happens(made)
    await tick_once(made)
    assert made.platform.ledger == soon
    ends = {}
    for _ in range(4):
        state = await made.state()
        ends[state.drain.notice] = state.drain.end
        await tick_once(made)

    assert made.platform.ledger == later
    assert ends[notice.notice] is end
    for entry in await made.entries(LogKind.DECISION):
        kept = await made.log.get("plan", entry.at, "decision")
        assert same(entry.recommendation, replay(decode_inputs(kept.inputs)))


@pytest.mark.parametrize("seed", range(1, 7))
async def test_whatever_comes_twice_late_or_never_no_scale_in_leaves_before_its_workers_let_it(seed):
    """An hour of loads, answers, lost and doubled messages, and processes that die before they put a message out."""
    random, drain = Random(seed), (DRAIN, ANYWAY)[seed % 2]
    made, carried = world(msgspec.structs.replace(drain, again=180.0), capacity=6), []
    inner, answered, seen = made.scaler.apply, {}, {}

    async def apply(action, *, now):
        if action.to_capacity < action.from_capacity:
            notice = (await made.state()).drain
            assert notice.notice == action.action_id
            enough = len(answered.get(notice.notice, ())) >= notice.needed
            assert enough or (notice.goes_anyway and now >= notice.deadline)
            assert made.backlog == LOW  # what the last report said, too
            carried.append(action)
        return await inner(action, now=now)

    made.scaler.apply = apply
    for minute in range(60):
        if minute % 5 == 0:
            made.backlog = random.choice((LOW, LOW, STEADY, HIGH))
        await made.tick()
        made.metrics *= random.choice((1, 1, 2))
        while made.metrics:
            outcome = await made.autoscaler().evaluate(made.metrics.pop())
            made.actions += outcome.messages * random.choice((0, 1, 1, 2))
        await made.verify()
        random.shuffle(made.actions)
        for message in made.actions[: random.choice((0, 5, 5))]:
            await made.autoscaler().apply(message)
            if random.random() < 0.8:
                made.actions.remove(message)
        notice = (await made.state()).drain
        if notice is not None:
            seen.setdefault(notice.notice, []).append(notice.end)
            told = random.choice((notice.notice, random.choice(list(seen))))
            workers = answered.get(told, ()) if told == notice.notice else ()
            workers += tuple(f"worker-{n}" for n in range(random.choice((0, 3, 6))))
            await acknowledge(made, *dict.fromkeys(workers), notice=told)
            answered = {told: tuple(dict.fromkeys(workers))}
        made.clock.now += MINUTE

    assert carried
    assert len(seen) > 3
    for ends in seen.values():  # what is over stays over, as it ended
        assert len(dict.fromkeys(end for end in ends if end is not None)) <= 1


async def last(made: World):
    return (await made.state()).last


async def test_an_unanswered_notice_is_given_again_after_a_while_and_not_before():
    made, reasons, notices = world(), [], []
    for _ in range(15):
        await made.minute()
        state = await made.state()
        reasons.append(state.last.reason)
        notices.append(state.drain.notice)

    assert reasons == [
        Reason.SCALE_IN,
        Reason.ACTION_PENDING,
        *([Reason.UNANSWERED] * 10),
        Reason.SCALE_IN,
        Reason.ACTION_PENDING,
        Reason.UNANSWERED,
    ]
    assert len(set(notices)) == 2
    assert made.platform.ledger == []


def test_a_notice_of_a_clock_that_ran_a_day_ahead_holds_no_later_one_back():
    ahead = NOW + 86_400.0
    drain = Drain("plan@0", 3, 2, ahead, ahead, ahead, 3, end=DrainEnd.UNANSWERED, ended_at=ahead)

    assert announced_again_at(policy(drain=DRAIN), at(3, drain=drain), NOW) is None
    assert announced_again_at(policy(drain=DRAIN), at(3, drain=drain), ahead + 1.0) == ahead + 600.0


async def test_the_lines_say_for_whom_a_scale_in_waits_and_how_long():
    made = world(ANYWAY)
    await made.minute()
    await acknowledge(made, "a")
    await made.minute()
    waiting = (await last(made)).note
    await made.minute()
    checks = [entry.line for entry in await made.entries()]

    assert waiting.endswith("; 1 of 3 workers have acknowledged, 60 s left, after which it is carried out")
    assert any(
        "is emitted now, for the time of its workers is over, and 1 of 3 workers had acknowledged it" in line
        for line in checks
    )


@pytest.mark.parametrize(
    ("workers", "why"),
    [(ALL, "3 of 3 workers have acknowledged it"), (("*",), "it was acknowledged for all workers")],
)
async def test_the_line_of_what_is_sent_says_who_let_it(workers, why):
    made = world()
    await made.minute()
    await acknowledge(made, *workers)
    await made.minute()

    assert any(f"is emitted now, for {why}" in entry.line for entry in await made.entries())


async def test_need_that_falls_further_leaves_an_announced_scale_in_as_it_was_and_the_rest_follows():
    unit = msgspec.structs.replace(
        policy().spec.rules[0], type="target_per_unit", options={"metric": "backlog", "target": 100.0}
    )
    made = world(rules=(unit,), capacity=5)
    made.backlog = 400.0
    await made.minute()
    made.backlog = 100.0
    await made.minute()
    await acknowledge(made, "*")
    await made.minute()
    await made.minute()

    assert made.platform.ledger == [4]
    drain = (await made.state()).drain
    assert (drain.from_capacity, drain.to_capacity) == (4, 1)


async def test_a_message_that_nobody_should_have_sent_is_not_carried_out_before_the_workers_let_it():
    made = world()
    await made.minute()
    made.actions.append(messages.encode((await made.state()).pending))
    await made.drain()
    assert made.platform.ledger == []

    await acknowledge(made, "*")
    await made.minute()
    assert made.platform.ledger == [2]


async def test_the_checks_send_what_was_acknowledged_too():
    made = world()
    await made.minute()
    await acknowledge(made, *ALL)
    await made.verify()
    await made.drain()

    assert made.platform.ledger == [2]


async def test_a_second_delivery_of_the_report_sends_nothing_that_waits_for_workers():
    made = world()
    await made.tick()
    made.metrics *= 2

    assert [(await made.decide()).messages for _ in range(2)] == [(), ()]


async def test_the_instances_to_remove_are_the_first_of_those_that_acknowledged():
    made = world(facts=TargetFacts(removes_named=True))
    await made.minute()
    assert (await made.state()).drain.needed == 1
    await acknowledge(made, "set_7", "set_2")
    await made.later()

    assert (await made.state()).pending.instances == ("set_7",)


async def test_one_that_speaks_for_all_names_no_instance_and_the_platform_chooses():
    made = world(facts=TargetFacts(removes_named=True))
    await made.minute()
    await acknowledge(made, "*")
    await made.minute()

    assert made.platform.ledger == [2]


async def test_a_notice_lives_as_long_as_its_action_and_is_stored():
    made = world()
    await made.minute()
    state = await made.state()

    assert state.drain.deadline == state.pending.decided_at + 120.0
    assert state.drain.expires_at == state.pending.expires_at == state.pending.decided_at + 600.0 + 120.0
    kept, _, corrupt = read_target(target_row("plan", state, {}))
    assert (kept.drain, corrupt) == (state.drain, ())


async def test_after_an_outage_an_unanswered_notice_is_over_and_nothing_was_carried_out():
    made = world(ANYWAY)
    await made.minute()
    made.clock.now += 3_600.0
    await made.minute()

    assert made.platform.ledger == []  # what was decided an hour ago; it is announced anew
    assert (await made.state()).drain.at == made.clock.now


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({}, "notice: is missing"),
        ({"notice": "plan@1"}, "worker: is missing"),
        ({"notice": "plan@1", "worker": 7}, "worker: found 7"),
        ({"notice": "plan@1", "worker": "x" * 301}, "of 1 to 300 characters"),
        ({"notice": "plan@1", "worker": "a", "for": "1h"}, "for: is not accepted here"),
    ],
)
def test_what_is_no_acknowledgement_is_refused_in_words(order, words):
    with pytest.raises(OrderError, match=words):
        ORDERS["acknowledge"](NO_CONTROLS, order, policy(), by="a", now=NOW)


def test_each_worker_counts_once_for_one_notice_only():
    controls = NO_CONTROLS
    for notice, worker in (("plan@1", "a"), ("plan@1", "b"), ("plan@1", "a"), ("plan@2", "c")):
        before = controls
        order = {"notice": notice, "worker": worker}
        controls, _ = ORDERS["acknowledge"](controls, order, policy(), by=worker, now=NOW)

    assert before.acknowledged == Acknowledged("plan@1", ("a", "b"))
    assert controls.acknowledged == Acknowledged("plan@2", ("c",))


GROUP = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers"
COSMOS = f"{GROUP}/Microsoft.DocumentDB/databaseAccounts/a/sqlDatabases/d/containers/c"
SHOP = f"{GROUP}/Microsoft.App/containerApps/shop"
PAGE = (Path(__file__).parents[4] / "docs" / "draining.md").read_text(encoding="utf-8")


class Worker:
    """The example of the page, as a worker runs it, and what it asked."""

    def __init__(self, monkeypatch):
        for name, value in {"TIDEMARK_URL": "https://app", "TIDEMARK_KEY": "k", "HOSTNAME": "me"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("WEBSITE_INSTANCE_ID", raising=False)
        self.notice, self.posted = {"state": "none"}, []
        broken = type("RequestException", (Exception,), {})
        self.broken = broken
        requests = SimpleNamespace(RequestException=broken, get=self.get, post=self.post)
        monkeypatch.setitem(sys.modules, "requests", requests)
        (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        self.names = {}
        exec(compile(example, "draining.md", "exec"), self.names)

    def get(self, url, **_):
        if self.notice is None:
            raise self.broken("no answer")
        return SimpleNamespace(json=lambda: self.notice)

    def post(self, url, *, json, **_):
        self.posted.append((url, json))
        raise self.broken("the answer is lost")


def test_the_worker_of_the_page_keeps_what_it_promised_and_goes_on_when_the_notice_is_over(monkeypatch):
    worker = Worker(monkeypatch)
    ask = worker.names["may_take_messages"]
    draining = {"state": "draining", "notice": "plan@1", "expires_at": time.time() + 600.0}

    assert ask(0)
    worker.notice = None
    assert ask(0)  # it has promised nothing
    worker.notice = draining
    assert (ask(1), worker.posted) == (False, [])
    assert not ask(0)
    assert worker.posted == [
        ("https://app/api/scaling/plan-orders/acknowledge", {"notice": "plan@1", "worker": "me", "by": "me"})
    ]
    worker.notice = None
    assert not ask(0)  # what it has promised
    worker.notice = draining | {"state": "withdrawn"}
    assert ask(0)
    worker.notice = draining | {"expires_at": time.time() - 1.0}
    assert ask(0)


def test_the_policies_of_the_page_are_accepted_without_an_error():
    resource = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/Microsoft."
    settings = {
        "AzureWebJobsStorage": "x",
        "WORKERS_ID": f"{resource}Compute/virtualMachineScaleSets/workers",
    }
    rest = """
[targets.workers.metrics.backlog]
collector = "storage_queue"
connection = "AzureWebJobsStorage"
queue = "orders"
[[targets.workers.rules]]
type = "target_per_unit"
metric = "backlog"
target = 5
"""
    _, example = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    read = partial(load_config, name="tidemark.toml", settings=settings, plug_ins=registry)
    spec = read(example + rest).policies["workers"].spec

    assert (spec.drain, spec.facts.removes_named) == (DrainSpec(notice=600.0), True)
    for wrong, words in (
        (
            example.replace("[targets.workers.drain]\nnotice", "[targets.workers.in]\ncooldown"),
            "needs a table `drain`",
        ),
        (example.replace('"10m"', '"2d"'), "at most 86400 s are accepted"),
        (example.replace('"10m"', '"10m"\nunacknowledged = "never"'), "accepted are hold, scale_in"),
    ):
        with pytest.raises(ConfigError, match=words):
            read(wrong + rest)


@pytest.mark.parametrize(
    ("scaler", "unit"),
    [
        (f'scaler = "cosmos_throughput"\nresource_id = "{COSMOS}"', "RU/s"),
        (f'scaler = "azure_resource"\nkind = "container_app_minimum"\nresource_id = "{SHOP}"', "replicas"),
    ],
)
def test_what_counts_no_workers_cannot_be_drained(scaler, unit):
    text = f"""
[targets.t]
{scaler}
maximum = 4000
drain = {{ notice = "1m" }}
[[targets.t.rules]]
type = "schedule"
periods = [{{ from = "08:00", to = "18:00", floor = 400 }}]
"""
    with pytest.raises(ConfigError, match=f"sets a number of {unit}, which is not that of workers"):
        load_config(text, name="tidemark.toml", settings={}, plug_ins=registry)


def test_a_simulated_scale_in_is_there_at_once():
    made = policy(metrics={"backlog": metric(span=60.0, min_samples=1)}, drain=DRAIN)
    *_, state, decided, action = evaluate(made, {}, at(3), report(LOW, 3))

    assert (decided.reason, action.to_capacity, state.drain) == (Reason.SCALE_IN, 2, None)


async def test_the_log_says_of_no_scale_in_that_was_carried_out_that_it_was_withdrawn():
    """An evaluation withdraws it, and before that is saved another process begins it: what was logged is not what happened."""
    made = world()
    await made.minute()
    await acknowledge(made, *ALL)
    (message,) = (await made.later()).messages
    made.backlog = STEADY
    made.clock.now += MINUTE
    await made.tick()
    save = made.states.save

    async def begun_meanwhile(*arguments):
        made.states.save = save
        await made.autoscaler().apply(message)
        await save(*arguments)

    made.states.save = begun_meanwhile
    await made.drain()

    assert made.platform.ledger == [2]
    lines = [entry.line for entry in await made.entries() if "withdrawn" in entry.line]
    assert [line.endswith(": not done, for another process was faster") for line in lines] == [True]
    effects = [entry.effect.outcome for entry in await made.entries(LogKind.EFFECT)]
    assert effects == ["applied"]


async def test_the_log_says_of_no_scale_in_that_a_check_found_due_that_it_was_sent_where_it_was_not():
    made = world()
    await made.minute()
    await acknowledge(made, *ALL)
    save = made.states.save

    async def evaluated_meanwhile(*arguments):
        made.states.save = save
        made.clock.now += MINUTE
        await made.tick()
        await made.decide()
        await save(*arguments)

    made.states.save = evaluated_meanwhile
    await made.verify()

    sent = [entry.line for entry in await made.entries() if "is emitted now" in entry.line]
    assert made.actions == []
    assert [line.endswith(": not done, for another process was faster") for line in sent] == [True, False]


async def test_a_delivery_that_refuses_takes_nothing_from_one_that_has_begun_meanwhile():
    """Else its workers would be told to go on while one of them goes."""
    made = world()
    await made.minute()
    await acknowledge(made, *ALL)
    (message,) = (await made.later()).messages
    acknowledged = (await made.states.load("plan")).controls
    await made.order(msgspec.structs.replace(acknowledged, pauses=(Pause("kim", made.clock.now),)))
    append, apply, goes_on, under_way = made.log.append, made.scaler.apply, asyncio.Event(), asyncio.Event()

    async def carried_out(action, *, now):
        under_way.set()
        await goes_on.wait()
        return await apply(action, now=now)

    async def lifted_meanwhile(entries):
        made.log.append = append
        await append(entries)
        await made.order(acknowledged)
        begun.append(asyncio.create_task(made.autoscaler().apply(message)))
        await under_way.wait()

    begun = []
    made.scaler.apply, made.log.append = carried_out, lifted_meanwhile
    refused = await made.autoscaler().apply(message)
    end = (await made.state()).drain.end
    goes_on.set()
    await begun[0]

    assert (end, (await made.state()).drain.end, made.platform.ledger) == (None, DrainEnd.DONE, [2])
    assert "left to another delivery, which began meanwhile" in refused.warnings[0]
    assert [entry.effect.outcome for entry in await made.entries(LogKind.EFFECT)] == ["applied"]
