"""Any resource of Resource Manager by plain requests: read, changed, and the operation followed that a change begins.

How an operation is followed is the same for all providers (learn.microsoft.com: "Track asynchronous Azure operations"): by
`Azure-AsyncOperation`, whose answer tells a `status`; else by `Location`, which answers 202 until it is over. Both lie
outside of the resource, so a role on the resource alone may not read them: then the resource itself is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest
from msgspec import Struct

from scaling.scalers.arm.requests import ArmRequests
from scaling.scalers.arm.states import AT_REST
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.http.outward import is_of_origin


class OperationFailedError(AzureError):
    """An operation that Resource Manager had accepted ended without success; the message is the provider's."""


class Followed(Struct, frozen=True):
    """An operation that was accepted; `status_told` where the address answers with a status. Look again in `retry_after`."""

    url: str
    status_told: bool
    retry_after: float | None = None


class ArmResources(ArmRequests):
    """A client of Resource Manager for resources of any type. Its errors are those of the SDKs."""

    async def get(self, resource_id: str, version: str) -> dict[str, Any]:
        """The document of a resource. Raises AzureError, and ValueError for an answer of another form."""
        url = self._client.format_url(f"{resource_id}?api-version={version}")
        answer = await self._sent(HttpRequest("GET", url), {200})
        return _object(answer, resource_id)

    async def change(
        self, method: str, resource_id: str, version: str, document: Mapping[str, Any], *, etag: str = ""
    ) -> Followed | None:
        """Asks for a change once: where the answer is lost, nobody asks again. Returns what is to be followed, or None where
        it is done, or only the resource tells. With `etag`, only if nobody changed the resource meanwhile (412).
        """
        url = self._client.format_url(f"{resource_id}?api-version={version}")
        headers = {"Content-Type": "application/json", **({"If-Match": etag} if etag else {})}
        request = HttpRequest(method, url, headers=headers, content=json.dumps(document))
        return self._followed(await self._sent(request, {200, 201, 202}, retry_total=0))

    async def follow(self, operation: Followed) -> Followed | None:
        """What is left to be followed; None when the operation is over, or its address may not be read.

        Raises OperationFailedError where it ended without success.
        """
        request = HttpRequest("GET", operation.url)
        try:
            answer = await self._sent(request, {200, 201, 202, 204})
        except HttpResponseError as error:
            if error.status_code in {401, 403, 404}:  # the resource tells, which may be read
                return None
            if not operation.status_told and error.status_code is not None and error.status_code < 500:
                raise OperationFailedError(str(error)) from error
            raise
        if not operation.status_told:
            return self._again(operation, answer) if answer.status_code == 202 else None
        told = _object(answer, "the operation")
        status = str(told.get("status", "")).casefold()
        if status not in AT_REST:
            return self._again(operation, answer)
        if status != "succeeded":
            error_told = told.get("error") or {}
            words = error_told.get("message") if isinstance(error_told, Mapping) else error_told
            raise OperationFailedError(
                f"the operation ended as {told['status']}: {words or 'without a reason'}"
            )
        return None

    def _again(self, operation: Followed, answer: Any) -> Followed:
        return Followed(operation.url, operation.status_told, retry_after(answer.headers))

    def _followed(self, answer: Any) -> Followed | None:
        """The address to ask, if it is Resource Manager's own."""
        for header, status_told in (("Azure-AsyncOperation", True), ("Location", False)):
            url = str(answer.headers.get(header) or "")
            if not url or (not status_told and answer.status_code != 202):
                continue
            if is_of_origin(self._client.format_url(url), self._client.format_url("/")):
                return Followed(url, status_told, retry_after(answer.headers))
        return None

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
        raise ValueError(f"the answer of {what} is not an object")  # noqa: TRY004 - of the answer, not of a caller
    return document
