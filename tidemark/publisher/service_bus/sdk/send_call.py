"""Parts of a call of the big-batch sender around `tidemark.publisher.service_bus.core.sending`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from msgspec.structs import replace

from tidemark.publisher.errors import PublishRefusedError, PublishSettingsError, PublishUnavailableError
from tidemark.publisher.service_bus.core.errors import PartiallySentError
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import Indices, Outgoing, SendReport
from tidemark.publisher.service_bus.core.send_steps import Answer, Busy
from tidemark.publisher.service_bus.core.sending import Progress, Sending

DEFAULT_TIMEOUT = 60.0  # seconds for one transfer; the SDK's own default is to wait for ever


OnProgress = Callable[[Progress], None]


class Journal(Protocol):
    """Records every transfer, so that after a kill it is known which messages may have been sent. Its methods block."""

    def sending(self, items: Sequence[Outgoing]) -> None:
        """Record a transfer before it begins. If this raises, nothing is sent and the call ends with the error."""

    def answered(self, answer: Answer) -> None:
        """Record the answer. Not called for a transfer that was given up, as after a cancellation."""


class LearnedLimits:
    """The limits that the service announced, lowered by its refusals; kept between calls.

    Requests that schedule have separate limits: they use another link, which announces none.
    """

    def __init__(self, cap: int | None) -> None:
        if cap is not None and cap < 1:
            raise PublishSettingsError(f"limit is {cap}, accepted: 1 or more bytes, or None")
        self._cap = cap
        self._announced: Limits | None = None
        self._learned: dict[bool, Limits] = {}

    def begin(self, announced: Limits, *, scheduled: bool) -> Limits:
        """The limits for a call. Raises PublishSettingsError if the cap exceeds the service's limit."""
        if self._cap is not None and self._cap > announced.batch:
            raise PublishSettingsError(
                f"limit is {self._cap:,} bytes, accepted: up to the {announced.batch:,} that the entity takes"
            )
        if announced != self._announced:  # the first call, or the entity was changed
            self._announced = announced
            self._learned.clear()
        if scheduled not in self._learned:
            batch = min(announced.batch, announced.message) if scheduled else announced.batch
            batch = batch if self._cap is None else min(batch, self._cap)
            self._learned[scheduled] = replace(
                announced, batch=batch, message=0 if scheduled else announced.message
            )
        return self._learned[scheduled]

    def remember(self, limits: Limits, *, scheduled: bool) -> None:
        self._learned[scheduled] = limits

    @property
    def current(self) -> Limits | None:
        """The limits of batches; None before the first call."""
        return self._learned.get(False)


def new_report(session_id: str | None, schedule_at: datetime | None, id_prefix: str | None) -> SendReport:
    """The report of a call that has not begun. Raises PublishSettingsError for a time without a zone."""
    if schedule_at is not None and schedule_at.tzinfo is None:
        raise PublishSettingsError(f"schedule_at is {schedule_at}, accepted: a time with a time zone")
    return SendReport(
        Indices(),
        exhausted=False,
        id_prefix=id_prefix or uuid.uuid4().hex[:16],
        session_id=session_id,
        schedule_at=None if schedule_at is None else schedule_at.astimezone(UTC),
    )


def check_iterable(messages: object) -> None:
    """Raises PublishSettingsError for a single message in place of an iterable of messages.

    A text is an iterable, too, and each character would become a message.
    """
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not hasattr(
        messages, "__aiter__" if hasattr(messages, "__aiter__") else "__iter__"
    ):
        raise PublishSettingsError(
            f"messages is a {type(messages).__name__}, accepted: an iterable of messages, such as a list"
        )


def report_or_raise(sending: Sending, report: SendReport) -> SendReport:
    """The report of a call that has ended.

    Raises the error of the first message if nothing was sent, and PartiallySentError if some messages were.
    """
    if not report.reason:
        return report
    if sending.error is not None and not report.sent and not report.unknown:
        raise sending.error
    raise PartiallySentError(report) from sending.error


def open_error(answer: Answer, entity: str, namespace: str, attempts: int) -> Exception:
    """The error for a link that could not be attached."""
    problem = f"cannot send to '{entity}' of {namespace}: {getattr(answer, 'story', '')}"
    if isinstance(answer, Busy):
        times = f"{attempts} attempt" + "s" * (attempts > 1)
        return PublishUnavailableError(f"{problem} ({times}); nothing was sent")
    return PublishRefusedError(f"{problem}; nothing was sent")
