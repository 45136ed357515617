"""Asks when a queue or topic was created, with public names of the SDK. That needs the right Manage."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tidemark.foundation.azure.connections import Endpoint

_log = logging.getLogger(__name__)
_TIMEOUT = 5.0  # seconds; chosen: a firewall may let only AMQP through, and sending works without the answer


async def entity_created_at(
    endpoint: Endpoint, queue: str | None, topic: str | None, transport: dict[str, Any]
) -> str | None:
    """When the entity was created, which distinguishes it from a later one of the same name.

    None where this connection lacks the right Manage, or the administration API cannot be reached.
    """
    client: Any = endpoint.client(ServiceBusAdministrationClient, retry_total=0, **transport)
    try:
        async with asyncio.timeout(_TIMEOUT), client:
            if queue is not None:
                properties = await client.get_queue_runtime_properties(queue)
            else:
                properties = await client.get_topic_runtime_properties(topic)
            return str(properties.created_at_utc.isoformat())
    except Exception as error:  # sending works without it
        _log.debug("the creation time of %s is unknown: %s", queue or topic, error)
        return None
