"""The state of the producer of one partition, and all its decisions (pure).

A `PartitionPublisher` sends one set of events at a time. Its methods are generators: they yield steps
(`tidemark.publisher.event_hubs.core.steps`), receive the answers, and raise PublishErrors. A shell performs the steps of one
method at a time.

The rules, from the design proposal for idempotent publishing and from its clients:

- A set keeps its numbers once they were sent, until the service answers that it did not store the set. A set with an unknown
  outcome that is sent again is dropped if it was stored. Another set gets a new identity: under the old one the service
  could mistake it for the set before, and drop it.
- The producer adopts the service's state when it first opens the partition. Afterwards it counts by itself, because the
  service's number may lag behind an answer that was lost.
- If the service has forgotten the producer's id, the next set gets a new id. If a set has an unknown outcome or the hub is
  another one, the next set is refused, with advice.
- With a state store, a set is saved before it is sent, together with what was confirmed: one write per set. After a crash,
  the last set still has its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NoReturn

from tidemark.foundation.wording import count_text
from tidemark.publisher import errors, model
from tidemark.publisher.event_hubs.core import failures, steps
from tidemark.publisher.event_hubs.core.failures import FATAL, TERMINAL
from tidemark.publisher.event_hubs.core.steps import Failed, FailureKind, Steps
from tidemark.publisher.event_hubs.core.stored_state import StoredState
from tidemark.publisher.model import Claims, EventSet, NumberedSet, PendingSet, next_number


class PartitionPublisher(StoredState):
    """See the module; the arguments are those of StoredState."""

    # --- state

    @property
    def properties(self) -> model.PartitionPublishingProperties:
        return model.PartitionPublishingProperties(self.partition_id, self.idempotent, *self._agreed)

    # --- operations

    def prepare(self, deadline: float | None = None) -> Steps[None]:
        """Load the saved state and open the link, if necessary."""
        yield from self._retry_attempts(self._prepare, deadline)

    def restore(self, deadline: float | None = None) -> Steps[None]:
        """Load the saved state, if necessary."""
        yield from self._retry_attempts(self._load, deadline)

    def publish(self, events: EventSet, deadline: float | None = None) -> Steps[int | None]:
        """Send the events; returns the number of the first, None without idempotence. After an error they have no numbers."""
        yield from self._retry_attempts(partial(self._send, events), deadline, events)
        return self._first

    def settle(self, deadline: float | None = None) -> Steps[None]:
        """Save what was confirmed since the last save, as the last act. A set with an unknown outcome stays pending."""
        if self._has_unsaved and self._final_error is None:
            save = partial(self._save, self._pending, is_released=self._pending is None)
            yield from self._retry_attempts(save, deadline)

    def abandon_pending(self) -> None:
        """Give up the set with an unknown outcome; the next set gets a new identity.

        Raises InvalidProducerStateError where the options fix the identity.
        """
        if self._unknown_set is None:
            return
        if self._options.producer_group_id is not None:
            problem = failures.of_fixed_identity(self._options.producer_group_id, self._unknown_set.pending)
            raise errors.InvalidProducerStateError(f"partition {self.partition_id}: {problem}")
        self._forget_identity()

    # --- attempts

    def _retry_attempts(
        self,
        attempt: Callable[[], Steps[Failed | None]],
        deadline: float | None,
        events: EventSet | None = None,
    ) -> Steps[None]:
        """Attempt until success, a final failure, or the last allowed attempt. `events` are those to be sent."""
        if self._final_error is not None:
            error, message = self._final_error
            is_other = (
                events is not None and self._unknown_set is not None and not self._unknown_set.is_(events)
            )
            raise error(message, outcome=errors.Outcome.NOT_STORED if is_other else self._outcome)
        unknown, sent = False, 0 if events is None else len(events.sources)
        for number in count(1):
            failed = yield from attempt()
            if failed is None:
                return
            unknown = unknown or failed.kind is FailureKind.UNKNOWN
            if failed.kind in FATAL:
                yield from self._refuse(failed)
            pause = self._retry.pause(
                number, busy=failed.kind is FailureKind.BUSY, retry_after=failed.retry_after
            )
            late = deadline is not None and failed.now + pause >= deadline
            if late or failed.cancelled or number >= self._retry.max_attempts:
                self._give_up(failed, number, sent if unknown else 0)
            answer = yield steps.Pause(pause)
            if isinstance(answer, Failed):
                self._give_up(failed, number, sent if unknown else 0)

    def _send(self, events: EventSet) -> Steps[Failed | None]:
        failed = yield from self._load()
        if failed is None and self._unknown_set is not None and not self._unknown_set.is_(events):
            self._abandon_unknown_set(self._unknown_set)
        failed = failed or (yield from self._raise_level()) or (yield from self._open())
        if failed is not None or not self.idempotent:
            return failed or (yield from self._transfer(None))
        set_ = self._numbered(events)
        if self.writer is not None:
            failed = yield from self._save(set_.pending)
        if failed is not None:
            return failed
        failed = yield from self._transfer(set_)
        if failed is None:
            self._confirm(set_)
        return failed

    def _prepare(self) -> Steps[Failed | None]:
        return (yield from self._load()) or (yield from self._raise_level()) or (yield from self._open())

    def _transfer(self, set_: NumberedSet | None) -> Steps[Failed | None]:
        group, level, _ = self._agreed
        stamp = None
        if set_ is not None and group is not None and level is not None:
            stamp = model.Stamp(group, level, set_.pending.first)
        failed: Failed | None = yield steps.Transfer(stamp)
        if failed is None:
            return None
        self._is_open = self._is_open and not failed.link_lost
        if failed.kind is FailureKind.UNKNOWN and set_ is not None:
            self._unknown_set = set_
        return failed

    def _numbered(self, events: EventSet) -> NumberedSet:
        """The events with the numbers they had, or with the next ones. A set from before a restart must be sent first."""
        if self._unknown_set is not None:
            return self._unknown_set
        last = self._agreed.last_sequence_number
        if last is None:
            raise AssertionError("numbers are given after the link was opened")
        digest, kept = ("", None) if self.writer is None else (events.digest(), events.kept())
        pending = PendingSet(next_number(last), len(events.sources), digest, events.bookmark, kept)
        return NumberedSet(pending, tuple(events.sources))

    def _confirm(self, set_: NumberedSet) -> None:
        saved = set_.pending
        self._first = saved.first
        self._agreed = self._agreed._replace(last_sequence_number=set_.last)
        self._unknown_set = None
        self._bookmark = self._bookmark if saved.bookmark is None else saved.bookmark
        self._has_unsaved = self.writer is not None

    def _abandon_unknown_set(self, set_: NumberedSet) -> None:
        if set_.sources is None and not self.resend_unknown:
            problem = failures.of_other_events(set_.pending, self._bookmark)
            raise errors.InvalidProducerStateError(f"partition {self.partition_id}: {problem}")
        self.abandon_pending()

    # --- the link

    def _open(self) -> Steps[Failed | None]:
        if self._is_open:
            return None
        claims = self._claims() if self.idempotent else None
        answer = yield steps.Open(claims)
        if isinstance(answer, Failed):
            is_forgotten = answer.kind is FailureKind.FORGOTTEN
            return (yield from self._take_new_id(answer)) if is_forgotten else answer
        if claims is not None:
            self._adopt(claims, answer)
        self._is_open = self._is_same_hub = True
        return None

    def _take_new_id(self, failed: Failed) -> Steps[Failed | None]:
        """Take a new id after the service has forgotten ours, if that neither doubles nor loses events."""
        id_ = self._agreed.producer_group_id
        if self._options.producer_group_id is not None:
            problem = failures.of_forgotten_option(id_, failed.story)
            self._end(errors.InvalidProducerStateError, problem, advice="")
        if self.writer is not None:
            answer = yield steps.Identify(again=True)
            if isinstance(answer, Failed):
                return answer
            self._require_hub(answer)
        is_certain = self._unknown_set is None and self._is_same_hub
        if not is_certain and not (self.resend_unknown and self._is_unknown_set_loaded):
            problem = failures.of_forgotten(id_, failed.story, self._pending)
            self._end(errors.InvalidProducerStateError, problem, advice="")
        self._is_same_hub = True
        self._forget_identity()
        return (yield from self._open())

    @property
    def _is_unknown_set_loaded(self) -> bool:
        """Whether the set with an unknown outcome, if any, was loaded. The application sends those of this process again."""
        return self._unknown_set is None or self._unknown_set.sources is None

    def _claims(self) -> Claims:
        if self._agreed.producer_group_id is not None:
            return self._agreed
        options = self._options
        start = None if self._has_begun else options.starting_sequence_number
        return Claims(options.producer_group_id, options.owner_level, start)

    def _adopt(self, claimed: Claims, answered: Claims) -> None:
        """Adopt the service's answer; end the producer if the answer changes what was claimed."""
        if refused := failures.of_claims(claimed, answered):
            self._end(*refused)
        last = claimed.last_sequence_number if claimed is self._agreed else None
        self._agreed = answered if last is None else answered._replace(last_sequence_number=last)

    def _raise_level(self) -> Steps[Failed | None]:
        """Claim the partition with the higher owner level of the options, once no set is pending.

        A higher level starts new numbers, and the service rejects sets of the lower one from then on. It is saved before it is
        claimed, so that the next process claims a higher one, wherever this one ends.
        """
        wanted, current = self._wanted_level, self._agreed.owner_level
        if wanted is None or current is None or wanted <= current or self._unknown_set is not None:
            return None
        if self._has_unsaved or self._unended is not None:
            failed = yield from self._save(None)
            if failed is not None:
                return failed
        if wanted > model.MAX_OWNER_LEVEL:
            self._forget_identity()  # a new id starts at the lowest level
            return None
        self._agreed = Claims(self._agreed.producer_group_id, wanted, None)
        self._is_open, self._has_unsaved = False, self.writer is not None
        return None

    # --- ends

    def _refuse(self, failed: Failed) -> Steps[NoReturn]:
        error = FATAL[failed.kind]
        if failed.kind is FailureKind.DISCONNECTED and self.writer is not None:
            answer = yield steps.Load()  # to say who it is
            if not isinstance(answer, Failed) and answer[0] is not None and answer[0].writer != self.writer:
                self._end_overtaken(answer[0])
        if failed.kind in TERMINAL:
            self._end(error, failed.story)
        raise error(f"partition {self.partition_id}: {failed.story}", outcome=self._outcome)

    def _give_up(self, failed: Failed, attempts: int, unanswered: int) -> NoReturn:
        """Raise the error after the last attempt. `unanswered` events were sent without an answer, also in an earlier call."""
        problem = f"partition {self.partition_id}: {failed.story} ({count_text(attempts, 'attempt')})"
        if self._unknown_set is not None:
            saved = self._unknown_set.pending
            raise errors.OutcomeUnknownError(
                f"{problem}; it is unknown whether the set of {count_text(saved.count, 'event')} from {saved.first} on was stored:"
                " send the same batch again"
            )
        if unanswered:
            raise errors.OutcomeUnknownError(
                f"{problem}; it is unknown whether the {count_text(unanswered, 'event was', 'events were')} stored"
            )
        raise errors.PublishUnavailableError(problem)
