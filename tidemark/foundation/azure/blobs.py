"""Requests to Blob Storage with a deadline, and errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.storage.blob.aio import ContainerClient

from tidemark.foundation.azure.connections import describe_network_error, error_code
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError

_Result = TypeVar("_Result")

_BAD_NAMES = frozenset({"InvalidResourceName", "OutOfRangeInput"})

CONFLICT = frozenset({404, 409, 412})
"""Statuses of a conditional request if the blob has changed or was removed."""


@dataclass(eq=False)
class BlobStore:
    """A store in a container, whose client it owns and closes. `connection` is its app setting, which errors name."""

    _container: ContainerClient
    connection: str = field(default="", kw_only=True)

    async def aclose(self) -> None:
        await self._container.close()

    async def _answered(
        self, doing: str, deadline: float | None, work: Coroutine[Any, Any, _Result]
    ) -> _Result:
        where = f" in {account_text(self._container, self.connection)}" if self.connection else ""
        return await answered(f"{doing}{where}", deadline, work)


async def answered(doing: str, deadline: float | None, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work` by `deadline`, in the loop's time.

    Raises UnavailableError for its errors, and SettingsError for an invalid container name. `doing` begins the message, such as
    "saving the checkpoint of partition 3".
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise UnavailableError(f"{doing}: no answer within the deadline, the outcome is unknown") from None
    except HttpResponseError as error:
        if error_code(error) in _BAD_NAMES:
            raise SettingsError(f"{doing}: {_refusal(error)}; check the container's name") from error
        raise UnavailableError(
            f"{doing}: {_refusal(error)}", retry_after(getattr(error.response, "headers", {}))
        ) from error
    except TidemarkError:
        raise
    except Exception as error:  # network errors and unexpected ones: the outcome is unknown
        raise UnavailableError(f"{doing}: {describe_network_error(error)}") from error


def account_text(container: ContainerClient, connection: str) -> str:
    """`storage account 'acme' (connection AzureWebJobsStorage)`, for errors."""
    return f"storage account '{container.account_name}' (connection {connection})"


async def ensure_container(container: ContainerClient) -> None:
    """Creates the container unless it exists. Raises what the SDK raises."""
    try:
        await container.create_container()
    except ResourceExistsError as error:
        if error_code(error) != "ContainerAlreadyExists":  # it is being deleted, and cannot be created yet
            raise


def container_is_missing(error: HttpResponseError) -> bool:
    return error_code(error) == "ContainerNotFound"


def _refusal(error: HttpResponseError) -> str:
    answer = (
        f"the storage service answered {error.status_code} {error_code(error) or error.reason or ''}".rstrip()
    )
    if error.status_code in {401, 403}:
        return f"{answer}; the consumer needs the role Storage Blob Data Contributor or a valid key, and access through the firewall"
    return answer
