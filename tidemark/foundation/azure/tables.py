"""A table of Table Storage for stores: created when it is missing, with errors of Tidemark."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
)
from azure.data.tables import UpdateMode

from tidemark.foundation.azure.connections import (
    RETRIES,
    Settings,
    describe_identity_error,
    describe_network_error,
    error_code,
    table_service,
)
from tidemark.foundation.azure.storage_requests import StorageWire, Wire
from tidemark.foundation.azure.table_requests import Entity, Page, Row, TableRequests
from tidemark.foundation.errors import ConflictError, StoreUnavailableError
from tidemark.foundation.keys import TooLargeError
from tidemark.foundation.sanitize import describe_error

_T = TypeVar("_T")
_TOO_LARGE = {"EntityTooLarge", "RequestBodyTooLarge", "PropertyValueTooLarge", "TooManyProperties"}
_ABSENT = {"ResourceNotFound", "EntityNotFound"}
_CHANGED = {"EntityAlreadyExists", *_ABSENT}  # besides status 412


class Table:
    """A table by name. Raises ConnectionSettingsError for unusable settings of the connection."""

    def __init__(self, settings: Settings, prefix: str, name: str, **options: Any) -> None:
        self.name = name
        self._wire: Wire = options.pop("wire", None) or StorageWire(settings)
        self._service = table_service(settings, prefix, **options)
        self._client = self._service.get_table_client(name)
        self._requests = TableRequests(self._service, name, self._wire, options.get("retry_total", RETRIES))
        account = self._service.account_name
        self._where = f"table '{name}' of storage account '{account}' (connection {prefix})"
        self.created = 0
        """How often the table was missing. Whatever is known of its content is then outdated."""

    async def aclose(self) -> None:
        await self._wire.aclose()
        await self._service.close()

    async def rows(
        self, query: str, *, select: list[str] | None = None, limit: int | None = None
    ) -> list[Entity]:
        """All rows of a query, or the first `limit`, in key order. One request per 1,000 rows."""

        async def read() -> list[Entity]:
            entities, following = await self._requests.query(query, select=select, top=limit)
            while following is not None and (limit is None or len(entities) < limit):
                more, following = await self._requests.query(query, select=select, top=limit, page=following)
                entities += more
            return entities[:limit]

        return await self._call(read, absent=[])

    async def stream(
        self, query: str, *, select: list[str] | None = None, page: int
    ) -> AsyncGenerator[Entity, None]:
        """The rows of a query in key order, fetched page by page when they are needed."""
        following: dict[str, str] | None = None
        none: Page = ([], None)

        async def fetch() -> Page:
            return await self._requests.query(query, select=select, top=page, page=following)

        while True:
            entities, following = await self._call(fetch, absent=none)
            for row in entities:
                yield row
            if following is None:
                return

    async def get(self, partition: str, row: str) -> Entity | None:
        async def read() -> Entity | None:
            try:
                return await self._requests.get(partition, row)
            except HttpResponseError as error:
                if error_code(error) in {"TableNotFound", *_ABSENT}:
                    return None
                raise

        return await self._call(read)

    async def save(self, row: Row, etag: str | None) -> None:
        """Create the row without an `etag`; with one, replace the row if it still has it.

        Raises ConflictError if the row exists already, has changed or was removed, and TooLargeError.
        """
        requests = self._requests
        await self._call(lambda: requests.create(row) if etag is None else requests.put(row, etag))

    async def save_with(self, row: Row, etag: str | None, beside: Row) -> None:
        """As `save`, together with another row of the partition, which is written whether or not it exists: both, or none."""
        options: dict[str, Any] = {"mode": UpdateMode.REPLACE}
        guarded: dict[str, Any] = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        first = ("create", row) if etag is None else ("update", row, options | guarded)

        async def write() -> None:
            await self._client.submit_transaction([first, ("upsert", beside, options)])

        await self._call(write)

    async def put(self, rows: Sequence[Row]) -> None:
        """Write rows of one partition, whether or not they exist: all, or none and an error.

        Raises TooLargeError. A transaction takes several times the CPU of a request for one row, because the SDK builds its
        body with the email package.
        """
        options = {"mode": UpdateMode.REPLACE}

        async def write() -> None:
            if len(rows) == 1:
                await self._requests.put(rows[0])
            else:
                await self._client.submit_transaction([("upsert", row, options) for row in rows])

        await self._call(write)

    async def delete(self, rows: Sequence[Row]) -> None:
        """Delete rows of one partition: all or none. Raises ConflictError if one was removed or has changed."""

        async def write() -> None:
            await self._client.submit_transaction([("delete", row) for row in rows])

        await self._call(write)

    async def _call(self, operation: Callable[[], Awaitable[_T]], *, absent: _T | None = None) -> _T:
        """The result of the operation. Without a table, a read returns `absent`, because a reader may lack the right to create one."""
        try:
            try:
                return await operation()
            except HttpResponseError as error:
                if error_code(error) != "TableNotFound":
                    raise
                if absent is not None:
                    return absent
            await self._create()
            return await operation()
        except Exception as error:
            # Also unexpected errors of the SDK or its transport: nothing may be concluded from them.
            raise self._translated(error) from error

    async def _create(self) -> None:
        self.created += 1
        try:
            await self._client.create_table()
        except ResourceExistsError as error:
            # Another process may have created it. A table that is being deleted stays an error for some seconds.
            if error_code(error) != "TableAlreadyExists":
                raise

    def _translated(self, error: Exception) -> Exception:
        where = self._where
        code = error_code(error) if isinstance(error, HttpResponseError) else ""
        if getattr(error, "status_code", None) == 412 or code in _CHANGED:
            return ConflictError(f"a row of {where} changed since it was read ({code})")
        if getattr(error, "status_code", None) == 413 or code in _TOO_LARGE:
            return TooLargeError(f"{where} refused the size of what was to be written ({code})")
        return unavailable(where, error, code)


class TableStore:
    """A store that is one table, by default `TABLE`."""

    TABLE: ClassVar[str]

    def __init__(self, settings: Settings, prefix: str, *, table: str = "", **options: Any) -> None:
        """`options` go to the SDK's client. Raises ConnectionSettingsError."""
        self._table = Table(settings, prefix, table or self.TABLE, **options)

    async def aclose(self) -> None:
        await self._table.aclose()


def unavailable(where: str, error: Exception, code: str) -> StoreUnavailableError:
    """The error for a failed call to a storage service. `code` is the code in its answer, if it answered."""
    if isinstance(error, ClientAuthenticationError) and error.status_code not in {401, 403}:
        return StoreUnavailableError(f"{where}: {describe_identity_error(error)}; sign in with `az login`")
    if isinstance(error, HttpResponseError):
        return StoreUnavailableError(f"{where} answered {error.status_code} {code or error.reason}")
    if isinstance(error, AzureError | OSError):  # network errors contain hosts, and no keys
        return StoreUnavailableError(f"{where} cannot be reached: {describe_network_error(error)}")
    return StoreUnavailableError(f"{where}: the call failed: {describe_error(error)}")
