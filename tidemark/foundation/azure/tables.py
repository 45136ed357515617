"""One table of Table Storage as the stores use it: connected on first use, created when missing, its errors ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

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
    """A table by name. Raises ConnectionSettingsError when the connection's settings cannot work."""

    def __init__(self, settings: Settings, prefix: str, name: str, **options: Any) -> None:
        self.name = name
        self._wire: Wire = options.pop("wire", None) or StorageWire(settings)
        self._service = table_service(settings, prefix, **options)
        self._client = self._service.get_table_client(name)
        self._requests = TableRequests(self._service, name, self._wire, options.get("retry_total", RETRIES))
        account = self._service.account_name
        self._where = f"table '{name}' of storage account '{account}' (connection {prefix})"
        self.created = 0
        """How often the table was missing: what is known of its content is then void."""

    async def aclose(self) -> None:
        await self._wire.aclose()
        await self._service.close()

    async def rows(
        self, query: str, *, select: list[str] | None = None, limit: int | None = None
    ) -> list[Entity]:
        """All rows of a query (or the first `limit`), in key order; one request per 1,000 rows or limit."""

        async def read() -> list[Entity]:
            found, following = await self._requests.query(query, select=select, top=limit)
            while following is not None and (limit is None or len(found) < limit):
                more, following = await self._requests.query(query, select=select, top=limit, page=following)
                found += more
            return found[:limit]

        return await self._call(read, absent=[])

    async def stream(
        self, query: str, *, select: list[str] | None = None, page: int
    ) -> AsyncGenerator[Entity, None]:
        """The rows of a query in key order, fetched a page at a time as they are asked for."""
        following: dict[str, str] | None = None
        none: Page = ([], None)

        async def fetch() -> Page:
            return await self._requests.query(query, select=select, top=page, page=following)

        while True:
            found, following = await self._call(fetch, absent=none)
            for row in found:
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
        """Creates the row when there is no `etag`, else replaces it if it still has that tag.

        Raises ConflictError when there is a row already, or the row changed or is gone; TooLargeError.
        """
        requests = self._requests
        await self._call(lambda: requests.create(row) if etag is None else requests.put(row, etag))

    async def put(self, rows: Sequence[Row]) -> None:
        """Writes rows of one partition, whatever is there: all of them, or an error and nothing.

        Raises TooLargeError. A transaction costs several times the CPU of a call for one row: the SDK builds
        its body with the email package.
        """
        options = {"mode": UpdateMode.REPLACE}

        async def write() -> None:
            if len(rows) == 1:
                await self._requests.put(rows[0])
            else:
                await self._client.submit_transaction([("upsert", row, options) for row in rows])

        await self._call(write)

    async def delete(self, rows: Sequence[Row]) -> None:
        """Deletes rows of one partition, all or none. Raises ConflictError when one is gone or changed."""

        async def write() -> None:
            await self._client.submit_transaction([("delete", row) for row in rows])

        await self._call(write)

    async def _call(self, operation: Callable[[], Awaitable[_T]], *, absent: _T | None = None) -> _T:
        """`absent` is what a read finds where there is no table: whoever reads may have no right to make one."""
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
            # Also what the SDK or its transport lets through: nothing may be concluded.
            raise self._translated(error) from error

    async def _create(self) -> None:
        self.created += 1
        try:
            await self._client.create_table()
        except ResourceExistsError as error:
            # Somebody else was faster; a table being deleted stays an error for some seconds.
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
    """A store that is one table, `TABLE` if it is not told another."""

    TABLE: ClassVar[str]

    def __init__(self, settings: Settings, prefix: str, *, table: str = "", **options: Any) -> None:
        """`options` go to the SDK's client. Raises ConnectionSettingsError."""
        self._table = Table(settings, prefix, table or self.TABLE, **options)

    async def aclose(self) -> None:
        await self._table.aclose()


def unavailable(where: str, error: Exception, code: str) -> StoreUnavailableError:
    """What the failure of a call to a storage service means; `code` is the service's word, where it answered."""
    if isinstance(error, ClientAuthenticationError) and error.status_code not in {401, 403}:
        return StoreUnavailableError(f"{where}: {describe_identity_error(error)}; sign in with `az login`")
    if isinstance(error, HttpResponseError):
        return StoreUnavailableError(f"{where} answered {error.status_code} {code or error.reason}")
    if isinstance(error, AzureError | OSError):  # network errors name hosts; they know no keys
        return StoreUnavailableError(f"{where} cannot be reached: {describe_network_error(error)}")
    return StoreUnavailableError(f"{where}: the call failed: {describe_error(error)}")
