"""The process dies before and after each call between a change and the webhook that is told of it, once each."""

from tests.faults.test_crash_at_every_step import CrashAt, surviving, world
from tests.support.scaling.runner import MINUTE
from tests.support.servers.webhooks import People

LOAD = (900.0, 900.0, 20.0, 20.0, 300.0)
ON_THE_WAY = {"state.save", "scaler.apply", "outbox.put", "outbox.waiting", "outbox.save", "webhook"}


async def play(crash):
    """A load with notices sent twice a minute; then quiet minutes in which what waits for another try is sent."""
    people, played = People(), world()
    played.announcer = people.announcer
    hooked = (*played.ports_hooked, people.outbox, people.receiver)
    for port in hooked:
        port.before, port.after = crash.before, crash.after
    lives = []

    async def send():
        await people.announcer.send(played.clock.now)

    for backlog in LOAD:
        played.backlog = backlog
        for work in (played.tick, played.drain, send, played.verify, played.drain, send):
            await surviving(work, lives=lives)
        played.clock.now += MINUTE
    return people, played, len(lives)


async def test_a_crash_at_any_step_loses_no_notice_and_makes_up_none():
    quiet = CrashAt(-1)
    people, played, _ = await play(quiet)
    steps = quiet.seen
    assert len(people.receiver.requests) == len(played.platform.ledger) == 2
    assert {"before outbox.put", "after outbox.save", "after webhook"} <= set(steps)

    for position, step in enumerate(steps):
        if step.partition(" ")[2] not in ON_THE_WAY:
            continue
        people, played, lives = await play(CrashAt(position))
        state = await played.state()

        where = f"crash at {position}: {step}"
        assert lives == 1, where
        told = {event["id"] for event in people.receiver.told()}
        assert told == {f"scaled:{effect.action_id}" for effect in state.effects}, where
        bodies = {body for _, _, body in people.receiver.requests}
        assert len(bodies) == len(told), where  # what is sent again is the same, byte for byte
        assert len(people.receiver.requests) <= len(told) + 1, where
        assert state.telling is None, where
