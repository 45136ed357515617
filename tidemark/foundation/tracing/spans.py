"""Starts spans by the API of OpenTelemetry. Without TIDEMARK_TRACING nothing of it is imported, and `NO_SPANS` does nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import shorten
from tidemark.foundation.tracing import names
from tidemark.foundation.tracing.names import SETTING, Mode
from tidemark.foundation.version import install_hint

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer

TRACER = "tidemark"
_NONE: Mapping[str, str] = {}
_NOTHING: AbstractContextManager[None] = nullcontext()


def read_mode(settings: Mapping[str, str]) -> Mode:
    """Raises SettingsError."""
    text = settings.get(SETTING, "").strip().lower()
    if text and text not in set(Mode):
        raise SettingsError(f"{SETTING} is '{shorten(text, 60)}'; accepted: {', '.join(Mode)}")
    return Mode(text or Mode.OFF)


class _Current:
    on = False
    """Whether any part of this process traces; else nobody has to look up the current span."""


class Spans:
    """Spans about one event hub, queue or topic, in the context of the caller; an off one gives contexts that do nothing."""

    def __init__(
        self,
        tracer: Tracer | None,
        destination: str = "",
        consumer_group: str = "",
        system: str = names.EVENT_HUBS,
    ) -> None:
        self._tracer = tracer
        _Current.on |= tracer is not None
        self._destination = destination
        self._common = {names.SYSTEM: system, names.DESTINATION: destination}
        if consumer_group:
            self._common[names.CONSUMER_GROUP] = consumer_group

    @property
    def are_on(self) -> bool:
        return self._tracer is not None

    def span(
        self,
        operation: str,
        partitions: str | Iterable[str],
        count: int,
        contexts: Iterable[Mapping[Any, Any]] = (),
    ) -> AbstractContextManager[Span | None]:
        """A span that is current within it. It names the one of `partitions`, if it is one; '' is none. `contexts` are properties of the messages that it is about, to be linked."""
        if self._tracer is None:
            return _NOTHING
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - only with tracing

        named = set([partitions] if isinstance(partitions, str) else partitions) - {""}
        kinds = {"receive": SpanKind.CLIENT, "checkpoint": SpanKind.CLIENT, "process": SpanKind.CONSUMER}
        return self._tracer.start_as_current_span(
            f"{operation} {self._destination}",
            kind=kinds.get(operation, SpanKind.PRODUCER),
            links=_links(contexts),
            attributes={
                **self._common,
                names.OPERATION_NAME: operation,
                names.OPERATION_TYPE: names.OPERATION_TYPES[operation],
                **({names.COUNT: count} if count else {}),
                **({names.PARTITION: named.pop()} if len(named) == 1 else {}),
            },
        )

    def header_for_event(self) -> Mapping[str, str]:
        """The trace context that a new event carries: that of the current span, or of a span for its creation."""
        header = current_header()
        if header or self._tracer is None:
            return header
        with self.span("create", "", 1):
            return current_header()


NO_SPANS = Spans(None)


def spans(mode: Mode, destination: str, consumer_group: str = "", system: str = names.EVENT_HUBS) -> Spans:
    """Raises SettingsError if tracing is asked for and opentelemetry-api is not installed."""
    if mode is Mode.OFF:
        return NO_SPANS
    try:
        from opentelemetry.trace import get_tracer  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            f"{SETTING} is '{mode}', but {error.name} is not installed: {install_hint('tracing')}"
        ) from error
    return Spans(get_tracer(TRACER), destination, consumer_group, system)


def current_header() -> Mapping[str, str]:
    """`traceparent`, and `tracestate` if there is one, of the current span; empty without one."""
    if not _Current.on:
        return _NONE
    from opentelemetry.trace import get_current_span  # noqa: PLC0415

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return _NONE
    header = {
        names.TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    }
    state = context.trace_state.to_header()
    return {**header, names.TRACESTATE: state} if state else header


def failed(span: Span | None, reason: str) -> None:
    """Marks a span as failed; `reason` is one word."""
    if span is not None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415

        span.set_status(StatusCode.ERROR)
        span.set_attribute(names.ERROR_TYPE, reason)


def carries_context(properties: Mapping[Any, Any] | None) -> bool:
    """Whether a message has a trace context, which is never overwritten."""
    return any(_text(properties or _NONE, name) for name in (names.TRACEPARENT, names.DIAGNOSTIC_ID))


def _links(contexts: Iterable[Mapping[Any, Any]]) -> list[Link]:
    """A link to each context once, the first ones."""
    from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState  # noqa: PLC0415

    links: dict[str, Link] = {}
    for properties in contexts:
        text = _text(properties, names.TRACEPARENT) or _text(properties, names.DIAGNOSTIC_ID)
        if text in links or not names.is_traceparent(text):
            continue
        _, trace, span, flags = text.split("-")
        header = _text(properties, names.TRACESTATE)
        state = TraceState.from_header([header]) if header else None
        context = SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16)), state)
        links[text] = Link(context)
        if len(links) == names.MOST_LINKS:
            break
    return list(links.values())


def _text(properties: Mapping[Any, Any], name: str) -> str:
    value = properties.get(name, properties.get(name.encode(), ""))
    return (
        value.decode("ascii", "replace")
        if isinstance(value, bytes)
        else value
        if isinstance(value, str)
        else ""
    )


def environment_mode() -> Mode:
    """For a library, which has no settings but the environment. Raises SettingsError."""
    return read_mode(os.environ)
