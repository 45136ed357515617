"""What waits for a webhook: floods are counted, tries are bounded, a dead webhook slows no other."""

import json

import msgspec

from scaling.config.notify_table import Webhook
from scaling.notice import NoticeKind, QueuedNotice
from scaling.notices.outbox import MAX_TRIES, fold_flood, replace_by_one
from tests.support.servers.webhooks import OPS, People, notice

NOW = 1_800_000_000.0
OTHER = Webhook("other", "OTHER_URL")
BOTH = {"OPS_URL": "https://ops.example/", "OTHER_URL": "https://other.example/"}
UNSIGNED = msgspec.structs.replace(OPS, key_setting=None)


async def test_a_flood_becomes_one_message_that_counts():
    people = People()
    flood = [
        notice(f"n{i}", NOW + i, NoticeKind.METRICS_MISSING, f"plan-{i % 300:03d}") for i in range(1_000)
    ]
    await people.announcer.put([*flood, notice("out", NOW - 1)])

    lines, warnings = await people.announcer.send(NOW)

    (event,) = people.receiver.told()
    assert event["type"] == "tidemark.scaling.several"
    assert event["data"]["counts"] == {"metrics_missing": 1_000, "scaled": 1}
    assert event["data"]["targets"][:2] == ["plan", "plan-000"]
    assert event["data"]["text"].startswith(
        "1001 notices: 1000 metrics_missing, 1 scaled; among the targets: plan, "
    )
    assert (event["data"]["since"], warnings) == (NOW - 1, ())
    assert lines == ("notify ops: 1 message delivered",)
    assert not await people.outbox.waiting("ops")


async def test_what_was_tried_keeps_its_id_in_a_flood():
    tried = QueuedNotice(notice("tried"), NOW, tries=1)

    rows = fold_flood([tried, *(QueuedNotice(notice(f"n{i}"), NOW) for i in range(11))])

    assert sum(not row.done for row in rows) == 1
    assert tried.notice.id not in {row.notice.id for row in rows}
    assert fold_flood([tried, *(QueuedNotice(notice(f"n{i}"), NOW) for i in range(10))]) == ()


def test_the_one_that_counts_is_made_again_with_the_same_id():
    few = [notice("a"), notice("b")]

    assert replace_by_one(few) == replace_by_one(list(few))
    assert replace_by_one([replace_by_one(few), notice("c")]).counts == {"scaled": 3}


async def test_a_dead_webhook_is_tried_once_a_round_and_slows_no_other():
    people = People(UNSIGNED, OTHER, settings=BOTH)
    people.receiver.answers["ops.example"] = (None, {})
    await people.announcer.put([notice(f"n{i}", NOW + i) for i in range(5)])

    _, warnings = await people.announcer.send(NOW)

    assert len(people.receiver.told("ops.example")) == 1
    assert len(people.receiver.told("other.example")) == 5
    assert warnings == ("notify ops: scaled:n0: ops.example: no answer within 10 s (try 1 of 12)",)


async def test_one_message_that_is_refused_does_not_hold_up_those_behind_it():
    people = People()
    people.receiver.answers["ops.example"] = (400, {})
    await people.announcer.put([notice("a"), notice("b")])

    _, warnings = await people.announcer.send(NOW)

    assert [event["id"] for event in people.receiver.told()] == ["scaled:a", "scaled:b"]
    assert warnings[0] == "notify ops: scaled:a: answered 400 (try 1 of 12)"


async def rounds(people, now, count):
    for _ in range(count):
        await people.announcer.send(now)
        now += 30.0
    return now


async def test_it_is_tried_again_after_longer_and_longer_times_and_then_given_up_and_told():
    people = People()
    people.receiver.answers["ops.example"] = (503, {})
    await people.announcer.put([notice("a")])

    await rounds(people, NOW, 8 * 120)

    assert len(people.receiver.requests) == MAX_TRIES
    (_, queued) = people.poison.messages["notices"][0]
    assert json.loads(queued)["webhook"] == "ops"
    assert json.loads(queued)["notice"]["id"] == "scaled:a"
    assert (await people.poison.peek())[0] == 1
    assert "c2VjcmV0" not in queued


async def test_a_letter_about_letters_is_no_queued():
    people = People()
    people.receiver.answers["ops.example"] = (503, {})
    await people.announcer.put([notice("a", kind=NoticeKind.POISON, target="")])

    await rounds(people, NOW, 8 * 120)

    assert people.poison.messages == {}
    assert not await people.outbox.waiting("ops")


async def test_a_webhook_says_how_long_to_wait():
    people = People()
    people.receiver.answers["ops.example"] = (429, {"Retry-After": "600"})
    await people.announcer.put([notice("a")])

    await rounds(people, NOW, 20)
    assert len(people.receiver.requests) == 1

    people.receiver.answers.clear()
    await people.announcer.send(NOW + 600.0)

    assert len(people.receiver.requests) == 2
    assert people.receiver.requests[0][1]["webhook-id"] == people.receiver.requests[1][1]["webhook-id"]


async def test_what_arrived_is_not_sent_again_when_it_is_handed_in_again_and_is_forgotten_after_a_day():
    people = People()
    for now in (NOW, NOW + 60.0):
        await people.announcer.put([notice("a")])
        await people.announcer.send(now)
    assert len(people.receiver.requests) == 1

    await people.announcer.put([notice("b", NOW + 90_001.0)])
    await people.announcer.send(NOW + 90_001.0)
    assert list(people.outbox.rows["ops"]) == ["scaled:b"]


async def test_an_outbox_in_which_nothing_waits_is_cleaned_once_an_hour(monkeypatch):
    people, cleaned = People(), []

    async def forget(webhook, *, before):
        cleaned.append(before)

    monkeypatch.setattr(people.outbox, "forget", forget)
    for minute in range(120):
        await people.announcer.send(NOW + 60.0 * minute)

    assert len(cleaned) == 2


async def test_what_a_target_that_is_looked_at_once_a_day_hands_in_again_is_known():
    people = People()
    await people.announcer.put([notice("a")])
    await people.announcer.send(NOW + 15.0)

    await people.announcer.put([notice("of another target", NOW + 86_400.0)])
    await people.announcer.send(NOW + 86_415.0)
    await people.announcer.put([notice("a")])
    await people.announcer.send(NOW + 86_445.0)

    assert [event["id"] for event in people.receiver.told()] == ["scaled:a", "scaled:of another target"]


async def test_of_poison_that_stays_people_are_reminded_once_a_day():
    people = People()

    for minutes in range(0, 3 * 1_440, 5):
        now = NOW + 60.0 * minutes
        await people.announcer.put([notice("a", now, NoticeKind.POISON, "")])
        await people.announcer.send(now)

    assert len(people.receiver.told()) == 3


async def test_filters_choose_by_target_and_kind():
    only = msgspec.structs.replace(UNSIGNED, kinds=frozenset({"held", "poison"}), targets=("plan-*",))
    people = People(only, settings=BOTH)
    kinds = [(NoticeKind.HELD, "plan-a"), (NoticeKind.HELD, "db"), (NoticeKind.SCALED, "plan-a")]
    await people.announcer.put([notice(str(i), kind=kind, target=to) for i, (kind, to) in enumerate(kinds)])
    await people.announcer.put([notice("p", kind=NoticeKind.POISON, target="")])

    await people.announcer.send(NOW)

    assert sorted(event["id"] for event in people.receiver.told()) == ["held:0", "poison:p"]


async def test_a_setting_that_is_missing_or_an_address_that_is_refused_is_a_warning_without_its_value():
    people = People(UNSIGNED, OTHER, settings={"OPS_URL": "https://169.254.169.254/c2VjcmV0"})
    await people.announcer.put([notice("a")])

    _, warnings = await people.announcer.send(NOW)

    assert "app setting OPS_URL: 169.254.169.254 is an address of this machine or its link" in warnings[0]
    assert "app setting OTHER_URL of webhook 'other' is not set" in warnings[1]
    assert "c2VjcmV0" not in repr(warnings)
