"""Receivers are asked whether they want to be sent to, where that is configured; and every message says who sends."""

import msgspec

from tests.support.servers.webhooks import OPS, SETTINGS, People, notice

NOW = 1_800_000_000.0
SITE = {**SETTINGS, "WEBSITE_HOSTNAME": "func.azurewebsites.net"}
ASKING = msgspec.structs.replace(OPS, handshake=True)


async def sent(people, now=NOW):
    await people.announcer.put([notice(f"n{now}")], now=now)
    return await people.announcer.send(now)


async def test_a_message_says_who_sends_and_nobody_is_asked_unless_that_is_configured():
    people = People(settings=SITE)

    await sent(people)

    assert people.receiver.asked == []
    assert people.receiver.requests[0][1]["WebHook-Request-Origin"] == "func.azurewebsites.net"


async def test_a_receiver_that_allows_it_is_asked_once_a_day():
    people = People(ASKING, settings=SITE)
    for start, allowed in ((NOW, "*"), (NOW + 100_000.0, "Func.azurewebsites.net")):
        people.receiver.answers["ops.example"] = (200, {"WebHook-Allowed-Origin": allowed})
        for now in (start, start + 60.0, start + 86_000.0):
            assert (await sent(people, now))[1] == ()

    headers = {"WebHook-Request-Origin": "func.azurewebsites.net", "WebHook-Request-Rate": "20"}
    assert people.receiver.asked == [("ops.example", headers)] * 2
    assert len(people.receiver.requests) == 6


async def test_nothing_is_sent_to_a_receiver_that_does_not_allow_it():
    people = People(ASKING, settings=SITE)
    for answered, told in (({}, "nobody"), ({"WebHook-Allowed-Origin": "other.example"}, "'other.example'")):
        people.receiver.answers["ops.example"] = (200, answered)
        _, (warning,) = await sent(people, NOW + 600.0 * len(people.receiver.asked))
        assert f"lets {told} send, not 'func.azurewebsites.net' (OPTIONS answered 200)" in warning

    assert people.receiver.requests == []
    people.receiver.answers["ops.example"] = (200, {"WebHook-Allowed-Origin": "*"})
    await people.announcer.send(NOW + 9_000.0)
    assert len(people.receiver.requests) == 2  # they waited
