"""The doctor's checks of the webhooks of `[notify]`: reachable, signed, and willing to be sent to. No message is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scaling.config.notify_table import Notify, Webhook
from scaling.notices.handshake import Leave, asked_leave, origin_of
from tidemark.foundation.checkup import Check, Finding, Needs, failed, ok, warning
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.http.outward import Outward

NAME = "webhook"


def checks_of(notify: Notify, settings: Mapping[str, str]) -> Iterator[Check]:
    """One for each webhook. Settings that are missing are found before, as part of the configuration."""
    for webhook in notify.webhooks.values():
        yield _check(webhook, settings)


def _check(webhook: Webhook, settings: Mapping[str, str]) -> Check:
    async def call() -> list[Finding]:
        return [_signed(webhook), await _asked(webhook, settings)]

    needs = Needs("an address that may be called", f"app setting {webhook.url_setting}")
    return Check(NAME, webhook.name, needs, call)


def _signed(webhook: Webhook) -> Finding:
    if webhook.key_setting is not None:
        return ok(NAME, webhook.name, f"messages are signed with the key in {webhook.key_setting}")
    if webhook.headers:
        return ok(NAME, webhook.name, f"messages are not signed; they carry {', '.join(webhook.headers)}")
    return warning(
        NAME,
        webhook.name,
        "messages are not signed: the receiver cannot know who sent them",
        f"name an app setting with a key: `key` of [notify.webhooks.{webhook.name}], docs/notifications.md",
    )


async def _asked(webhook: Webhook, settings: Mapping[str, str]) -> Finding:
    try:
        async with Outward(settings) as outward:
            leave = await asked_leave(webhook, settings, outward)
    except UnavailableError as error:
        remedy = "see whether the receiver is up, and whether the app's network and the firewall between let it through"
        return failed(NAME, webhook.name, f"cannot be reached: {error}", remedy)
    return verdict(webhook, leave, origin_of(settings))


def verdict(webhook: Webhook, leave: Leave, origin: str) -> Finding:
    """What a receiver's answer to OPTIONS says. Many know nothing of the handshake, and take what is posted all the same."""
    allowing = f"have the receiver answer OPTIONS with `WebHook-Allowed-Origin: {origin}`"
    if leave.holds_for(origin):
        rate = f", at most {leave.rate} messages a minute" if leave.rate not in {"", "*"} else ""
        return ok(NAME, webhook.name, f"lets {origin} send{rate}")
    if webhook.handshake or leave.allowed:
        permission = f"lets '{leave.allowed}' send" if leave.allowed else "lets nobody send"
        permission = f"{permission}, not '{origin}' (OPTIONS answered {leave.status})"
        if webhook.handshake:
            return failed(NAME, webhook.name, permission, f"{allowing}, or take `handshake` away")
        return warning(NAME, webhook.name, permission, allowing)
    if leave.status >= 500:
        return warning(NAME, webhook.name, f"answered {leave.status}", "see whether the receiver is in order")
    return ok(
        NAME, webhook.name, f"is reached; it takes no part in the handshake (OPTIONS answered {leave.status})"
    )
