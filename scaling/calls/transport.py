"""The transport of azure-core's clients: every try of every request waits for the call limiter.

A transport and not a policy, because all SDKs take a transport, and that of Service Bus takes no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from azure.core.pipeline.transport import AioHttpTransport

from scaling.calls.limiter import PATIENCE, limiter_of
from scaling.calls.throttling import ASKS_TO_WAIT
from tidemark.foundation.azure.connections import transport_options
from tidemark.foundation.http.outward import is_of_origin
from tidemark.foundation.pacing.patience import held


class GatedTransport(AioHttpTransport):  # type: ignore[misc]  # loaded lazily there, so without a type
    """Raises what its base does, and CallRefusedError and ValueError, which the retries of azure-core let pass."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        api: str = "",
        patience: float = PATIENCE,
        origin: str = "",
    ) -> None:
        """With an `origin` no other host is called: the SDKs' pagers and pollers follow any link in an answer, and send the
        token along. Raises SettingsError and ValueError naming a setting at fault.
        """
        super().__init__(**transport_options(settings), **held().options_of_commands())
        self._patience = patience
        self._limiter = limiter_of(settings)
        self._api = api
        self._origin = origin

    async def send(self, request: Any, **options: Any) -> Any:
        if self._origin and not is_of_origin(request.url, self._origin):
            host = urlsplit(request.url).hostname
            raise ValueError(f"an answer leads to {host}, where no token of {self._origin} is sent")
        call = await self._limiter.enter(request.method, request.url, self._api, patience=self._patience)
        response = await super().send(request, **options)
        if response.status_code in ASKS_TO_WAIT:
            text = ""
            with suppress(
                Exception
            ):  # a body that cannot be read has no text; the caller meets the same error
                await (response.read() if hasattr(response, "read") else response.load_body())
                text = str(response.text())
            self._limiter.note_answer(call, response.status_code, response.headers, text)
        return response
