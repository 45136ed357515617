"""Bodies too large for Service Bus, in blobs: stored by the big-batch sender, restored by the receiver.

The properties that mark a message are those of `tidemark.publisher.service_bus.core.claims`. A blob is written before its message is sent, so
that a receiver never sees a message without its body; one that was never sent after all stays behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Self

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.aio import ServiceBusReceiver as AsyncServiceBusReceiver
from azure.storage.blob import ContainerClient
from azure.storage.blob.aio import ContainerClient as AsyncContainerClient

from tidemark.publisher.blocking import blocking, run_without_loop, wait_if_needed
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.service_bus.core.claims import (
    SETTLED,
    ClaimSettings,
    Reference,
    reference_of,
    verify,
)
from tidemark.publisher.service_bus.core.errors import ClaimCheckError, ClaimMissingError, ClaimSettledError
from tidemark.publisher.service_bus.core.send_report import Claim

_REFUSED = frozenset({400, 401, 403, 404, 411, 413, 415})


class ClaimCheck(contextlib.AbstractAsyncContextManager["ClaimCheck"]):
    """Stores large bodies in a container, for asynchronous code. Close the container's client, or use `async with`."""

    def __init__(
        self, container: AsyncContainerClient | ContainerClient, settings: ClaimSettings | None = None
    ) -> None:
        self._container: Any = container
        self.settings = settings or ClaimSettings()

    @classmethod
    def from_connection_string(
        cls, connection: str, container: str, settings: ClaimSettings | None = None, **options: Any
    ) -> Self:
        """`options` go to the SDK's client."""
        return cls(AsyncContainerClient.from_connection_string(connection, container, **options), settings)

    async def __aexit__(self, *_: object) -> None:
        await wait_if_needed(self._container.close())

    async def ensure_container(self) -> None:
        """Create the container unless it exists."""
        with (
            _naming_operation("creating the container of the claim checks"),
            contextlib.suppress(ResourceExistsError),
        ):
            await wait_if_needed(self._container.create_container())

    async def store(self, claim: Claim) -> None:
        """Write the body; repeating it is harmless. Raises ClaimCheckError, or PublishSettingsError for a refusal."""
        blob = self._container.get_blob_client(claim.blob)
        metadata = {"sha256": claim.sha256}
        with _naming_operation(f"storing claim {claim.blob}"):
            try:
                await wait_if_needed(blob.upload_blob(claim.body, metadata=metadata))
            except ResourceExistsError:
                # Of an earlier attempt or an equal body. The write renews its age for lifecycle rules.
                properties = await wait_if_needed(blob.get_blob_properties())
                settled = {name: at for name, at in properties.metadata.items() if name == SETTLED}
                unchanged = {"etag": properties.etag, "match_condition": MatchConditions.IfNotModified}
                with contextlib.suppress(ResourceModifiedError):  # a receiver has marked it since
                    await wait_if_needed(blob.set_blob_metadata({**metadata, **settled}, **unchanged))

    async def restore(self, message: ServiceBusReceivedMessage) -> bytes:
        """The body of a received message, read from its blob if it is a claim, and verified by size and SHA-256.

        Raises ClaimSettledError, ClaimMissingError, ClaimDamagedError, or ClaimCheckError if the storage does not answer.
        """
        reference = reference_of(properties_of(message))
        if reference is None:
            return body_of(message)
        with _naming_operation(f"reading claim {reference.blob}"):
            try:
                stream = await wait_if_needed(self._container.download_blob(reference.blob))
                if at := (stream.properties.metadata or {}).get(SETTLED):
                    raise ClaimSettledError(
                        f"blob {reference.blob!r} was marked as settled at {at}: another delivery or copy of the message was processed"
                    )
                body = await wait_if_needed(stream.readall())
            except ResourceNotFoundError as error:
                raise ClaimMissingError(
                    f"blob {reference.blob!r} does not exist: it has expired by a lifecycle rule, or was deleted with "
                    "another copy of the message"
                ) from error
        return verify(body, reference)

    async def mark_settled(self, message: ServiceBusReceivedMessage) -> None:
        """Replace the body of the message's blob by a mark, by which another delivery or copy of the message is recognised.

        Does nothing for a message without a claim, and for a blob that equal bodies share. Raises ClaimCheckError.
        """
        reference = self._own_blob(message)
        if reference is None:
            return
        mark = {"sha256": reference.sha256, SETTLED: datetime.now(UTC).isoformat(timespec="seconds")}
        with _naming_operation(f"marking claim {reference.blob} as settled"):
            blob = self._container.get_blob_client(reference.blob)
            await wait_if_needed(blob.upload_blob(b"", overwrite=True, metadata=mark))

    async def delete(self, message: ServiceBusReceivedMessage) -> None:
        """Delete the message's blob, as `mark_settled`; one that is gone is no error. Raises ClaimCheckError."""
        reference = self._own_blob(message)
        if reference is None:
            return
        with (
            _naming_operation(f"deleting claim {reference.blob}"),
            contextlib.suppress(ResourceNotFoundError),
        ):
            await wait_if_needed(self._container.delete_blob(reference.blob))

    def _own_blob(self, message: ServiceBusReceivedMessage) -> Reference | None:
        reference = reference_of(properties_of(message))
        is_own = reference is not None and reference.blob.startswith(f"{self.settings.prefix}message/")
        return reference if is_own else None

    async def complete(
        self, receiver: AsyncServiceBusReceiver | ServiceBusReceiver, message: ServiceBusReceivedMessage
    ) -> None:
        """Complete the message, then delete its blob unless equal bodies share it.

        Not for topics with several subscriptions: all their copies of a message share one blob.
        """
        await wait_if_needed(receiver.complete_message(message))
        await self.delete(message)


class SyncClaimCheck(contextlib.AbstractContextManager["SyncClaimCheck"]):
    """A ClaimCheck for blocking code, over a blocking client."""

    def __init__(self, container: ContainerClient, settings: ClaimSettings | None = None) -> None:
        self.awaited = ClaimCheck(container, settings)

    @classmethod
    def from_connection_string(
        cls, connection: str, container: str, settings: ClaimSettings | None = None, **options: Any
    ) -> Self:
        """`options` go to the SDK's client."""
        return cls(ContainerClient.from_connection_string(connection, container, **options), settings)

    def __exit__(self, *_: object) -> None:
        run_without_loop(self.awaited.__aexit__())

    @property
    def settings(self) -> ClaimSettings:
        return self.awaited.settings

    _wait = staticmethod(run_without_loop)
    ensure_container = blocking(ClaimCheck.ensure_container)
    store = blocking(ClaimCheck.store)
    restore = blocking(ClaimCheck.restore)
    complete = blocking(ClaimCheck.complete)
    delete = blocking(ClaimCheck.delete)
    mark_settled = blocking(ClaimCheck.mark_settled)


def properties_of(message: Any) -> Mapping[Any, Any] | None:
    """The application properties of a message of the SDK or of Azure Functions."""
    properties: Mapping[Any, Any] | None = message.application_properties
    return properties


def body_of(message: Any) -> bytes:
    """The body inside a message of the SDK or of Azure Functions; empty if it is neither a data section nor text."""
    if hasattr(message, "get_body"):
        return bytes(message.get_body())
    body = message.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return b"" if body is None else b"".join(bytes(part) for part in body)


@contextlib.contextmanager
def _naming_operation(operation: str) -> Iterator[None]:
    """Turn errors of the storage into ClaimCheckErrors that name the operation."""
    try:
        yield
    except ClaimCheckError:
        raise
    except Exception as error:
        raise _failed(operation, error) from error


def _failed(operation: str, error: Exception) -> Exception:
    if isinstance(error, HttpResponseError) and error.status_code in _REFUSED:
        code = getattr(error, "error_code", None) or error.reason
        return PublishSettingsError(
            f"{operation}: the storage service answered {error.status_code} {code}; check the container's name, and the "
            "role Storage Blob Data Contributor"
        )
    reason = error.message if isinstance(error, AzureError) else f"unexpected {type(error).__name__}: {error}"
    return ClaimCheckError(f"{operation}: {reason}")
