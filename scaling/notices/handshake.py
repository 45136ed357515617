"""Whether a receiver lets this app send: the validation handshake of CloudEvents' HTTP Web Hooks for Event Delivery 1.0."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from scaling.config.notify_table import Webhook
from tidemark.foundation.http.callers import HOSTNAME
from tidemark.foundation.http.outward import AddressError, Outward
from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.secrets.known import hide_address

ORIGIN = "WebHook-Request-Origin"
"""Header of the question and of every message: the DNS name of who sends."""

RATE = 20
"""Messages a minute that a webhook gets at most: ten each half a minute."""


class Leave(Struct, frozen=True):
    """What a receiver answered: `allowed` is the origin it lets send, if any; `rate` what it wants at most in a minute."""

    status: int
    allowed: str = ""
    rate: str = ""

    def holds_for(self, origin: str) -> bool:
        """Whether it lets `origin` send. The status says nothing about it."""
        return self.allowed == "*" or self.allowed.casefold() == origin.casefold()


def origin_of(settings: Mapping[str, str]) -> str:
    return settings.get(HOSTNAME, "").strip() or "localhost"


async def asked_leave(webhook: Webhook, settings: Mapping[str, str], outward: Outward) -> Leave:
    """Asks the receiver. Raises AddressError for an address that is not called, UnavailableError where no answer came."""
    answer = await outward.ask(
        "OPTIONS",
        setting_of(webhook, webhook.url_setting, settings),
        setting=f"app setting {webhook.url_setting}",
        headers=extra_headers(webhook, settings)
        | {ORIGIN: origin_of(settings), "WebHook-Request-Rate": str(RATE)},
        body=None,
        limit=0,
    )
    answers = (answer.headers.get(f"WebHook-Allowed-{name}", "") for name in ("Origin", "Rate"))
    allowed, rate = (sanitize_line(text.strip())[:200] for text in answers)
    return Leave(answer.status, allowed, rate)


def extra_headers(webhook: Webhook, settings: Mapping[str, str]) -> dict[str, str]:
    """Those that the configuration adds. Raises AddressError for an app setting that is not set."""
    return {name: setting_of(webhook, setting, settings) for name, setting in webhook.headers.items()}


def setting_of(webhook: Webhook, name: str, settings: Mapping[str, str]) -> str:
    value = settings.get(name, "").strip()
    if not value:
        raise AddressError(f"app setting {name} of webhook '{webhook.name}' is not set")
    hide_address(value)
    return value
