"""The progress of receiving a partition: what was handed over, and which events are missing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from consumer.leasing.start_position import Expired, Start, expired
from consumer.model import Event, PartitionState

EARLIEST = "-1"
"""The SDK's position before the oldest event."""

_FIRST_PATIENCE = 15.0  # seconds in which a partition with events must deliver the first one
_MOST_PATIENCE = 300.0  # seconds, for links after others that delivered nothing
_DOUBLINGS = 10  # from less than a second to more than _MOST_PATIENCE


class Progress:
    """The progress of one `receive` call."""

    def __init__(self, partition: str, start: Start, on_expired: Callable[[Expired], None]) -> None:
        self.partition = partition
        self.start = start
        self.on_expired = on_expired
        first = start.sequence_number
        self.delivered = -1 if first is None else first - start.inclusive
        """The last sequence number that was handed over, or that retention removed."""
        self.began = False
        self.has_gaps = False
        """Whether two links in a row lacked the same event: then numbers are missing in the log itself."""
        self._doubted: int | None = None
        self.silent_links = 0
        """Links in a row that were given up because they delivered nothing."""
        self.last_enqueued: int | None = None
        self.event_bytes = 0.0

    def next_position(self) -> tuple[int | str | datetime, bool]:
        """The SDK's starting position, and whether it is inclusive."""
        if not self.began and self.start.time is not None:
            return datetime.fromtimestamp(self.start.time, UTC), True
        if not self.began and self.start.sequence_number is None and self.start.offset:
            return self.start.offset, True
        if self.delivered < 0:
            return EARLIEST, False
        return self.delivered, False

    def expects(self, state: PartitionState) -> bool:
        """Whether the partition has an event that should have been delivered."""
        if state.empty or state.last_sequence_number <= self.delivered:
            return False
        return self.began or self.start.time is None or state.last_enqueued_at >= self.start.time

    def patience(self, stuck_after: float) -> float:
        """Seconds without an event until the hub is asked whether there are more: at most `stuck_after`, doubled with each
        link in a row that delivered nothing, because opening one may take longer. Five minutes at most, so that a hub that
        answers again is noticed soon.
        """
        first = stuck_after if self.began else min(_FIRST_PATIENCE, stuck_after)
        return max(first, min(first * 2.0 ** min(self.silent_links, _DOUBLINGS), _MOST_PATIENCE))

    def skips(self, events: Sequence[Event]) -> bool:
        """Whether sequence numbers are missing up to the last of the next events."""
        return events[-1].sequence_number - self._place_before(events) > len(events)

    def before_gap(self, events: Sequence[Event]) -> int | None:
        """How many of the next events to hand over before another link asks for the missing ones behind them; None if none
        are missing, or if the gap is accepted.

        Numbers that retention did not remove are missing because they are not in the log (it was compacted, or they were
        never assigned), or because they were lost in transit. In the first case the next link lacks them too; from then on
        no gap of the partition is doubted.
        """
        place, gap = self._first_gap(events)
        if gap is None or self.has_gaps:
            return None
        self.has_gaps, self._doubted = self._doubted == place, place
        return None if self.has_gaps else gap

    def _first_gap(self, events: Sequence[Event]) -> tuple[int, int | None]:
        """The number before the first missing one, and how many of the events come before it."""
        place = self._place_before(events)
        for index, event in enumerate(events):
            if event.sequence_number > place + 1:
                return place, index
            place = max(place, event.sequence_number)
        return place, None

    def expired(self, state: PartitionState, events: Sequence[Event] = ()) -> Expired | None:
        """The events that retention removed before the next events, or, without any, before the next one to come."""
        if not self._continues:
            return None
        return expired(self.delivered, state, [event.sequence_number for event in events])

    def _place_before(self, events: Sequence[Event]) -> int:
        """The number that the first of the next events should follow."""
        return self.delivered if self._continues else events[0].sequence_number - 1

    @property
    def _continues(self) -> bool:
        """Whether the next event has a known predecessor; otherwise receiving begins wherever the hub does."""
        return self.began or self.start.sequence_number is not None

    def advance(self, event: Event) -> None:
        self.delivered, self.began, self.silent_links = event.sequence_number, True, 0

    def measure(self, events: Sequence[Event]) -> None:
        size = sum(event.size for event in events) / len(events)
        self.event_bytes = max(size, 0.9 * self.event_bytes + 0.1 * size)
