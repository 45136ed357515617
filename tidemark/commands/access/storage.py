"""An autoscaler by its tables and queues: the reader's roles on the storage account suffice to look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaling.calls.usage import CallsSeen
from scaling.notices.trial import Answers, tested
from scaling.ports import PoisonMessage
from scaling.service.autoscaler import Autoscaler
from scaling.shadow import report
from scaling.shadow.comparison import ShadowView, shadow_view
from scaling.web.api import calls_seen, carry_out
from scaling.web.views import StatusView, status_view
from tidemark.commands.access.protocol import Page
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.http.callers import NOBODY, named
from tidemark.foundation.wording import did_you_mean


class StorageAccess:
    """`warn` is given what could not be read although the rest can be shown; without it that is raised."""

    def __init__(self, autoscaler: Autoscaler, warn: Callable[[str], None] | None = None) -> None:
        self._autoscaler = autoscaler
        self._warn = warn
        self._known: set[str] = set()

    async def aclose(self) -> None:
        await self._autoscaler.aclose()

    async def test_webhooks(self, webhook: str | None) -> Answers:
        return await tested(self._autoscaler.ports.announcer, webhook, self._autoscaler.clock())

    async def status(self) -> StatusView:
        """Raises StoreUnavailableError."""
        config, ports = self._autoscaler.config, self._autoscaler.ports
        snapshots = await ports.states.load_all(config.policies)
        poison: tuple[int, Any] = (0, tuple[PoisonMessage]())
        try:
            poison = await ports.poison.peek()
        except StoreUnavailableError as error:  # a right of its own; the targets can be shown without
            if self._warn is None:
                raise
            self._warn(f"poison messages are not known: {error}")
        return status_view(config, snapshots, poison, now=self._autoscaler.clock())

    async def calls(self) -> CallsSeen:
        """Raises StoreUnavailableError."""
        return await calls_seen(self._autoscaler)

    async def page(self, target: str | None, since: float, limit: int, continuation: str | None) -> Page:
        """Raises StoreUnavailableError."""
        if target is not None and target not in self._known:
            await self._require_known(target)
            self._known.add(target)
        after = self._autoscaler.clock() - since
        return await self._autoscaler.ports.log.read(
            target, since=after, limit=limit, continuation=continuation
        )

    async def _require_known(self, target: str) -> None:
        """A target that is configured, or was: its entries stay. Orders for consumers are logged as `consumer NAME`."""
        policies = self._autoscaler.config.policies
        if target in policies or (await self._autoscaler.ports.log.read(target, limit=1)).entries:
            return
        known = did_you_mean(target, policies, f"configured are {', '.join(list(policies)[:20])}")
        raise ValueError(f"found '{target}', of which the log has nothing; {known}")

    async def shadows(self, target: str | None) -> dict[str, ShadowView]:
        policies = report.those_with_shadows(self._autoscaler.config.policies, target)
        snapshots = await self._autoscaler.ports.states.load_all(policies)
        seen = {
            n: shadow_view(policies[n], snapshot.state, snapshot.controls)
            for n, snapshot in snapshots.items()
        }
        return {name: view for name, view in seen.items() if view is not None}

    async def order(self, target: str, name: str, fields: Mapping[str, Any], *, by: str) -> str:
        """Raises ConflictError when other orders kept winning, StoreUnavailableError."""
        policy = self._autoscaler.config.policies.get(target)
        if policy is None:
            raise ValueError(
                f"TARGET: found {target!r}; accepted are {', '.join(self._autoscaler.config.policies)}"
            )
        who, logged_name = named(NOBODY, by)
        return await carry_out(self._autoscaler, policy, name, fields, by=who, name_in_log=logged_name)
