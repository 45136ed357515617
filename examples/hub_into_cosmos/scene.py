"""2,000 real flights and five events that are none: a document each, or a dead letter, by settings alone."""

from __future__ import annotations

from devstack.demo.common import flights
from devstack.demo.streaming.proof import prove
from devstack.demo.streaming.world import Blobs
from examples.stage import Stage

FLIGHTS, POISON = 2_000, 5


async def play(stage: Stage) -> list[str]:
    stack = stage.stack
    hub = stack.event_hubs.ensure_hub("departures", 4, consumer_groups=["tidemark"])
    container = stack.cosmos.create_container("airport", "departures", "/origin", throughput=10_000)
    stage.settings |= {
        "EVENTHUB_NAME": "departures",
        "EVENTHUB_CONSUMERGROUP": "tidemark",
        "COSMOS_DATABASE": "airport",
        "COSMOS_CONTAINER": "departures",
        "CONSUMER_DEAD_LETTER_CONTAINER": "departures-dead-letters",
    }
    events = flights.with_poison(list(flights.bodies(FLIGHTS)), POISON)
    await flights.send(stage.settings["EventHubConnection"], "departures", events, at_once=250)
    await stage.tidemark("consume", "--until", "latest")
    await stage.tidemark("dead-letters", "list")
    blobs = Blobs(stage.settings["AzureWebJobsStorage"], "departures-dead-letters")
    proof = await prove(hub, container, blobs)
    await blobs.aclose()
    assert proof.holds, proof.problems
    return [
        f"{proof.records:,} events: {proof.documents:,} documents as they were sent, {proof.letters} dead letters"
    ]
