"""Lists of Resource Manager by plain requests: for two of them no SDK has to be installed and loaded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

from azure.core import AsyncPipelineClient
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.policies import AsyncBearerTokenCredentialPolicy, AsyncRetryPolicy, UserAgentPolicy
from azure.core.rest import HttpRequest

from foundation.version import VERSION

AUTOSCALE_VERSION = "2022-10-01"
PERMISSIONS_VERSION = "2022-04-01"

Entry = Mapping[str, Any]


class ArmLists:
    """A client of Resource Manager. Its errors are those of the SDKs: AzureError, with the answer where there is one."""

    def __init__(
        self,
        identity: AsyncTokenCredential,
        *,
        base_url: str,
        credential_scopes: list[str],
        retries: Mapping[str, Any],
        **transport: Any,
    ) -> None:
        """`retries` are those of azure-core's retry policy; `transport` goes to its HTTP client."""
        policies: list[Any] = [
            UserAgentPolicy(f"tidemark/{VERSION}"),
            AsyncRetryPolicy(**retries),
            AsyncBearerTokenCredentialPolicy(identity, *credential_scopes),
        ]
        self._client: AsyncPipelineClient[HttpRequest, Any] = AsyncPipelineClient(
            base_url, policies=policies, **transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    def autoscale_settings(self, scope: str) -> AsyncIterator[Entry]:
        """The Azure Monitor autoscale settings of a subscription or a resource group, by its id."""
        return self._entries(f"{scope}/providers/Microsoft.Insights/autoscalesettings", AUTOSCALE_VERSION)

    def permissions(self, resource_id: str) -> AsyncIterator[Entry]:
        """What the caller may do with a resource: an entry for each role, with `actions` and `notActions`."""
        path = f"{resource_id.strip().rstrip('/')}/providers/Microsoft.Authorization/permissions"
        return self._entries(path, PERMISSIONS_VERSION)

    async def _entries(self, path: str, version: str) -> AsyncIterator[Entry]:
        """All entries, page by page as they are asked for. Raises ValueError for an answer of another form."""
        url = f"{path}?api-version={version}"
        while url:
            answer = await self._client.send_request(HttpRequest("GET", self._client.format_url(url)))
            await answer.read()
            if answer.status_code != 200:
                raise HttpResponseError(response=answer)
            page = answer.json()
            entries = page.get("value") if isinstance(page, dict) else None
            if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
                raise ValueError(f"the answer of {path} is not a list of objects")
            for entry in entries:
                yield entry
            url = str(page.get("nextLink") or "")
