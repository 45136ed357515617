"""Which notices come of what happens to a target, in the whole autoscaler over fakes."""

from dataclasses import dataclass

import msgspec
import pytest

from scaling.calls.noting import Noted
from scaling.calls.usage import CallsView
from scaling.config.notify_table import CHOSEN, Notify
from scaling.config.policy import DrainSpec, Pace
from scaling.model import Capacity, Controls, EffectRecord, Override, Reason, Refused, Spent, TargetState
from scaling.notice import Drain, Notice, NoticeKind, QueuedNotice, Telling
from scaling.notices.events import KEPT, announced, poison_notice
from scaling.notices.outbox import fold_flood
from scaling.ports import CollectError, PoisonMessage
from scaling.service import shell
from scaling.service.shell import Outcome
from tests.support.scaling.runner import MINUTE, NOW, World, changed, metric, policy
from tests.support.servers.webhooks import People, notice
from tidemark.foundation.errors import StoreUnavailableError


@dataclass
class Scene:
    people: People
    world: World

    async def minutes(self, count, backlog=None):
        for _ in range(count):
            if backlog is not None:
                self.world.backlog = backlog
            await self.world.minute()
            await self.people.announcer.send(self.world.clock.now)

    def told(self):
        return [
            (event["type"].rpartition(".")[2], event["data"]["text"]) for event in self.people.receiver.told()
        ]

    def data(self):
        return [event["data"] for event in self.people.receiver.told()]


def scene(**changes):
    fields = {
        "metrics": {"backlog": metric(span=120.0, min_samples=2)},
        "inward": Pace(cooldown=600.0),
    } | changes
    people = People(held_after=600.0, missing_after=300.0)
    return Scene(people, World(policy(**fields), announcer=people.announcer))


async def test_a_change_is_told_with_the_line_of_its_decision():
    happened = scene()

    await happened.minutes(4, 900.0)

    (kind, text), *_ = happened.told()
    assert kind == "scaled"
    assert text.startswith("plan went out, 2 -> 3: scaling plan out 2 -> 3: average backlog 900 > 500")
    data = happened.data()[0]
    assert (data["current"], data["desired"], data["reached"], data["reason"]) == (2, 3, 3, "scale_out")
    assert data["decision_id"] == happened.people.receiver.told()[0]["id"].removeprefix("scaled:")


async def test_more_is_wanted_than_there_may_be_for_long_and_then_no_more():
    happened = scene(maximum=2)

    await happened.minutes(20, 900.0)
    await happened.minutes(5, 300.0)

    held, over = happened.told()
    assert held[1].startswith("for 10 min: scaling plan hold 2: at maximum (maximum 2): 3 wanted, 2 allowed")
    assert over == ("held", "plan: over after 20 min")
    begun, ended = happened.people.receiver.told()
    assert ended["id"] == f"{begun['id']}:ended"
    assert ended["data"]["ended"] is True
    assert ended["data"]["since"] == begun["data"]["since"]


async def test_metrics_that_are_missing_for_long_are_told_once():
    happened = scene()
    await happened.minutes(3, 300.0)

    def fail():
        raise CollectError("no answer")

    happened.world.collector.read = fail
    await happened.minutes(12)

    assert [kind for kind, _ in happened.told()] == ["metrics_missing"]
    assert happened.told()[0][1].startswith("for 5 min: ")


async def test_a_short_hold_is_not_told():
    happened = scene(maximum=2)

    await happened.minutes(8, 900.0)
    await happened.minutes(8, 300.0)
    await happened.minutes(8, 900.0)

    assert happened.told() == []


async def test_a_external_change_is_told_once_whoever_finds_it():
    happened = scene(external_hold=900.0)
    await happened.minutes(3, 300.0)

    happened.world.platform.capacity = 7
    await happened.world.verify()
    await happened.minutes(3)
    await happened.world.verify()
    await happened.people.announcer.send(happened.world.clock.now)

    assert happened.told() == [("external_change", "plan: expected 2, found 7: somebody else changed it")]


def before_and_after(*, before=None, after=None):
    people = People()
    base = {"expected": 2, "capacity": Capacity(2, NOW)}
    changed = announced(
        people.notify, "plan", TargetState(**base | (before or {})), TargetState(**base | (after or {}))
    )
    return [] if changed.telling is None else list(changed.telling.notices)


async def pending_of_a_scale_out():
    happened = scene()
    happened.world.backlog = 900.0
    for _ in range(3):
        happened.world.clock.now += MINUTE
        await happened.world.tick()
        outcome = await happened.world.decide()
        if outcome.messages:
            break
    return (await happened.world.state()).pending


async def test_a_refusal_of_the_platform_and_an_action_without_effect():
    pending = await pending_of_a_scale_out()
    assert pending is not None
    refused = Refused(2, 3, NOW, "no quota for this SKU")

    (told,) = before_and_after(before={"pending": pending}, after={"refused": refused})
    assert (told.kind, told.text) == ("refused", "plan: 2 -> 3 was refused: no quota for this SKU")
    (told,) = before_and_after(before={"pending": pending})
    assert (told.kind, told.text) == ("failed", "plan: 2 -> 3 was given up before it took effect")
    assert before_and_after(before={"pending": pending}, after={"pending": pending}) == []
    assert before_and_after(before={"pending": pending}, after={"expected": 3}) == []


async def test_what_a_platform_says_is_told_without_secrets_and_as_text_that_can_be_stored():
    pending = await pending_of_a_scale_out()
    refused = Refused(2, 3, NOW, "cut in a sign \ud83d; AccountKey=" + "QUJD" * 12 + "==")

    (told,) = before_and_after(before={"pending": pending}, after={"refused": refused})

    assert told.text == "plan: 2 -> 3 was refused: cut in a sign \\ud83d; AccountKey=***"
    assert msgspec.json.decode(msgspec.json.encode(told), type=Notice) == told


@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), ValueError("cannot be encoded")])
async def test_an_outbox_that_takes_nothing_keeps_no_target_from_being_decided(error, caplog):
    happened = scene()
    happened.people.outbox.before = raising("outbox.put", error)

    await happened.minutes(4, 900.0)
    assert happened.world.platform.capacity > 3
    assert f"did not take them: {type(error).__name__}: {error}" in caplog.text

    happened.people.outbox.before = None
    await happened.minutes(1)
    assert [kind for kind, _ in happened.told()][:2] == ["scaled", "scaled"]


async def test_an_outbox_that_takes_nothing_keeps_no_check_from_its_end():
    happened = scene()
    happened.world.poison.queues = ("metrics",)
    happened.world.poison.messages["metrics"] = [(NOW, "broken")]
    happened.people.outbox.before = raising("outbox.put", ValueError("cannot be encoded"))

    outcome = await happened.world.autoscaler().verify()

    assert any("poison queues: 1 message" in warning for warning in outcome.warnings)


def raising(call, error):
    def fail(name):
        if name == call:
            raise error

    return fail


async def test_an_action_that_made_way_for_an_override_is_no_failure():
    happened = scene()
    happened.world.backlog = 900.0
    for _ in range(2):
        happened.world.clock.now += MINUTE
        await happened.world.tick()
        await happened.world.decide()
    assert (await happened.world.state()).pending is not None

    now = happened.world.clock.now
    await happened.world.order(Controls(override=Override(6, "me", now, now + 3600.0)))
    await happened.minutes(2)

    assert [kind for kind, _ in happened.told()] == ["scaled"]
    assert happened.data()[0]["reached"] == 6


@pytest.mark.parametrize(("before", "count"), [(None, 1), (False, 1), (True, 0)])
def test_a_budget_that_will_not_last_is_told_once_a_day(before, count):
    spent = Spent(NOW, NOW, NOW + 60.0, 5.0, 2, 2.0, warned=True)
    known = None if before is None else Spent(NOW, NOW, NOW, 5.0, 2, 2.0, warned=before)

    told = before_and_after(before={"spent": known}, after={"spent": spent})

    assert [each.kind for each in told] == ["budget"] * count


def test_effects_that_were_known_are_not_told_again():
    effects = (EffectRecord(NOW, 2, 3, None, "plan@1"), EffectRecord(NOW, 3, 4, None, ""))

    assert before_and_after(before={"effects": effects}, after={"effects": effects}) == []


def test_a_state_holds_a_bounded_number_of_notices():
    many = Telling(tuple(notice(f"n{i}") for i in range(KEPT)))
    effects = (EffectRecord(NOW, 2, 3, None, "plan@1"),)

    (told,) = before_and_after(after={"telling": many, "effects": effects})

    assert told.counts == {"scaled": KEPT + 1}


def test_of_too_many_notices_of_a_state_those_that_workers_wait_for_stay():
    drains = tuple(Notice(f"drain:{n}", NoticeKind.DRAIN, "plan", NOW, "") for n in range(KEPT))
    drain = Drain("plan@9", 3, 2, NOW, NOW + 60, NOW + 600, 3)

    several, *kept = before_and_after(after={"telling": Telling(drains), "drain": drain})

    assert several.counts == {"drain": KEPT - 1}
    assert [each.id for each in kept] == [drains[-1].id, "drain:plan@9"]


def test_poison_is_told_anew_when_it_is_others():
    messages = [
        PoisonMessage("metrics-poison", "a", None, "?"),
        PoisonMessage("metrics-poison", "b", None, "?"),
    ]

    first = poison_notice("x", messages, 2, NOW)

    assert poison_notice("x", messages[::-1], 2, NOW + 60.0).id == first.id
    assert poison_notice("x", messages[:1], 2, NOW).id != first.id
    assert poison_notice("x", messages, 3, NOW).id != first.id


async def test_what_lies_in_the_poison_queues_is_told_by_the_checks():
    happened = scene()
    happened.world.poison.queues = ("metrics",)
    happened.world.poison.messages["metrics"] = [(NOW, "broken")]

    for _ in range(3):
        await happened.world.verify()
        await happened.people.announcer.send(happened.world.clock.now)

    assert happened.told() == [("poison", "poison queues: 1 message in metrics-poison")]


async def test_a_budget_of_calls_that_does_not_suffice_is_told_once_a_day():
    happened = scene()
    view = CallsView("service_bus", "b.servicebus.windows.net", 50, 5.0, 600, 9000, 40, 400)

    class Calls:
        async def note(self, _now):
            return Noted(("a line",), ("a warning",), (view,))

    made = Outcome(("a message",), ("b",))
    ports = msgspec.structs.replace(happened.world.autoscaler().ports, calls=Calls())
    outcome = await shell.with_call_usage(ports, NOW, made)

    assert outcome == Outcome(("a message",), ("b", "a line"), ("a warning",))
    assert "calls" in CHOSEN
    await shell.with_call_usage(ports, NOW + 60.0, made)
    await happened.people.announcer.send(NOW)
    assert [event["id"] for event in happened.people.receiver.told()] == [
        "calls:service_bus:b.servicebus.windows.net@20270115"
    ]


NO_VOTES = {  # what is read each minute; what is told of it, if anything
    "reads that fail": (CollectError("403"), "metrics_missing"),
    "a disabled queue": (CollectError("Disabled", reason=Reason.ENTITY_DISABLED), "held"),
    "a window that fills": (300.0, "held"),
}


@pytest.mark.parametrize(("read", "kind"), NO_VOTES.values(), ids=NO_VOTES)
async def test_no_vote_no_data_and_disabled_are_told_as_what_they_are(read, kind):
    happened = scene(metrics={"backlog": metric(span=7200.0, min_samples=100)})

    def answer():
        if isinstance(read, Exception):
            raise read
        return read

    happened.world.collector.read = answer
    await happened.minutes(6)
    early = [found for found, _ in happened.told()]
    await happened.minutes(6)

    assert early == (["metrics_missing"] if kind == "metrics_missing" else [])
    assert [found for found, _ in happened.told()] == [kind]
    state = await happened.world.state()
    assert (state.missing_since is not None) is (kind == "metrics_missing")


async def test_a_drain_notice_is_sent_with_its_deadline_and_again_when_it_is_over():
    happened = scene(
        metrics={"backlog": metric(span=60.0, min_samples=1)}, inward=Pace(), drain=DrainSpec(notice=180.0)
    )

    await happened.minutes(2, 20.0)
    await happened.minutes(1, 300.0)
    await happened.minutes(1, 20.0)
    await happened.minutes(3)

    told = [event for event in happened.people.receiver.told() if event["type"].endswith(".drain")]
    ids = [event["id"] for event in told]
    assert ids == [ids[0], f"{ids[0]}:ended", ids[2], f"{ids[2]}:ended"]
    assert ids[0] == f"drain:{told[0]['data']['decision_id']}"
    begun, withdrawn, again, unanswered = (event["data"] for event in told)
    assert (begun["current"], begun["desired"], begun["deadline"] - begun["at"]) == (2, 1, 180.0)
    assert begun["text"].startswith("plan: 2 -> 1 is announced to workers: acknowledge it by 2027-")
    assert (withdrawn["reason"], withdrawn["ended"]) == ("withdrawn", True)
    assert (again.get("ended", False), unanswered["reason"]) == (False, "unanswered")
    assert not {"failed", "refused"} & {kind for kind, _ in happened.told()}


async def test_after_two_evaluations_without_a_drain_the_state_holds_no_notice_of_one():
    """Release 0.2.0 cannot read a state that holds one: docs/deploying/releases.md says how to go back."""
    happened = scene(
        metrics={"backlog": metric(span=60.0, min_samples=1)}, inward=Pace(), drain=DrainSpec(notice=180.0)
    )
    await happened.minutes(1, 20.0)
    assert [each.kind for each in (await happened.world.state()).telling.notices] == [NoticeKind.DRAIN]
    happened.world.policy = changed(happened.world.policy, drain=None)

    await happened.minutes(2, 300.0)

    telling = (await happened.world.state()).telling
    assert telling is None or NoticeKind.DRAIN not in {each.kind for each in telling.notices}


@pytest.mark.parametrize(
    ("effects", "reason", "text", "reached"),
    [
        ((), "withdrawn", "5 -> 2 is withdrawn: all go on", None),
        ((EffectRecord(NOW, 5, 2, None, "plan@1"),), "done", "5 -> 2 is done: whoever is left", 2),
        ((EffectRecord(NOW, 5, 3, None, "plan@1"),), "done", "5 -> 2 has ended at 3: whoever is left", 3),
    ],
)
def test_another_notice_in_the_same_save_ends_the_one_before(effects, reason, text, reached):
    first = Drain("plan@1", 5, 2, NOW, NOW + 60, NOW + 600, 5)
    before = TargetState(drain=first)
    after = TargetState(drain=msgspec.structs.replace(first, notice="plan@2", to_capacity=1), effects=effects)

    notices = announced(Notify(), "plan", before, after).telling.notices
    over, begun = (each for each in notices if each.kind is NoticeKind.DRAIN)

    assert [over.id, begun.id] == ["drain:plan@1:ended", "drain:plan@2"]
    assert (over.reason, over.reached) == (reason, reached)
    assert over.text.startswith(f"plan: {text}")


def test_drain_notices_are_not_folded_into_a_count_for_a_worker_waits_for_them():
    queue = [
        QueuedNotice(Notice(f"drain:{n}", NoticeKind.DRAIN, f"plan-{n}", NOW, ""), NOW) for n in range(30)
    ]

    assert fold_flood(queue) == ()
