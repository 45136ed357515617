"""OpenTelemetry's names for messaging, as opentelemetry-semantic-conventions 0.66b2 has them. The only place that spells them. Pure.

All of them are "Development": newer texts call the system `messaging.system.name` = `azure.eventhubs`, which no Python package has yet.
"""

from __future__ import annotations

import re
from enum import StrEnum

SETTING = "TIDEMARK_TRACING"


class Mode(StrEnum):
    OFF = "off"
    ON = "on"
    """Spans go to the provider that the process has set up."""
    OTLP = "otlp"
    """A worker sets up a provider that exports by OTLP, as OpenTelemetry's own settings say."""


SYSTEM, EVENT_HUBS, SERVICE_BUS = "messaging.system", "eventhubs", "servicebus"
OPERATION_NAME, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
CONSUMER_GROUP = "messaging.consumer.group.name"
COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"

OPERATION_TYPES = {
    "create": "create",
    "send": "send",
    "receive": "receive",
    "process": "process",
    "checkpoint": "settle",
}
"""By the name of an operation, which begins the name of its span: `process flights`."""

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
DIAGNOSTIC_ID = "Diagnostic-Id"
"""What Azure's SDKs wrote before `traceparent`, and still write beside it."""

MOST_LINKS = 128
"""The default of OpenTelemetry's SDK; what is beyond it would be dropped by it."""

_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(text: object) -> bool:
    """Whether the text is a trace context of W3C, version 00. Old .NET senders wrote others, which are ignored."""
    return isinstance(text, str) and _FORM.fullmatch(text) is not None
