"""By which names of azure-servicebus a sender works: private ones where they are known, public ones otherwise.

Private names are used until they fail for the first time; what was not sent then goes out by public ones.
"""

from __future__ import annotations

import logging
from datetime import datetime
from importlib import import_module
from typing import Any

from publisher.sdk_insides import CHANGED, why_not
from publisher.service_bus.core.errors import UnsendableMessageError
from publisher.service_bus.core.packing import Limits
from publisher.service_bus.core.send_report import Outgoing
from publisher.service_bus.core.send_steps import Answer, Transfer
from publisher.service_bus.sdk import public_sdk
from publisher.service_bus.sdk.public_sdk import REQUEST_OVERHEAD, PublicEncoder

SDK = "7.15."

_log = logging.getLogger(__name__)
_LINKS, _SIZES = "publisher.service_bus.sdk.link", "publisher.service_bus.sdk.message_sizes"


class SdkWay:
    """The choice of one sender."""

    def __init__(self, *, sdk_insides: bool) -> None:
        self.links: Any = None  # modules of private names
        self.sizes: Any = None
        reason = why_not("azure-servicebus", SDK, wanted=sdk_insides)
        if reason is not None:
            _log.info("sending with the public names of azure-servicebus: %s", reason)
            return
        try:
            self.links, self.sizes = import_module(_LINKS), import_module(_SIZES)
        except CHANGED as error:
            self.drop(error)

    @property
    def is_private(self) -> bool:
        return self.links is not None and self.sizes is not None

    def drop(self, error: BaseException) -> None:
        self.links = self.sizes = None
        _log.warning("azure-servicebus is used by its public names from now on", exc_info=error)


class Encoder:
    """Encodes and measures the messages of one call; see publisher.service_bus.sdk.encoding.MessageEncoder."""

    def __init__(self, way: SdkWay, **options: Any) -> None:
        self._way = way
        self.public = PublicEncoder(**options)
        self.private: Any = None
        if way.is_private:
            try:
                self.private = way.sizes.Encoder(**options)
            except CHANGED as error:
                way.drop(error)

    def measure(self, message: Any, index: int, limits: Limits) -> Outgoing:
        """Raises OversizedMessageError or UnsendableMessageError."""
        if not self._way.is_private:
            return self.public.measure(message, index, limits)
        try:
            found: Outgoing = self.private.measure(message, index, limits)
        except UnsendableMessageError as error:
            if not isinstance(error.__cause__, CHANGED):
                raise
            found = self.public.measure(message, index, limits)  # raises if the fault is the message's
            self._way.drop(error.__cause__)
        return found


class Link:
    """One transfer at a time over a sender of the SDK, asynchronous or blocking, which is its own from now on."""

    def __init__(self, way: SdkWay, sender: Any, timeout: float) -> None:
        self.sender = sender
        self._way = way
        self._timeout = timeout
        self._public: Any = public_sdk.Link(sender, timeout)
        self._private: Any = None
        if way.is_private:
            try:
                self._private = way.links.Link(sender, timeout)
            except CHANGED as error:
                way.drop(error)

    @property
    def limits(self) -> Limits:
        """As announced when the link was attached."""
        link = self._private if self._way.is_private else self._public
        limits: Limits = link.limits
        return limits

    def request_overhead(self) -> int:
        """Bytes that a request that schedules takes beside its messages."""
        if self._way.is_private:
            try:
                return int(self._way.links.request_overhead(self.sender, self._timeout))
            except CHANGED as error:
                self._way.drop(error)
        return REQUEST_OVERHEAD

    def _is_dropped(self) -> bool:
        """Whether private names have just failed."""
        if self._private.failure is not None:
            self._way.drop(self._private.failure)
        return not self._way.is_private

    async def open(self) -> Answer | None:
        """Attach the link unless it is attached; None if that went well."""
        answer: Answer | None = await self._private.open() if self._way.is_private else None
        if not self._way.is_private or self._is_dropped():
            answer = await self._public.open()
        return answer

    async def transfer(self, effect: Transfer, encoder: Encoder, schedule_at: datetime | None) -> Answer:
        """Send it once, and say what came of it."""
        answer: Answer
        if self._way.is_private:
            answer = await self._private.transfer(effect, encoder.private, schedule_at)
            self._is_dropped()
        else:
            answer = await self._public.transfer(effect, encoder.public, schedule_at)
        return answer
