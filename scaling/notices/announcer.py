"""Sends what waits in the outbox, webhook by webhook: saved as tried, sent, saved as done.

Whatever dies in between, the message is sent again with the same id. A webhook that does not answer is left for this round
at its first message, and holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from scaling.config.notify_table import Notify, Webhook
from scaling.config.policy import Policy
from scaling.notice import Notice, NoticeKind, QueuedNotice
from scaling.notices.handshake import ORIGIN, asked_leave, extra_headers, origin_of, setting_of
from scaling.notices.outbox import MAX_TRIES, due, fold_flood, with_next_try
from scaling.notices.payloads import Sender, key_bytes, message_of, signed
from scaling.ports import Outbox, PoisonQueues
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.http.callers import SITE
from tidemark.foundation.http.outward import AddressError, Answer, Outward, check_address, trusted_hosts
from tidemark.foundation.sanitize import describe_error, one_line
from tidemark.foundation.secrets.known import hide_address
from tidemark.foundation.settings_reader import Problem
from tidemark.foundation.wording import count_text

QUEUE = "notices"
"""Its poison queue takes what was given up. There is no queue of that name."""

AT_ONCE = 10
"""Messages that one webhook gets in a round."""

ROUND_SECONDS = 45.0
"""Of one webhook in a round, which begins anew half a minute or more later."""

ALLOWED_SECONDS = 86_400.0
"""How long what a receiver allowed is relied on, by one process."""

KEPT_SECONDS = 90_000.0
"""How long it is remembered what arrived. Nobody hands in a notice again after so long: a target is evaluated once a day or
more often, and a state has its notices until it is saved the next time.
"""

CLEAN_SECONDS = 3_600.0
"""How often an outbox in which nothing waits is cleaned. Chosen: a reminder of what stays may come an hour late."""


def sender_of(policies: Mapping[str, Policy], settings: Mapping[str, str]) -> Sender:
    """As the messages name it. A resource id is an option of most scalers."""
    ids = {name: policy.spec.scaler_options.get("resource_id") for name, policy in policies.items()}
    resources = {name: resource_id for name, resource_id in ids.items() if isinstance(resource_id, str)}
    return Sender(settings.get(SITE, "").strip() or "local", resources)


def unusable(notify: Notify, settings: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the app settings that webhooks name; none of their values is shown."""
    trusted, texts = trusted_hosts(settings), list[Problem]()
    for webhook in notify.webhooks.values():
        problems = list[str]()
        named = {webhook.url_setting, webhook.key_setting, *webhook.headers.values()} - {None, ""}
        for name in named:
            hide_address(settings.get(str(name), "").strip())
        missing = sorted(str(name) for name in named if not settings.get(str(name), "").strip())
        problems += [f"app setting '{name}' is not set" for name in missing]
        try:
            if webhook.url_setting and webhook.url_setting not in missing:
                check_address(
                    settings[webhook.url_setting].strip(), f"app setting {webhook.url_setting}", trusted
                )
            if webhook.key_setting is not None and webhook.key_setting not in missing:
                _key(webhook, settings[webhook.key_setting])
        except AddressError as error:
            problems.append(str(error))
        texts += [Problem(f"notify.webhooks.{webhook.name}", text) for text in problems]
    return texts


class Delivered(Struct, frozen=True):
    """What became of one try: `status` of the answer, if there was one; `problem`, in words, where it did not arrive."""

    status: int | None = None
    problem: str | None = None
    retry_after: float | None = None
    answered: bool = True


class Announcer:
    """One per process."""

    def __init__(
        self,
        notify: Notify,
        outbox: Outbox,
        poison: PoisonQueues,
        settings: Mapping[str, str],
        sender: Sender,
        *,
        outward: Outward | None = None,
    ) -> None:
        self.notify = notify
        self._outbox = outbox
        self._poison = poison
        self._settings = settings
        self._sender = sender
        self._outward = outward or Outward(settings)
        self._allowed_until: dict[str, float] = {}
        self._clean_at: dict[str, float] = {}

    async def aclose(self) -> None:
        await self._outward.aclose()
        await self._outbox.aclose()

    async def put(self, notices: Sequence[Notice], *, now: float | None = None) -> None:
        """Hands notices to the outboxes of those who want them. Raises StoreUnavailableError."""
        for webhook in self.notify.webhooks.values():
            wanted = [notice for notice in notices if webhook.wants(notice)]
            if wanted:
                newest = max(notice.at for notice in wanted)
                await self._outbox.put(webhook.name, wanted, now=newest if now is None else now)

    async def send(self, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Sends what is due. Returns lines and warnings; whatever goes wrong with one webhook is a warning."""
        rounds = await asyncio.gather(
            *(self._guarded(webhook, now) for webhook in self.notify.webhooks.values())
        )
        lines = tuple(line for lines, _ in rounds for line in lines)
        return lines, tuple(warning for _, warnings in rounds for warning in warnings)

    async def _guarded(self, webhook: Webhook, now: float) -> tuple[list[str], list[str]]:
        lines: list[str] = []
        warnings: list[str] = []
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                await self._round(webhook, now, lines, warnings)
        except TimeoutError:
            warnings.append(f"notify {webhook.name}: no end of a round within {ROUND_SECONDS:g} s")
        except Exception as error:  # one webhook's trouble is no other's
            warnings.append(f"notify {webhook.name}: {describe_error(error)}")
        return lines, warnings

    async def _round(self, webhook: Webhook, now: float, lines: list[str], warnings: list[str]) -> None:
        queue = {waiting.notice.id: waiting for waiting in await self._outbox.waiting(webhook.name)}
        while webhook.counts_floods and (rows := fold_flood(queue.values())):
            await self._outbox.save(webhook.name, rows)
            queue.update((row.notice.id, row) for row in rows)
        if not queue and now < self._clean_at.get(webhook.name, 0.0):
            return
        self._clean_at[webhook.name] = now + CLEAN_SECONDS
        sent = 0
        for queued in due(queue.values(), now, AT_ONCE):
            begun = with_next_try(queued, now)
            await self._outbox.save(webhook.name, [begun])
            delivered = await self.deliver(webhook, begun.notice, now)
            if delivered.problem is None:
                await self._outbox.save(webhook.name, [structs.replace(begun, done=True)])
                sent += 1
                continue
            warnings.append(await self._failed(webhook, begun, delivered, now))
            if not delivered.answered:
                break
        if sent:
            lines.append(f"notify {webhook.name}: {count_text(sent, 'message')} delivered")
        await self._outbox.forget(webhook.name, before=now - KEPT_SECONDS)

    async def _failed(self, webhook: Webhook, queued: QueuedNotice, delivered: Delivered, now: float) -> str:
        """Keeps what did not arrive for its next try, or for people to look at. Returns the warning."""
        text = f"notify {webhook.name}: {queued.notice.id}: {delivered.problem} (try {queued.tries} of {MAX_TRIES})"
        if queued.tries < MAX_TRIES:
            if delivered.retry_after is not None:
                await self._outbox.save(webhook.name, [with_next_try(queued, now, delivered.retry_after)])
            return text
        if queued.notice.kind is not NoticeKind.POISON:  # else each failed notice would cause another
            body = {"webhook": webhook.name, "problem": delivered.problem, "notice": queued.notice}
            await self._poison.put(QUEUE, msgspec.json.encode(body).decode())
        await self._outbox.save(webhook.name, [structs.replace(queued, done=True)])
        return f"{text}; it is given up"

    async def deliver(self, webhook: Webhook, notice: Notice, now: float) -> Delivered:
        """One request. Nothing is raised that a receiver or its settings can be the cause of."""
        try:
            if webhook.handshake and (refusal := await self._refusal(webhook, now)) is not None:
                return Delivered(problem=refusal, answered=False)
            message = message_of(webhook, notice, self._sender)
            headers = message.headers | extra_headers(webhook, self._settings)
            headers[ORIGIN] = origin_of(self._settings)
            if webhook.key_setting is not None:
                key = _key(webhook, setting_of(webhook, webhook.key_setting, self._settings))
                headers |= signed(message, notice.id, key, now)
            answer = await self._outward.ask(
                "POST",
                setting_of(webhook, webhook.url_setting, self._settings),
                setting=f"app setting {webhook.url_setting}",
                headers=headers,
                body=message.body,
                limit=0,
            )
        except TidemarkError as error:  # unreachable, or not to be called
            return Delivered(problem=one_line(str(error)), answered=False)
        return _read(answer)

    async def _refusal(self, webhook: Webhook, now: float) -> str | None:
        """Why a receiver that has to allow it does not let this app send; None while it does."""
        if now < self._allowed_until.get(webhook.name, 0.0):
            return None
        leave, origin = await asked_leave(webhook, self._settings, self._outward), origin_of(self._settings)
        if not leave.holds_for(origin):
            allowed = f"'{leave.allowed}'" if leave.allowed else "nobody"
            return f"lets {allowed} send, not '{origin}' (OPTIONS answered {leave.status})"
        self._allowed_until[webhook.name] = now + ALLOWED_SECONDS
        return None


def _key(webhook: Webhook, text: str) -> bytes:
    try:
        return key_bytes(text)
    except ValueError as error:
        raise AddressError(f"app setting {webhook.key_setting} {error}") from None


def _read(answer: Answer) -> Delivered:
    if 200 <= answer.status < 300:
        return Delivered(answer.status)

    elsewhere = "; redirects are not followed" if 300 <= answer.status < 400 else ""
    busy = answer.status in {408, 429} or answer.status >= 500
    wait = retry_after(answer.headers)
    return Delivered(
        answer.status,
        f"answered {answer.status}{elsewhere}",
        wait if wait and wait > 0 else None,
        answered=not busy,
    )
