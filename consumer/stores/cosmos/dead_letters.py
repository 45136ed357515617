"""Dead letters in a container of Cosmos DB, one document each: id of the dead letter, partition key `/partition`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError

from consumer.model import DeadLetter, Stream
from consumer.stores.dead_letter_document import event_of, from_document, to_document
from tidemark.foundation.azure.connections import Settings, describe_network_error
from tidemark.foundation.azure.cosmos import ContainerConnection
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.gathering import gather, next_page

PARTITION_KEY = "/partition"
_AT_ONCE = 16  # writes in flight
_FORBIDDEN = frozenset("/\\?#")  # in an id
_CONFLICT = {404, 409, 412}  # of a conditional request if the document has changed or is gone
_ROUNDS = 20  # of such changes by another writer; a conflict that lasts has another cause, such as a container that is gone. Chosen.
_Result = TypeVar("_Result")


class CosmosDeadLetterStore(ContainerConnection):
    """A DeadLetterStore of one hub and consumer group. The container may hold those of others, too.

    It is created if missing, which needs the account's key: an identity may not create containers; without `create` it is taken to
    be empty then. A document holds 2 MB,
    so every event of the standard tiers (1 MB) fits. A larger event is refused with a SettingsError that names the other
    stores; it is never truncated.
    """

    def __init__(
        self,
        settings: Settings,
        connection: str,
        database: str,
        container: str,
        stream: Stream,
        *,
        create: bool = True,
    ) -> None:
        super().__init__(settings, connection, database, container)
        self._create = create
        self._is_missing = False
        self._scope = (stream.hub, stream.consumer_group)

    async def open(self) -> None:
        try:
            definition = await self._answered("opening", None, self._connected())
            self._is_missing = definition is None
            paths = [PARTITION_KEY] if definition is None else definition["partitionKey"]["paths"]
            if paths != [PARTITION_KEY]:
                raise SettingsError(
                    f"{self!r} has the partition key {', '.join(paths)}; dead letters need {PARTITION_KEY}: name "
                    "another container, or let the consumer create it"
                )
        except BaseException:
            await self.aclose()
            raise

    async def put(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> None:
        latest = {dead_letter.id: dead_letter for dead_letter in dead_letters}
        await self._answered("storing dead letters in", deadline, self._put_all(latest.values()))

    async def _put_all(self, dead_letters: Collection[DeadLetter]) -> None:
        """Stores all of them, even if some are refused; then raises the first error."""

        async def try_one(dead_letter: DeadLetter) -> Exception | None:
            try:
                await self._put(dead_letter)
            except Exception as error:  # raised below
                return error
            return None

        for error in await gather(try_one, dead_letters, at_once=_AT_ONCE):
            if error is not None:
                raise error

    async def _put(self, dead_letter: DeadLetter) -> None:
        document = {"id": dead_letter.id, **to_document(dead_letter)}
        if not dead_letter.epoch:
            await self._open.upsert_item(document)
            return
        for left in reversed(range(_ROUNDS)):
            etag = await self._etag_unless_later(document, dead_letter.epoch)
            if etag is None:
                return
            try:
                if etag:
                    await self._open.replace_item(document["id"], document, **_unchanged(etag))
                else:
                    await self._open.create_item(document)
            except CosmosHttpResponseError as error:
                if error.status_code not in _CONFLICT or not left:
                    raise
            else:
                return

    async def _etag_unless_later(self, key: Mapping[str, Any], epoch: int) -> str | None:
        """The ETag of the document of this id and partition; '' if there is none, None if it is of a later epoch."""
        stored = await self._or_none(self._open.read_item(key["id"], key["partition"]))
        if stored is None:
            return ""
        return None if stored.get("epoch", 0) > epoch else str(stored["_etag"])

    async def list(
        self, *, partition: str | None = None, reason: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        if self._is_missing:
            return
        hub, group = self._scope
        wanted = {"hub": hub, "consumer_group": group, "partition": partition, "reason": reason}
        given = {name: value for name, value in wanted.items() if value is not None}
        conditions = {name: f"c.{name} = @{name}" for name in given}
        if partition is not None:  # of all hubs of the name: `0`, and `0@...`
            given["others"] = f"{partition}@"
            conditions["partition"] = "(c.partition = @partition OR STARTSWITH(c.partition, @others))"
        where = " AND ".join(conditions.values())
        pages = self._open.query_items(
            f"SELECT * FROM c WHERE {where} ORDER BY c.position",  # noqa: S608 - the names are the four above
            parameters=[{"name": f"@{name}", "value": value} for name, value in given.items()],
            max_item_count=_AT_ONCE,
        ).by_page()
        while page := await self._answered("listing the dead letters of", None, next_page(pages)):
            for document in page:
                yield self._dead_letter(document)

    async def get(self, dead_letter_id: str) -> DeadLetter | None:
        partition = self._partition(dead_letter_id)
        if partition is None:
            return None
        work = self._or_none(self._open.read_item(dead_letter_id, partition))
        document = await self._answered("reading a dead letter of", None, work)
        return self._dead_letter(document) if document is not None else None

    async def delete(self, dead_letter_ids: Sequence[str], *, epoch: int | None = None) -> int:
        deleted = 0
        for dead_letter_id in dict.fromkeys(dead_letter_ids):
            partition = self._partition(dead_letter_id)
            if partition is not None:
                work = self._or_none(self._delete(dead_letter_id, partition, epoch))
                deleted += bool(await self._answered("deleting a dead letter of", None, work))
        return deleted

    async def _connected(self) -> Mapping[str, Any] | None:
        """Connects; returns the definition of the container, which is created if missing, or None."""
        # here the SDK's own patience with 429 is welcome: a dead letter holds up its partition until it is stored
        client = await self._connect(retry_total=3, retry_throttle_total=9)
        await client.__aenter__()
        definition = await self._or_none(self._open.read())
        if definition is not None or not self._create:
            return definition
        database, container = self._names
        created = await client.get_database_client(database).create_container_if_not_exists(
            container, PartitionKey(path=PARTITION_KEY)
        )
        return await created.read()

    async def _delete(self, dead_letter_id: str, partition: str, epoch: int | None) -> bool:
        if epoch is None:
            await self._open.delete_item(dead_letter_id, partition)
            return True
        key = {"id": dead_letter_id, "partition": partition}
        while etag := await self._etag_unless_later(key, epoch):
            try:
                await self._open.delete_item(dead_letter_id, partition, **_unchanged(etag))
            except CosmosHttpResponseError as error:
                if error.status_code not in _CONFLICT:
                    raise
            else:
                return True
        return False

    async def _or_none(self, work: Awaitable[_Result]) -> _Result | None:
        try:
            return await work
        except CosmosHttpResponseError as error:
            if error.status_code == 404:
                return None
            raise

    def _dead_letter(self, document: Mapping[str, Any]) -> DeadLetter:
        found = str(document.get("id"))
        dead_letter_id = found if self._partition(found) is not None else ""
        return from_document(document, f"document {found!r} in {self!r}", dead_letter_id)

    def _partition(self, dead_letter_id: str) -> str | None:
        position = event_of(dead_letter_id, *self._scope)
        return None if position is None or _FORBIDDEN & set(dead_letter_id) else position[0]

    async def _answered(self, doing: str, deadline: float | None, work: Awaitable[_Result]) -> _Result:
        try:
            async with asyncio.timeout_at(deadline):
                return await work
        except TimeoutError:
            raise UnavailableError(
                f"{doing} {self!r}: no answer within the deadline, the outcome is unknown"
            ) from None
        except CosmosHttpResponseError as error:
            raise self._refused(doing, error) from error
        except TidemarkError:
            raise
        except Exception as error:  # of the network, or unforeseen: the outcome is unknown
            raise UnavailableError(f"{doing} {self!r}: {describe_network_error(error)}") from error

    def _refused(self, doing: str, error: CosmosHttpResponseError) -> TidemarkError:
        refusal = f"{doing} {self!r}: the service answered {error.status_code}"
        if error.status_code == 413:
            return SettingsError(
                f"{refusal}: an event is larger than a document may be (2 MB); keep dead letters in blob storage or SQL"
            )
        if doing == "opening" and error.status_code in {401, 403, 404}:
            return SettingsError(
                f"{refusal}; the database must exist, and the container too unless the connection is by key"
            )
        return UnavailableError(refusal, retry_after(error.headers or {}, cosmos=True))


def _unchanged(etag: str) -> dict[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}
