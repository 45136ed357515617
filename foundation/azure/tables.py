"""One table of Table Storage as the stores use it: connected on first use, created when missing, its errors ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.data.tables import TableEntity, UpdateMode
from azure.data.tables.aio import TableClient

from foundation.azure.connections import Settings, code_of, network_story, table_service
from foundation.errors import ConflictError, StoreUnavailableError
from foundation.keys import TooLargeError
from foundation.sanitize import told

Row = Mapping[str, Any]
"""A row with its keys."""

_T = TypeVar("_T")
_TOO_LARGE = {"EntityTooLarge", "RequestBodyTooLarge", "PropertyValueTooLarge", "TooManyProperties"}
_CHANGED = {"EntityAlreadyExists", "ResourceNotFound", "EntityNotFound"}  # besides status 412
# The SDK decodes the errors of every call but `create_entity`, which misses nothing but its table.
_OF_A_CREATE = {404: "TableNotFound", 409: "EntityAlreadyExists"}


class Table:
    """A table by name. Raises ConnectionSettingsError when the connection's settings cannot work."""

    def __init__(self, settings: Settings, prefix: str, name: str, **options: Any) -> None:
        self.name = name
        self._service = table_service(settings, prefix, **options)
        self._client = self._service.get_table_client(name)
        account = self._service.account_name
        self._where = f"table '{name}' of storage account '{account}' (connection {prefix})"
        self.created = 0
        """How often the table was missing: what is known of its content is then void."""

    async def aclose(self) -> None:
        await self._service.close()

    async def rows(
        self, query: str, *, select: list[str] | None = None, limit: int | None = None
    ) -> list[TableEntity]:
        """All rows of a query (or the first `limit`), in key order; one request per 1,000 rows or limit."""

        async def read(client: TableClient) -> list[TableEntity]:
            found: list[TableEntity] = []
            async for row in client.query_entities(query, select=select, results_per_page=limit):
                found.append(row)
                if len(found) == limit:
                    break
            return found

        return await self._call(read, absent=[])

    async def stream(
        self, query: str, *, select: list[str] | None = None, page: int
    ) -> AsyncGenerator[TableEntity, None]:
        """The rows of a query in key order, fetched a page at a time as they are asked for."""
        token: Any = None
        none: tuple[list[TableEntity], Any] = ([], None)

        async def fetch(client: TableClient) -> tuple[list[TableEntity], Any]:
            pages = client.query_entities(query, select=select, results_per_page=page).by_page(token)
            found: list[TableEntity] = []
            async for rows in pages:
                found = [row async for row in rows]
                break
            return found, getattr(pages, "continuation_token", None)

        while True:
            found, token = await self._call(fetch, absent=none)
            for row in found:
                yield row
            if not token:
                return

    async def get(self, partition: str, row: str) -> TableEntity | None:
        async def read(client: TableClient) -> TableEntity | None:
            try:
                return await client.get_entity(partition, row)
            except ResourceNotFoundError:  # the row, or the whole table
                return None

        return await self._call(read)

    async def save(self, row: Row, etag: str | None) -> None:
        """Creates the row when there is no `etag`, else replaces it if it still has that tag.

        Raises ConflictError when there is a row already, or the row changed or is gone; TooLargeError.
        """

        async def write(client: TableClient) -> None:
            if etag is None:
                await client.create_entity(row)
            else:
                await client.update_entity(
                    row, mode=UpdateMode.REPLACE, etag=etag, match_condition=MatchConditions.IfNotModified
                )

        await self._call(write)

    async def put(self, rows: Sequence[Row]) -> None:
        """Writes rows of one partition, whatever is there: all of them, or an error and nothing.

        Raises TooLargeError. A transaction costs several times the CPU of a call for one row: the SDK builds
        its body with the email package.
        """
        options = {"mode": UpdateMode.REPLACE}

        async def write(client: TableClient) -> None:
            if len(rows) == 1:
                await client.upsert_entity(rows[0], **options)
            else:
                await client.submit_transaction([("upsert", row, options) for row in rows])

        await self._call(write)

    async def delete(self, rows: Sequence[Row]) -> None:
        """Deletes rows of one partition, all or none. Raises ConflictError when one is gone or changed."""
        await self._call(lambda client: client.submit_transaction([("delete", row) for row in rows]))

    async def _call(
        self, operation: Callable[[TableClient], Awaitable[_T]], *, absent: _T | None = None
    ) -> _T:
        """`absent` is what a read finds where there is no table: whoever reads may have no right to make one."""
        try:
            try:
                return await operation(self._client)
            except HttpResponseError as error:
                if _code(error) != "TableNotFound":
                    raise
                if absent is not None:
                    return absent
            await self._create()
            return await operation(self._client)
        except Exception as error:
            # Also what the SDK or its transport lets through: nothing may be concluded.
            raise self._translated(error) from error

    async def _create(self) -> None:
        self.created += 1
        try:
            await self._client.create_table()
        except ResourceExistsError as error:
            # Somebody else was faster; a table being deleted stays an error for some seconds.
            if _code(error) != "TableAlreadyExists":
                raise

    def _translated(self, error: Exception) -> Exception:
        where = self._where
        code = _code(error) if isinstance(error, HttpResponseError) else ""
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
    if isinstance(error, HttpResponseError):
        return StoreUnavailableError(f"{where} answered {error.status_code} {code or error.reason}")
    if isinstance(error, AzureError | OSError):  # network errors name hosts; they know no keys
        return StoreUnavailableError(f"{where} cannot be reached: {network_story(error)}")
    return StoreUnavailableError(f"{where}: the call failed: {told(error)}")


def _code(error: HttpResponseError) -> str:
    """The service's code, else what the status of a create means."""
    return code_of(error) or _OF_A_CREATE.get(error.status_code or 0, "")


def etag_of(entity: TableEntity) -> str:
    return str(entity.metadata["etag"])
