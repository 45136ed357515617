"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from consumer.model import DeadLetter


class MemoryDeadLetterStore:
    """A DeadLetterStore of one hub and consumer group."""

    def __init__(self) -> None:
        self._dead_letters: dict[str, DeadLetter] = {}

    async def open(self) -> None:
        """There is nothing to check."""

    async def put(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> None:
        for dead_letter in dead_letters:
            if not self._is_later(dead_letter.id, dead_letter.epoch or None):
                self._dead_letters[dead_letter.id] = dead_letter

    async def list(
        self, *, partition: str | None = None, reason: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        for dead_letter in sorted(self._dead_letters.values(), key=_position):
            if partition in {None, dead_letter.event.partition} and reason in {
                None,
                dead_letter.rejection.reason,
            }:
                yield dead_letter

    async def get(self, dead_letter_id: str) -> DeadLetter | None:
        return self._dead_letters.get(dead_letter_id)

    async def delete(self, dead_letter_ids: Sequence[str], *, epoch: int | None = None) -> int:
        return sum(
            self._dead_letters.pop(dead_letter_id, None) is not None
            for dead_letter_id in dead_letter_ids
            if not self._is_later(dead_letter_id, epoch)
        )

    def _is_later(self, dead_letter_id: str, epoch: int | None) -> bool:
        stored = self._dead_letters.get(dead_letter_id)
        return stored is not None and epoch is not None and stored.epoch > epoch

    async def aclose(self) -> None:
        """Keeps everything: another consumer may open the store again."""


def _position(dead_letter: DeadLetter) -> tuple[str, int]:
    return dead_letter.event.partition, dead_letter.event.sequence_number
