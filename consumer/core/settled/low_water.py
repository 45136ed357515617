"""The low-water mark of one partition: which received events are not settled, and up to which one all are."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from operator import lt

from msgspec import structs

from consumer.model import NOTHING_SETTLED, Checkpoint, Origin

_Entry = tuple[int, str]  # sequence number, offset


class WorkList:
    """The events of one partition in one claim of it, in the order of their sequence numbers.

    The *mark* is the highest event at or below which every received event is settled; missing sequence numbers do not
    hold it back. The checkpoint also stores which events beyond the mark are settled, so that they are skipped when they
    are received again after a restart. An event costs O(1), amortised; `checkpoint` walks all events beyond the mark.

    Of this claim it stores none beyond an event that is written in part, because later events of its keys may be written too:
    received again, that event writes all of its records, and so must what is later than it. What an earlier claim stored was
    settled before any record of that event was written.
    """

    def __init__(self, partition: str, checkpoint: Checkpoint | None) -> None:
        self.partition = partition
        self.closed = False
        """Set when the claim is over: its works are not retried."""
        self.mark = (checkpoint.sequence_number, checkpoint.offset) if checkpoint else (NOTHING_SETTLED, "")
        """Sequence number and offset; (-1, "") while nothing is settled."""
        self._origin = checkpoint.origin if checkpoint else Origin()
        self.received = self.mark[0]
        """The highest sequence number received or settled before this claim."""
        # Runs that were settled under an earlier claim and are not received again yet.
        self._ahead = deque(checkpoint.beyond if checkpoint else ())
        self._queue = deque[
            _Entry
        ]()  # all events received beyond the mark, ascending; the first is unsettled
        self._unsettled: set[int] = set()
        self._settled: set[int] = set()
        self._partial: set[int] = set()  # unsettled events that are written in part
        self._earlier: set[int] = set()  # of the settled ones, those of an earlier claim
        self.kept = NOTHING_SETTLED
        """While the claim drains: up to this event none is given up, also if it was not attempted."""
        self._changes = 0
        self._offered: tuple[Checkpoint | None, int] = (checkpoint, 0)
        self._saved = 0

    @property
    def unsettled(self) -> int:
        return len(self._unsettled)

    @property
    def beyond(self) -> int:
        """How many events received in this claim are settled beyond the mark."""
        return len(self._settled)

    @property
    def dirty(self) -> bool:
        """Whether `checkpoint` would differ from the last one that was saved."""
        return self._changes != self._saved

    @property
    def highest_settled(self) -> int:
        return max(self._settled, default=self.mark[0])

    @property
    def keeps(self) -> bool:
        """Whether an event up to `kept` is unsettled."""
        return bool(self._queue) and self._queue[0][0] <= self.kept

    def note_partial(self, sequence_number: int) -> None:
        """Of the event's several records one was attempted or rejected."""
        self._partial.add(sequence_number)

    def receive(self, sequence_number: int, offset: str) -> bool:
        """Takes an event in. False means: skip it, it is settled or in work already."""
        entry = (sequence_number, offset)
        if sequence_number > self.received:
            self.received = sequence_number
            self._queue.append(entry)
            while self._ahead and self._ahead[0][1] < sequence_number:
                self._ahead.popleft()
            if self._ahead and self._ahead[0][0] <= sequence_number:  # settled under an earlier claim
                self._settled.add(sequence_number)
                self._earlier.add(sequence_number)
                self._advance()
                return False
        elif (
            sequence_number <= self.mark[0]
            or sequence_number in self._unsettled
            or sequence_number in self._settled
        ):
            return False
        else:  # Out of order: no service is known to do that, but no event may be lost if one does.
            self._queue.insert(bisect_left(self._queue, entry), entry)
        self._unsettled.add(sequence_number)
        return True

    def receive_all(self, entries: Sequence[_Entry]) -> bool:
        """`receive` for several events, if all are new and in order, and none may have been settled before. Else nothing, and
        False.
        """
        numbers = [number for number, _ in entries]
        if self._ahead or numbers[0] <= self.received or not all(map(lt, numbers, numbers[1:])):
            return False
        self._queue += entries
        self._unsettled.update(numbers)
        self.received = numbers[-1]
        return True

    def settle(self, sequence_number: int) -> None:
        """The event is written or its dead letter stored. Raises ValueError for one that is not unsettled."""
        self.settle_all((sequence_number,))

    def settle_all(self, sequence_numbers: Sequence[int]) -> None:
        """`settle` for several different events."""
        numbers = set(sequence_numbers)
        if not numbers <= self._unsettled:
            unknown = ", ".join(map(str, sorted(numbers - self._unsettled)))
            raise ValueError(f"event {unknown} of partition {self.partition} is not unsettled")
        self._unsettled -= numbers
        self._partial -= numbers
        self._settled |= numbers
        self._changes += len(numbers)
        self._advance()

    def checkpoint(self, saved_at: float, owner: str, epoch: int) -> Checkpoint:
        """The position as it is now. Call `note_saved` when it is stored."""
        position = Checkpoint(self.partition, *self.mark, tuple(self._runs()), saved_at, owner, epoch)
        checkpoint = structs.replace(position, origin=self._origin)
        self._offered = (checkpoint, self._changes)
        return checkpoint

    def note_saved(self, checkpoint: Checkpoint) -> None:
        """Notes that the checkpoint is stored. If a newer one was made since, the list stays dirty."""
        offered, changes = self._offered
        if checkpoint == offered:
            self._saved = changes

    def _advance(self) -> None:
        queue, settled = self._queue, self._settled
        while queue and queue[0][0] in settled:
            self.mark = queue.popleft()
            settled.remove(self.mark[0])
            self._earlier.discard(self.mark[0])
            self._changes += 1

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Runs of settled sequence numbers beyond the mark, ascending and apart."""
        first = last = NOTHING_SETTLED - 1
        for begin, end in self._pieces():
            if begin != last + 1:
                if first >= 0:
                    yield first, last
                first = begin
            last = end
        if first >= 0:
            yield first, last

    def _pieces(self) -> Iterator[tuple[int, int]]:
        settled = self._settled
        if self._partial:
            bound = min(self._partial)
            settled = {number for number in settled if number < bound or number in self._earlier}
        numbers = sorted(settled)
        begins = [number for number in numbers if number - 1 not in settled]
        ends = [number for number in numbers if number + 1 not in settled]
        yield from zip(begins, ends, strict=True)
        for first, last in self._ahead:
            if last > self.received:
                yield max(first, self.received + 1), last
