"""A SQL sink among other sinks: rows and a mark of its own in one transaction, the checkpoint and dead letters elsewhere.

The mark is a row of the checkpoints' table under the consumer group `<group>~<sink>`. It is claimed at the first write of a
claim, which fences the owner before. A record that the database refuses is rejected before the mark passes its event, so that
its dead letter is stored first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from msgspec import structs
from sqlalchemy import Connection

from consumer import model
from consumer.model import Claim, Record
from consumer.sinks.partitioned import part_of, warn_if_rerouted
from consumer.sinks.sql.isolation import TryAgainError
from consumer.sinks.sql.transactional import Position, Rejections, SqlTransactionalSink
from consumer.stores.sql import positions
from tidemark.foundation.errors import SettingsError

MOST_GROUP = 64
"""Characters of the column ConsumerGroup (consumer/stores/sql/tables.py)."""


@dataclass(eq=False)
class SqlSinkBeside(SqlTransactionalSink):
    """An OrderedSink with a mark of its own, named after the sink. Raises SettingsError for a name that is too long."""

    transactional = False

    name: str = field(default="sql", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        group = f"{self.scope.consumer_group}~{self.name}"
        if len(group) > MOST_GROUP:
            raise SettingsError(
                f"the sink's mark is stored as '{group}', which has {len(group)} characters; at most {MOST_GROUP} are accepted:"
                f" shorten the sink's name '{self.name}'"
            )
        self._marks = structs.replace(self.scope, consumer_group=group)

    def _replay_once(self, records: Sequence[Record], given: Sequence[Record]) -> None:
        """The dead letter is not in this database: what was written again is known by a mark of each record, where it matters."""
        with self.database.engine.begin() as connection:
            fit = [
                record for record in records if not self.target.appends or self._is_first(connection, record)
            ]
            if fit:
                self.target.write(connection, fit)

    def _is_first(self, connection: Connection, record: Record) -> bool:
        position = f"{record.event.place}~{record.event.sequence_number}~{part_of(record)}"
        name = blake2b(position.encode(), digest_size=12).hexdigest()
        return positions.claim(connection, self._marks, f"again~{name}", "replay").epoch == 1

    def attach(self, claim: Claim) -> None:
        super().attach(claim)
        self._writes.positions[claim.partition].is_claimed = False

    def _write(self, position: Position, records: Sequence[Record]) -> Sequence[model.WriteResult]:
        if not position.is_claimed:
            self._claim(position)
        return super()._write(position, records)

    def _claim(self, position: Position) -> None:
        """Makes this consumer the owner of the mark, and reads it. The numbers of a hub that was created anew begin again, so
        it has another mark.
        """
        main = position.claim
        incarnation = main.origin.incarnation
        place = f"{main.partition}@{incarnation}" if incarnation else main.partition
        with self.database.engine.begin() as connection:
            claim = positions.claim(connection, self._marks, place, main.owner)
        warn_if_rerouted(
            main, claim.checkpoint.sequence_number if claim.checkpoint else model.NOTHING_SETTLED
        )
        position.claim = claim
        position.stored = claim.checkpoint.sequence_number if claim.checkpoint else model.NOTHING_SETTLED
        position.forget_beyond()
        position.is_claimed = True

    def _covered(
        self, position: Position, records: Sequence[Record], rejections: Rejections
    ) -> Sequence[Record]:
        """The events before the first that is rejected."""
        if rejections:
            first = min(number for number, _ in rejections)
            records = [record for record in records if record.event.sequence_number < first]
        return records if records and position.stored < records[-1].event.sequence_number else ()

    def _keep(
        self, connection: Connection, position: Position, todo: Sequence[Record], rejections: Rejections
    ) -> None:
        if any(record.number in rejections for record in todo):
            raise TryAgainError  # without it, and what is behind it

    def _results(
        self, position: Position, records: Sequence[Record], rejections: Rejections
    ) -> Sequence[model.WriteResult]:
        if rejections:
            position.attempts = 0  # what is behind the rejected event comes again
        return [self._result(position, record, rejections.get(record.number)) for record in records]

    def _result(
        self, position: Position, record: Record, rejection: model.Rejection | None
    ) -> model.WriteResult:
        if record.event.sequence_number <= position.stored:
            return model.WriteResult(model.Outcome.WRITTEN)
        if rejection is not None:
            return model.WriteResult(model.Outcome.REJECT, reason=rejection.detail, rejection=rejection)
        return model.WriteResult(
            model.Outcome.RETRY, reason="an event before it is rejected first", retry_after=0.0
        )
