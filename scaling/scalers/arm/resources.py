"""Any resource of Resource Manager by plain requests: read, listed, changed, and the operation followed that a change begins.

How an operation is followed is the same for all providers (learn.microsoft.com: "Track asynchronous Azure operations"): by
`Azure-AsyncOperation`, whose answer has a `status`; else by `Location`, which answers 202 until it is over. Both lie
outside of the resource, so a role on the resource alone may not read them: then the resource itself is asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

from azure.core import AsyncPipelineClient
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.pipeline import AsyncPipeline
from azure.core.pipeline.policies import AsyncBearerTokenCredentialPolicy, AsyncRetryPolicy, UserAgentPolicy
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.core.rest import AsyncHttpResponse, HttpRequest
from msgspec import Struct

from scaling.scalers.arm.states import AT_REST
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.http.outward import is_of_origin
from tidemark.foundation.version import VERSION

AUTOSCALE_VERSION = "2022-10-01"
PERMISSIONS_VERSION = "2022-04-01"
THROUGHPUT_VERSION = "2026-03-15"
SITES_VERSION = "2024-04-01"

Entry = Mapping[str, Any]


class OperationFailedError(AzureError):
    """An operation that Resource Manager had accepted ended without success; the message is the provider's."""


class Followed(Struct, frozen=True):
    """An operation that was accepted; `has_status` if its address answers with a status. Ask again in `retry_after` seconds."""

    url: str
    has_status: bool
    retry_after: float | None = None


class ArmResources:
    """A client of Resource Manager. Its errors are those of the SDKs: AzureError, with the answer where there is one; and
    ValueError for an answer of another form.
    """

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
            UserAgentPolicy(f"tidemark/{VERSION}"),
            AsyncRetryPolicy(**retries),
            AsyncBearerTokenCredentialPolicy(identity, *credential_scopes),
        ]
        pipeline: AsyncPipeline[HttpRequest, AsyncHttpResponse] = AsyncPipeline(transport, policies)
        self._client: AsyncPipelineClient[HttpRequest, AsyncHttpResponse] = AsyncPipelineClient(
            base_url, pipeline=pipeline
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def get(self, resource_id: str, version: str) -> dict[str, Any]:
        return await self._got(f"{resource_id}?api-version={version}", resource_id)

    async def get_dated(self, path: str, version: str, query: str) -> tuple[dict[str, Any], str]:
        """A document, and when it was answered: the header `Date`, '' without one."""
        request = HttpRequest("GET", self._client.format_url(f"{path}?api-version={version}&{query}"))
        answer = await self._sent(request, {200})
        return _object(answer, path), str(answer.headers.get("Date") or "")

    async def entries(self, path: str, version: str, query: str = "") -> AsyncIterator[Entry]:
        """All entries of a list, page by page as they are asked for; `query` is added to the address. Raises ValueError also
        for a list that goes on in a circle, and, by the transport, for one that goes on at another host.
        """
        url, seen = f"{path}?api-version={version}{query and f'&{query}'}", {path}
        while url:
            seen.add(url)
            page = await self._got(url, path)
            entries = page.get("value")
            if not isinstance(entries, list) or not all(isinstance(member, dict) for member in entries):
                raise ValueError(f"the answer of {path} is not a list of objects")
            for entry in entries:
                yield entry
            url = str(page.get("nextLink") or "")
            if url in seen:
                raise ValueError(f"the list {path} goes on in a circle; it is not followed")

    def autoscale_settings(self, scope: str) -> AsyncIterator[Entry]:
        """The Azure Monitor autoscale settings of a subscription or a resource group, by its id."""
        return self.entries(f"{scope}/providers/Microsoft.Insights/autoscalesettings", AUTOSCALE_VERSION)

    def permissions(self, resource_id: str) -> AsyncIterator[Entry]:
        """What the caller may do with a resource: an entry for each role, with `actions` and `notActions`."""
        path = f"{resource_id.strip().rstrip('/')}/providers/Microsoft.Authorization/permissions"
        return self.entries(path, PERMISSIONS_VERSION)

    async def change(
        self, method: str, resource_id: str, version: str, document: Mapping[str, Any], *, etag: str = ""
    ) -> Followed | None:
        """Asks for a change once: where the answer is lost, nobody asks again. Returns what is to be followed, or None where
        it is done, or only the resource shows it. With `etag`, only if nobody changed the resource meanwhile (412).
        """
        url = self._client.format_url(f"{resource_id}?api-version={version}")
        headers = {"Content-Type": "application/json", **({"If-Match": etag} if etag else {})}
        request = HttpRequest(method, url, headers=headers, content=json.dumps(document))
        return self._followed(await self._sent(request, {200, 201, 202}, retry_total=0))

    async def finish(
        self,
        operation: Followed | None,
        poll_interval: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Waits for the end of an operation, or until it cannot be followed any more: then the resource shows it. Asks every
        `poll_interval` seconds where the platform does not say when to ask again. Raises OperationFailedError.
        """
        while operation is not None:
            await sleep(operation.retry_after or poll_interval)  # some say 0
            operation = await self.follow(operation)

    async def follow(self, operation: Followed) -> Followed | None:
        """What is left to be followed; None when the operation is over, or its address may not be read.

        Raises OperationFailedError where it ended without success.
        """
        request = HttpRequest("GET", operation.url)
        try:
            answer = await self._sent(request, {200, 201, 202, 204})
        except HttpResponseError as error:
            if error.status_code in {401, 403, 404}:  # the resource may be read instead
                return None
            if not operation.has_status and error.status_code is not None and error.status_code < 500:
                raise OperationFailedError(str(error)) from error
            raise
        again = Followed(operation.url, operation.has_status, retry_after(answer.headers))
        if not operation.has_status:
            return again if answer.status_code == 202 else None
        document = _object(answer, "the operation")
        status = str(document.get("status", "")).casefold()
        if status not in AT_REST:
            return again
        if status != "succeeded":
            problem = document.get("error") or {}
            words = problem.get("message") if isinstance(problem, Mapping) else problem
            raise OperationFailedError(
                f"the operation ended as {document['status']}: {words or 'without a reason'}"
            )
        return None

    def _followed(self, answer: Any) -> Followed | None:
        """The address to ask, if it is Resource Manager's own."""
        for header, has_status in (("Azure-AsyncOperation", True), ("Location", False)):
            url = str(answer.headers.get(header) or "")
            if not url or (not has_status and answer.status_code != 202):
                continue
            if is_of_origin(self._client.format_url(url), self._client.format_url("/")):
                return Followed(url, has_status, retry_after(answer.headers))
        return None

    async def _got(self, path: str, what: str) -> dict[str, Any]:
        return _object(await self._sent(HttpRequest("GET", self._client.format_url(path)), {200}), what)

    async def _sent(self, request: HttpRequest, accepted: set[int], **options: Any) -> Any:
        answer = await self._client.send_request(request, **options)  # which reads it, too
        if answer.status_code not in accepted:
            raise HttpResponseError(response=answer)
        return answer


def _object(answer: Any, what: str) -> dict[str, Any]:
    try:
        document = answer.json()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer of {what} is no JSON") from error
    if not isinstance(document, dict):
        raise ValueError(f"the answer of {what} is not an object")
    return document
