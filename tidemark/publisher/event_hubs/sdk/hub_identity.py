"""Which hub it is, by the public names of the SDK."""

from __future__ import annotations

from datetime import UTC

from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import AuthenticationError

from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import LinkError


async def created_at_of(client: EventHubProducerClient) -> str | None:
    """When the hub was created; None where the client may not ask, and where there is no hub. Raises LinkError, worth another attempt."""
    try:
        found = (await client.get_eventhub_properties())["created_at"]
    except AuthenticationError:
        return None  # opening a link says whether it may publish
    except Exception as error:
        if "not-found" in str(error):
            return None  # as above
        story = f"asking for the creation of {client.eventhub_name}: {type(error).__name__}: {error}"
        raise LinkError(FailureKind.NOT_STORED, story, link_lost=False) from error
    # The SDK gives UTC without a zone, from a number of milliseconds.
    return str(found.replace(tzinfo=UTC).isoformat(timespec="milliseconds"))
