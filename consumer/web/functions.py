"""The blueprint of the consumer's functions; CONSUMER_HOSTING says which of them this app has.

off: none; the consumer runs elsewhere, or not at all (the default).
slices: `consume_slice`, a timer; each run receives for CONSUMER_SLICE seconds and stops in order.
trigger: `consume_events`, the Event Hubs trigger; each batch is settled before the invocation returns.

Log lines are emitted on the invocation's own task and those it started: the host drops lines it cannot attribute.
"""

from __future__ import annotations

import asyncio
import os
import typing

import azure.functions as func

from consumer.config import read_hosting, read_slice
from consumer.web.trigger_events import from_trigger
from tidemark.foundation.sanitize import raise_without_secrets

HOSTING = read_hosting(os.environ)

blueprint = func.Blueprint()  # type: ignore[no-untyped-call]  # the SDK has no annotation there


async def consume_slice(timer: func.TimerRequest) -> None:
    """Consumes for CONSUMER_SLICE. The next run continues from the checkpoints; leases keep overlapping runs apart."""
    from consumer.definition.loading import load_definition
    from consumer.running.hubs import run_slice

    seconds = read_slice(
        os.environ
    )  # first, because it reports an invalid CONSUMER_HOSTING, which is read as slices
    with raise_without_secrets():
        await run_slice(load_definition(os.environ), seconds=seconds)


async def consume_events(events: typing.List[func.EventHubEvent]) -> None:
    """Settles every event of one partition's batch, or raises: then the retry policy brings the batch again."""
    from consumer.running.hosted import hosted

    deadline = asyncio.get_running_loop().time() + read_slice(os.environ)
    partition, received = from_trigger(events)
    with raise_without_secrets():
        await hosted(os.environ).settle(partition, received, deadline=deadline)


if HOSTING == "slices":
    blueprint.timer_trigger(
        arg_name="timer", schedule="%CONSUME_SCHEDULE%", run_on_startup=False, use_monitor=True
    )(consume_slice)
elif HOSTING == "trigger":
    blueprint.event_hub_message_trigger(
        arg_name="events",
        event_hub_name="%EVENTHUB_NAME%",
        consumer_group="%EVENTHUB_CONSUMERGROUP%",
        connection="EventHubConnection",
        cardinality=func.Cardinality.MANY,
        data_type=func.DataType.BINARY,  # as text, bodies that are not UTF-8 would come spoilt
    )(
        blueprint.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:05")(
            consume_events
        )
    )
