"""Plain requests to Resource Manager: for a few of them no SDK has to be installed and loaded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

from azure.core import AsyncPipelineClient
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline import AsyncPipeline
from azure.core.pipeline.policies import (
    AsyncBearerTokenCredentialPolicy,
    AsyncRetryPolicy,
    RequestIdPolicy,
    UserAgentPolicy,
)
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.core.polling import AsyncLROPoller
from azure.core.rest import AsyncHttpResponse, HttpRequest
from azure.mgmt.core.polling.async_arm_polling import AsyncARMPolling

from tidemark.foundation.version import VERSION

AUTOSCALE_VERSION = "2022-10-01"
PERMISSIONS_VERSION = "2022-04-01"
THROUGHPUT_VERSION = "2026-03-15"
SITES_VERSION = "2024-04-01"

Entry = Mapping[str, Any]


class ArmRequests:
    """A client of Resource Manager. Its errors are those of the SDKs: AzureError, with the answer where there is one."""

    def __init__(
        self,
        identity: AsyncTokenCredential,
        *,
        base_url: str,
        credential_scopes: list[str],
        retries: Mapping[str, Any],
        transport: AsyncHttpTransport[HttpRequest, AsyncHttpResponse],
    ) -> None:
        """`retries` are those of azure-core's retry policy. `transport` sends no token to another host."""
        policies: list[Any] = [
            RequestIdPolicy(),  # the polling repeats it
            UserAgentPolicy(f"tidemark/{VERSION}"),
            AsyncRetryPolicy(**retries),
            AsyncBearerTokenCredentialPolicy(identity, *credential_scopes),
        ]
        self._pipeline: AsyncPipeline[HttpRequest, AsyncHttpResponse] = AsyncPipeline(transport, policies)
        self._client: AsyncPipelineClient[HttpRequest, AsyncHttpResponse] = AsyncPipelineClient(
            base_url, pipeline=self._pipeline
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    def autoscale_settings(self, scope: str) -> AsyncIterator[Entry]:
        """The Azure Monitor autoscale settings of a subscription or a resource group, by its id."""
        return self.entries(f"{scope}/providers/Microsoft.Insights/autoscalesettings", AUTOSCALE_VERSION)

    def permissions(self, resource_id: str) -> AsyncIterator[Entry]:
        """What the caller may do with a resource: an entry for each role, with `actions` and `notActions`."""
        path = f"{resource_id.strip().rstrip('/')}/providers/Microsoft.Authorization/permissions"
        return self.entries(path, PERMISSIONS_VERSION)

    async def sign_in(self, site_id: str) -> Entry:
        """How the platform signs people in to an app: its authsettingsV2, without secrets."""
        answer = await self._got(f"{site_id}/config/authsettingsV2", SITES_VERSION)
        return _object(answer, "properties")

    async def throughput(self, resource_id: str) -> Entry:
        """What is provisioned of a Cosmos DB database or container, and its limits."""
        answer = await self._got(f"{resource_id}/throughputSettings/default", THROUGHPUT_VERSION)
        return _object(_object(answer, "properties"), "resource")

    async def set_throughput(self, resource_id: str, resource: Entry, *, poll_interval: float) -> None:
        """Asks for it once, and waits until the operation is done, `poll_interval` seconds between two looks where the
        platform names none.
        """
        url = f"{resource_id}/throughputSettings/default?api-version={THROUGHPUT_VERSION}"
        body = {"properties": {"resource": resource}}
        # No second PUT by the client: whoever asks reads back what became of the first one.
        begun = await self._pipeline.run(
            HttpRequest("PUT", self._client.format_url(url), json=body), retry_total=0
        )
        if begun.http_response.status_code not in {200, 202}:
            await begun.http_response.read()
            raise HttpResponseError(response=begun.http_response)
        polling = AsyncARMPolling(poll_interval)
        await AsyncLROPoller(self._client, begun, lambda _: None, polling).result()

    async def _got(self, path: str, version: str) -> Any:
        """The JSON of an answer. Raises HttpResponseError for another one than 200."""
        url = self._client.format_url(f"{path}?api-version={version}" if version else path)
        answer = await self._client.send_request(HttpRequest("GET", url))
        await answer.read()
        if answer.status_code != 200:
            raise HttpResponseError(response=answer)
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the answer of {path} is no JSON") from error

    async def entries(self, path: str, version: str) -> AsyncIterator[Entry]:
        """All entries of a list, page by page as they are asked for. Raises ValueError for an answer of another form, for a
        list that goes on in a circle, and, by the transport, for one that goes on at another host.
        """
        url, seen = path, set[str]()
        while url:
            seen.add(url)
            page = await self._got(url, version)
            entries = page.get("value") if isinstance(page, dict) else None
            if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
                raise ValueError(f"the answer of {path} is not a list of objects")
            for entry in entries:
                yield entry
            url, version = str(page.get("nextLink") or ""), ""  # which has one
            if url in seen:
                raise ValueError(f"the list {path} goes on in a circle; it is not followed")


def _object(answer: Any, name: str) -> Entry:
    """Raises ValueError for an answer of another form."""
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"the answer holds no object '{name}'")  # noqa: TRY004 - of a service, not of a caller
    return found
