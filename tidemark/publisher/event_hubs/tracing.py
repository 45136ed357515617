"""The trace context of a published event, in its application properties `traceparent` and `tracestate`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from azure.eventhub import EventData, amqp

from tidemark.foundation.tracing.spans import Spans, carries_context
from tidemark.publisher.event_hubs.ports.links import PublishableEvent


def with_context(
    event: PublishableEvent, spans: Spans
) -> tuple[amqp.AmqpAnnotatedMessage, Mapping[str, str]] | None:
    """A copy of the event with the present trace context, and that context; None for an event that carries one already.

    The event itself stays as it is.
    """
    raw = event.raw_amqp_message if isinstance(event, EventData) else event
    if carries_context(raw.application_properties):
        return None
    context = spans.header_for_event()
    carrier = copy.copy(raw)
    properties: dict[str | bytes, Any] = dict(raw.application_properties or {})
    properties.update(context)
    carrier.application_properties = properties
    return (carrier, context) if context else None
