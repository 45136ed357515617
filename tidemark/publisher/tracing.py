"""The spans of what sends to Event Hubs and to Service Bus."""

from __future__ import annotations

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.tracing.names import EVENT_HUBS, Mode
from tidemark.foundation.tracing.spans import Spans, environment_mode, spans
from tidemark.publisher.errors import PublishSettingsError


def spans_of(destination: str, *, on: bool | None, system: str = EVENT_HUBS) -> Spans:
    """The spans of a sender; None asks TIDEMARK_TRACING in the environment. Raises PublishSettingsError."""
    try:
        mode = environment_mode() if on is None else Mode.ON if on else Mode.OFF
        return spans(mode, destination, system=system)
    except SettingsError as error:
        raise PublishSettingsError(str(error)) from error
