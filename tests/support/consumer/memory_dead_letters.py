"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from consumer.model import DeadLetter


class MemoryDeadLetterStore:
    """A DeadLetterStore of one hub and consumer group."""

    def __init__(self) -> None:
        self._letters: dict[str, DeadLetter] = {}

    async def open(self) -> None:
        """There is nothing to check."""

    async def put(self, letters: Sequence[DeadLetter], *, deadline: float) -> None:
        self._letters.update((letter.id, letter) for letter in letters)

    async def list(
        self, *, partition: str | None = None, reason: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        for letter in sorted(self._letters.values(), key=_position):
            if partition in {None, letter.event.partition} and reason in {None, letter.rejection.reason}:
                yield letter

    async def get(self, letter_id: str) -> DeadLetter | None:
        return self._letters.get(letter_id)

    async def delete(self, letter_ids: Sequence[str]) -> int:
        return sum(self._letters.pop(letter_id, None) is not None for letter_id in letter_ids)

    async def aclose(self) -> None:
        """Keeps everything: another consumer may open the store again."""


def _position(letter: DeadLetter) -> tuple[str, int]:
    return letter.event.partition, letter.event.sequence_number
