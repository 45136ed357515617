"""Chooses between private and public names of azure-servicebus.

A sender uses private names in the checked version until one fails; from then on it uses public names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any

from tidemark.publisher.sdk_insides import CHANGED_SDK_ERRORS, reason_against_insides
from tidemark.publisher.service_bus.core.errors import UnsendableMessageError
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import Outgoing
from tidemark.publisher.service_bus.core.send_steps import Answer, Transfer
from tidemark.publisher.service_bus.sdk import public_sdk
from tidemark.publisher.service_bus.sdk.public_sdk import REQUEST_OVERHEAD, PublicEncoder

SDK = "7.15."

_log = logging.getLogger(__name__)


class SdkWay:
    """The choice of one sender between private and public names."""

    def __init__(self, *, sdk_insides: bool) -> None:
        self.insides: Any = None  # the module of private names
        reason = reason_against_insides("azure-servicebus", SDK, wanted=sdk_insides)
        if reason is not None:
            _log.info("sending with the public names of azure-servicebus: %s", reason)
            return
        try:
            self.insides = import_module("tidemark.publisher.service_bus.sdk.link")
        except CHANGED_SDK_ERRORS as error:
            self.drop(error)

    @property
    def is_private(self) -> bool:
        return self.insides is not None

    def drop(self, error: BaseException) -> None:
        self.insides = None
        _log.warning(
            "a private name of azure-servicebus failed; the sender uses public names from now on",
            exc_info=error,
        )


class _Chosen:
    """Two implementations: over private names while these work, and over public names."""

    def __init__(self, way: SdkWay, public: Any, private: Callable[[], Any]) -> None:
        self._way = way
        self._public = self._private = public
        if way.is_private:
            try:
                self._private = private()
            except CHANGED_SDK_ERRORS as error:
                way.drop(error)

    @property
    def chosen(self) -> Any:
        return self._private if self._way.is_private else self._public


class Encoder(_Chosen):
    """Encodes and measures the messages of one call; see publisher.service_bus.sdk.encoding.MessageEncoder."""

    def __init__(self, way: SdkWay, *, schedule_at: datetime | None = None, **options: Any) -> None:
        options["schedule_at"] = self.schedule_at = schedule_at
        super().__init__(way, PublicEncoder(**options), lambda: way.insides.Encoder(**options))

    def measure(self, message: Any, index: int, limits: Limits) -> Outgoing:
        """Raises OversizedMessageError or UnsendableMessageError."""
        chosen = self.chosen
        try:
            item: Outgoing = chosen.measure(message, index, limits)
        except UnsendableMessageError as error:
            if chosen is self._public or not isinstance(error.__cause__, CHANGED_SDK_ERRORS):
                raise
            item = self._public.measure(message, index, limits)  # raises if the fault is the message's
            self._way.drop(error.__cause__)
        return item


class Link(_Chosen):
    """Transfers one batch at a time over a sender of the SDK, asynchronous or blocking, which nobody else may use."""

    def __init__(self, way: SdkWay, sender: Any, timeout: float) -> None:
        self.sender = sender
        super().__init__(way, public_sdk.Link(sender, timeout), lambda: way.insides.Link(sender, timeout))

    @property
    def limits(self) -> Limits:
        """As announced when the link was attached."""
        limits: Limits = self.chosen.limits
        return limits

    def request_overhead(self) -> int:
        """Bytes of a scheduling request besides its messages."""
        try:
            return int(self.chosen.request_overhead())
        except CHANGED_SDK_ERRORS as error:
            self._way.drop(error)
            return REQUEST_OVERHEAD

    async def open(self) -> Answer | None:
        """Attach the link unless it is attached. Returns None on success."""
        link = self.chosen
        answer: Answer | None = await link.open()
        return await self.open() if self._is_dropped(link) else answer

    async def transfer(self, effect: Transfer, encoder: Encoder) -> Answer:
        """Transfer once; returns the answer."""
        link = self.chosen
        answer: Answer = await link.transfer(effect, encoder.chosen)
        self._is_dropped(link)
        return answer

    def _is_dropped(self, link: Any) -> bool:
        if link.failure is not None:
            self._way.drop(link.failure)
        return link.failure is not None
