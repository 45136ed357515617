"""An autoscaler by its HTTP API: the role Tidemark.Reader, or a key for reading, suffices to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.calls.usage import CallsSeen
from scaling.notices.trial import Answers
from scaling.shadow import report
from scaling.shadow.comparison import ShadowView
from scaling.web.views import LogView, StatusView, TargetView, orders_text
from tidemark.commands.access.protocol import Page
from tidemark.foundation.http.deployed_app import DeployedApp


class ApiAccess:
    """Everything raises AppError."""

    def __init__(self, app: DeployedApp) -> None:
        self._app = app

    async def aclose(self) -> None:
        await self._app.aclose()

    async def test_webhooks(self, webhook: str | None) -> Answers:
        """Raises AppError also for an unknown one."""
        return await self._app.post(("notify", "test"), Answers, {"webhook": webhook})

    async def status(self) -> StatusView:
        return await self._app.get(("scaling", "status"), StatusView)

    async def calls(self) -> CallsSeen:
        return await self._app.get(("scaling", "calls"), CallsSeen)

    async def page(self, target: str | None, since: float, limit: int, continuation: str | None) -> Page:
        """The app subtracts `since` from its own clock."""
        return await self._app.get(
            ("scaling", "log"),
            LogView,
            target=target,
            since=f"{since:.3f}s",
            limit=str(limit),
            continuation=continuation,
        )

    async def shadows(self, target: str | None) -> dict[str, ShadowView]:
        targets = {view.target: view for view in (await self.status()).targets}
        if target is not None:
            report.require_known(target, targets)
            targets = {target: targets[target]}
        return {name: view.shadow for name, view in targets.items() if view.shadow is not None}

    async def order(self, target: str, name: str, fields: Mapping[str, Any], *, by: str) -> str:
        view = await self._app.post(("scaling", target, name), TargetView, {**fields, "by": by})
        return "; ".join(orders_text(view)) or "no order stands"
