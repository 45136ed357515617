"""Dead letters in SQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from sqlalchemy import Connection, and_, or_, select

from consumer.model import DeadLetter, Stream
from consumer.stores.sql import letters
from consumer.stores.sql.tables import DEAD_LETTERS
from foundation.sql.database import SqlDatabase

_row = DEAD_LETTERS.c
_PAGE = 100
"""Letters in memory while listing; a body can have 1 MB."""
_CONFLICTS = 3
"""Two consumers that put the same letter at the same moment: the second finds it there, and replaces it."""


class SqlDeadLetterStore:
    """A DeadLetterStore in `EventHubDeadLetter`, where the transactional sink puts its own, too."""

    def __init__(self, database: SqlDatabase, scope: Stream) -> None:
        self._database = database
        self._scope = scope
        database.use()

    async def open(self) -> None:
        await self._database.transact(lambda _: None)

    async def put(self, letters_: Sequence[DeadLetter], *, deadline: float) -> None:
        await self._database.transact(
            lambda connection: letters.put(connection, self._scope, letters_),
            deadline=deadline,
            again_on_conflict=_CONFLICTS,
        )

    async def list(
        self, *, partition: str | None = None, reason: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        after = ("", -1)
        while page := await self._page(after, partition, reason):
            for letter in page:
                yield letter
            after = page[-1].event.partition, page[-1].event.sequence_number

    async def get(self, letter_id: str) -> DeadLetter | None:
        key = letters.key_of(self._scope, letter_id)
        if key is None:
            return None
        query = select(DEAD_LETTERS).where(*(_row[name] == value for name, value in key.items()))
        row = await self._database.transact(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else letters.letter_of(self._scope, row)

    async def delete(self, letter_ids: Sequence[str]) -> int:
        keys = [key for letter_id in letter_ids if (key := letters.key_of(self._scope, letter_id))]
        return await self._database.transact(
            lambda connection: sum(letters.remove_one(connection, key) for key in keys)
        )

    async def aclose(self) -> None:
        await self._database.release()

    async def _page(
        self, after: tuple[str, int], partition: str | None, reason: str | None
    ) -> Sequence[DeadLetter]:
        query = (
            select(DEAD_LETTERS)
            .where(
                *(_row[name] == value for name, value in self._scope.keys.items()),
                or_(
                    _row.PartitionID > after[0],
                    and_(_row.PartitionID == after[0], _row.SequenceNumber > after[1]),
                ),
            )
            .order_by(_row.PartitionID, _row.SequenceNumber)
            .limit(_PAGE)
        )
        if partition is not None:
            query = query.where(_row.PartitionID == partition)
        if reason is not None:
            query = query.where(_row.Reason == reason)

        def read(connection: Connection) -> Sequence[DeadLetter]:
            return [letters.letter_of(self._scope, row) for row in connection.execute(query)]

        return await self._database.transact(read)
