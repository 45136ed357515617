"""Which queue or topic it is, by the public names of the SDK: the service does not tell senders, only who may manage it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tidemark.foundation.azure.connections import Endpoint

_log = logging.getLogger(__name__)
_WITHIN = (
    5.0  # seconds; it is worth knowing, and not worth waiting for where a firewall lets only AMQP through
)


async def entity_created_at(
    endpoint: Endpoint, queue: str | None, topic: str | None, transport: dict[str, Any]
) -> str | None:
    """When the entity was created, which tells it from a later one of the same name; None where this connection may not ask
    (it takes the right Manage) or the administration API cannot be reached.
    """
    client: Any = endpoint.client(ServiceBusAdministrationClient, retry_total=0, **transport)
    try:
        async with asyncio.timeout(_WITHIN), client:
            if queue is not None:
                found = await client.get_queue_runtime_properties(queue)
            else:
                found = await client.get_topic_runtime_properties(topic)
            return str(found.created_at_utc.isoformat())
    except Exception as error:  # noqa: BLE001 - whatever it is: it is not known, and sending needs it not
        _log.debug("the creation of %s is not known: %s", queue or topic, error)
        return None
