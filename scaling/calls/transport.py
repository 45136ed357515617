"""How clients of azure-core send their requests: through the gate, each try of each request.

At the transport, because not every SDK lets its callers add a policy (that of Service Bus does not), and all take a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from azure.core.pipeline.transport import AioHttpTransport

from foundation.azure.connections import transport_options
from scaling.calls.gate import ASKS_TO_WAIT, PATIENCE, gate_of


class GatedTransport(AioHttpTransport):  # type: ignore[misc]  # loaded lazily there, so without a type
    """Raises what its base does, and CallRefusedError, which the retries of azure-core let pass.

    `retry_after` tells the seconds an answer asks for; None where it asks nothing, or asks it of one resource alone: then
    nobody else waits for it.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        retry_after: Callable[[Any], float | None],
        api: str = "",
        patience: float = PATIENCE,
    ) -> None:
        """Raises SettingsError and ValueError naming a setting at fault."""
        super().__init__(**transport_options(settings))
        self._patience = patience
        self._gate = gate_of(settings)
        self._api = api
        self._retry_after = retry_after

    async def send(self, request: Any, **options: Any) -> Any:
        call = await self._gate.enter(request.method, request.url, self._api, patience=self._patience)
        response = await super().send(request, **options)
        if response.status_code in ASKS_TO_WAIT:
            with suppress(Exception):  # a body that does not come has no text; whoever asked meets that, too
                await (response.read() if hasattr(response, "read") else response.load_body())
            self._gate.heard(call, response.status_code, self._retry_after(response))
        return response
