"""What the producer of one partition knows, and every decision about it (pure).

A `PartitionPublisher` sends one set of events after the other. Its methods are generators: they yield the steps that
a shell takes (`tidemark.publisher.event_hubs.core.steps`) and are sent the answers; they raise PublishErrors. The shell runs one at a time.

The rules, from the design proposal for idempotent publishing and from what its clients do:

- Numbers belong to a set once they were sent, until the service has answered that it did not take them. A set whose
  outcome is not known keeps them: sent again, it is dropped if it was stored. Another set gets a new identity,
  because under the old one the service may take it for the set before it, and drop it.
- The service's state is taken over when a partition is opened for the first time. Afterwards the number is ours: what
  the service says may lag behind an answer that got lost.
- Where the service has forgotten a producer's id, what is sent next gets a new one, unless a set is in doubt or the hub is
  another one: then it is refused, with the way on.
- With a state store the set that is about to be sent is saved first, together with what was confirmed: one write per
  set, and none after it. After a crash the last set has its numbers still.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import count
from typing import NoReturn

from tidemark.publisher import errors, model
from tidemark.publisher.errors import PublishError
from tidemark.publisher.event_hubs.core import failures, steps
from tidemark.publisher.event_hubs.core.event_sets import EventSet, NumberedSet, following
from tidemark.publisher.event_hubs.core.failures import FATAL, TERMINAL
from tidemark.publisher.event_hubs.core.steps import Failed, FailureKind, Steps
from tidemark.publisher.model import Claims, PendingSet


@dataclass(eq=False)
class PartitionPublisher:
    """See the module. `writer` names this producer in the saved state; None: nothing is loaded or saved. With
    `resend_unknown` a set that is pending in the saved state is sent again under a new identity where the service cannot
    tell any more whether it is stored.
    """

    partition_id: str
    _options: model.PartitionPublishingOptions
    _retry: model.RetryPolicy
    _: KW_ONLY
    idempotent: bool = True
    writer: str | None = None
    resend_unknown: bool = False

    def __post_init__(self) -> None:
        self._known = Claims()  # what is agreed with the service; its number is the last one published
        self._is_open = False
        self._unresolved: NumberedSet | None = None
        self._bookmark: str | None = None
        self._ended: tuple[type[PublishError], str] | None = None
        self._loaded = self.writer is None
        self._token: str | None = None
        self._in_doubt = False  # whether what the store has is what the token stands for
        self._unsaved = False
        self._revision = 0
        self._began = False  # whether the number of the options is out of date
        self._first: int | None = None  # of the set published last
        self._hub: str | None = None  # when it was created
        self._is_same_hub = True  # False: the saved state does not say of which hub it is

    # --- what is known

    @property
    def properties(self) -> model.PartitionPublishingProperties:
        return model.PartitionPublishingProperties(self.partition_id, self.idempotent, *self._known)

    @property
    def saved_state(self) -> model.SavedState:
        """Where to go on; after `prepare`."""
        return model.SavedState(self._bookmark, self._pending)

    @property
    def _pending(self) -> PendingSet | None:
        return None if self._unresolved is None else self._unresolved.pending

    # --- what is done

    def prepare(self, deadline: float | None = None) -> Steps[None]:
        """Load the saved state and open the link, unless that is done."""
        yield from self._persevere(self._prepare, deadline)

    def restore(self, deadline: float | None = None) -> Steps[None]:
        """Load the saved state, unless that is done."""
        yield from self._persevere(self._load, deadline)

    def publish(self, events: EventSet, deadline: float | None = None) -> Steps[int | None]:
        """Send the events; the number of the first, None without idempotence. After an error they have no numbers."""
        yield from self._persevere(partial(self._send, events), deadline, events)
        return self._first

    def settle(self, deadline: float | None = None) -> Steps[None]:
        """Save what was confirmed since the last save. A set with an unknown outcome stays pending."""
        if self._unsaved and self._ended is None:
            yield from self._persevere(partial(self._save, self._pending), deadline)

    def abandon_pending(self) -> None:
        """Give up the set whose outcome is unknown: what is sent next gets a new identity.

        Raises InvalidProducerStateError where the options fix the identity.
        """
        if self._unresolved is None:
            return
        if self._options.producer_group_id is not None:
            story = failures.of_fixed_identity(self._options.producer_group_id, self._unresolved.pending)
            raise errors.InvalidProducerStateError(f"partition {self.partition_id}: {story}")
        self._forget_identity()

    def _forget_identity(self) -> None:
        self._unresolved = None
        self._known = Claims()
        self._began = True
        self._is_open = False

    # --- attempts

    def _persevere(
        self,
        attempt: Callable[[], Steps[Failed | None]],
        deadline: float | None,
        events: EventSet | None = None,
    ) -> Steps[None]:
        """Attempts until one succeeds, fails for good, or no more are allowed. `events`: what is sent."""
        if self._ended is not None:
            error, message = self._ended
            is_other = (
                events is not None and self._unresolved is not None and not self._unresolved.is_(events)
            )
            raise error(message, outcome=errors.Outcome.NOT_STORED if is_other else self._outcome)
        unknown, sent = False, 0 if events is None else len(events.sources)
        for number in count(1):
            failed = yield from attempt()
            if failed is None:
                return
            unknown = unknown or failed.kind is FailureKind.UNKNOWN
            if failed.kind in FATAL:
                self._refuse(failed)
            pause = self._retry.pause(
                number, busy=failed.kind is FailureKind.BUSY, retry_after=failed.retry_after
            )
            late = deadline is not None and failed.now + pause >= deadline
            if late or failed.cancelled or number >= self._retry.max_attempts:
                self._give_up(failed, number, sent if unknown else 0)
            rested = yield steps.Pause(pause)
            if isinstance(rested, Failed):
                self._give_up(failed, number, sent if unknown else 0)

    def _send(self, events: EventSet) -> Steps[Failed | None]:
        failed = yield from self._load()
        if failed is None and self._unresolved is not None and not self._unresolved.is_(events):
            self._leave_behind(self._unresolved)
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
        group, level, _ = self._known
        stamp = None
        if set_ is not None and group is not None and level is not None:
            stamp = model.Stamp(group, level, set_.pending.first)
        answer = yield steps.Transfer(stamp)
        if isinstance(answer, steps.Done):
            return None
        failed: Failed = answer
        self._is_open = self._is_open and not failed.link_lost
        if failed.kind is FailureKind.UNKNOWN and set_ is not None:
            self._unresolved = set_
        return failed

    def _numbered(self, events: EventSet) -> NumberedSet:
        """The events with their numbers: those they had, else the next ones. A set from before a restart stays one, for
        nothing else may be sent before it.
        """
        if self._unresolved is not None:
            return self._unresolved
        last = self._known.last_sequence_number
        if last is None:
            raise AssertionError("numbers are given after the link was opened")
        digest = "" if self.writer is None else events.digest()
        pending = PendingSet(following(last), len(events.sources), digest, events.bookmark)
        return NumberedSet(pending, tuple(events.sources))

    def _confirm(self, set_: NumberedSet) -> None:
        saved = set_.pending
        self._first = saved.first
        self._known = self._known._replace(last_sequence_number=set_.last)
        self._unresolved = None
        self._bookmark = self._bookmark if saved.bookmark is None else saved.bookmark
        self._unsaved = self.writer is not None

    def _leave_behind(self, set_: NumberedSet) -> None:
        """Something else is to be sent than the set whose outcome is unknown."""
        if set_.sources is None and not self.resend_unknown:
            story = failures.of_other_events(set_.pending, self._bookmark)
            raise errors.InvalidProducerStateError(f"partition {self.partition_id}: {story}")
        self.abandon_pending()

    # --- the link

    def _open(self) -> Steps[Failed | None]:
        if self._is_open:
            return None
        claims = self._claims() if self.idempotent else None
        answer = yield steps.Open(claims)
        if isinstance(answer, Failed):
            is_forgotten = answer.kind is FailureKind.FORGOTTEN
            return (yield from self._begin_anew(answer)) if is_forgotten else answer
        if claims is not None:
            self._adopt(claims, answer)
        self._is_open = self._is_same_hub = True
        return None

    def _begin_anew(self, failed: Failed) -> Steps[Failed | None]:
        """The service does not know the id: take a new one, if that doubles and loses nothing."""
        id_ = self._known.producer_group_id
        if self._options.producer_group_id is not None:
            story = failures.of_forgotten_option(id_, failed.story)
            self._end(errors.InvalidProducerStateError, story, advice="")
        if self.writer is not None:
            answer = yield steps.Identify(again=True)
            if isinstance(answer, Failed):
                return answer
            self._require_hub(answer)
        is_certain = self._unresolved is None and self._is_same_hub
        if not is_certain and not (self.resend_unknown and self._is_from_before):
            story = failures.of_forgotten(id_, failed.story, self._pending)
            self._end(errors.InvalidProducerStateError, story, advice="")
        self._is_same_hub = True
        self._forget_identity()
        return (yield from self._open())

    @property
    def _is_from_before(self) -> bool:
        """Whether what is in doubt is of the saved state: what this process sent is its application's to send again."""
        return self._unresolved is None or self._unresolved.sources is None

    def _claims(self) -> Claims:
        if self._known.producer_group_id is not None:
            return self._known
        options = self._options
        start = None if self._began else options.starting_sequence_number
        return Claims(options.producer_group_id, options.owner_level, start)

    def _adopt(self, claimed: Claims, said: Claims) -> None:
        """Take over what the service says; check what it has to leave as it was."""
        if refused := failures.of_claims(claimed, said):
            self._end(*refused)
        last = claimed.last_sequence_number if claimed is self._known else None
        self._known = said if last is None else said._replace(last_sequence_number=last)

    def _raise_level(self) -> Steps[Failed | None]:
        """Claim the partition with the owner level of the options, once nothing is pending under the saved one: a
        higher level begins anew with its numbers, and the service takes no set under the lower one any more.
        """
        wanted, has = self._options.owner_level, self._known.owner_level
        if wanted is None or has is None or wanted <= has or self._unresolved is not None:
            return None
        if self._unsaved:
            failed = yield from self._save(None)
            if failed is not None:
                return failed
        self._known = Claims(self._known.producer_group_id, wanted, None)
        self._is_open = False
        return None

    # --- the saved state

    def _load(self) -> Steps[Failed | None]:
        if self._loaded:
            return None
        answer = yield steps.Load()
        if isinstance(answer, Failed):
            return answer
        created_at = yield steps.Identify()
        if isinstance(created_at, Failed):
            return created_at
        record, self._token = answer
        self._hub = created_at
        self._loaded = True
        if record is not None:
            self._restore(record, created_at)
        return None

    def _require_hub(self, created_at: str | None) -> None:
        """What is not known decides nothing."""
        if self._hub is None or created_at is None:
            self._is_same_hub = False
        elif self._hub != created_at:
            story = failures.of_another_hub(self._hub, created_at)
            self._end(errors.InvalidProducerStateError, story, advice="")

    def _restore(self, record: model.ProducerRecord, created_at: str | None) -> None:
        options = self._options
        if options.producer_group_id not in {None, record.producer_group_id}:
            raise errors.PublishSettingsError(
                f"partition {self.partition_id}: producer_group_id is {options.producer_group_id}, but the saved state "
                f"is of {record.producer_group_id}; leave the option out"
            )
        if options.owner_level is not None and options.owner_level < record.owner_level:
            self._end(
                errors.ProducerDisconnectedError,
                f"its state was claimed with owner level {record.owner_level}, this producer has {options.owner_level}",
            )
        self._is_same_hub = record.hub_created_at is not None
        self._hub = record.hub_created_at or self._hub
        self._require_hub(created_at)
        self._known = Claims(record.producer_group_id, record.owner_level, record.last_published)
        self._bookmark, self._revision, self._began = record.bookmark, record.revision, True
        self._unresolved = None if record.pending is None else NumberedSet(record.pending)

    def _save(self, pending: PendingSet | None) -> Steps[Failed | None]:
        if self._in_doubt:
            failed = yield from self._look_again()
            if failed is not None:
                return failed
        group, level, last = self._known
        if group is None or level is None or last is None or self.writer is None:
            return None  # nothing to save yet
        self._revision += 1
        record = model.ProducerRecord(
            group, level, last, self._bookmark, pending, self.writer, self._revision, self._hub
        )
        answer = yield steps.Save(record, self._token)
        if isinstance(answer, Failed):
            self._in_doubt = True
            if answer.kind is not FailureKind.CONFLICT:
                return answer
            # A write whose answer got lost and that the client sent again conflicts with itself.
            return (yield from self._look_again()) or (yield from self._save(pending))
        self._token, self._unsaved = answer, pending is not None
        return None

    def _look_again(self) -> Steps[Failed | None]:
        """After a write whose outcome is unknown: the token of what is there, if nobody else has written."""
        answer = yield steps.Load()
        if isinstance(answer, Failed):
            return answer
        found, token = answer
        if found is None and self._token is not None:
            self._end(errors.InvalidProducerStateError, failures.DELETED, advice="")
        if found is not None and token != self._token and found.writer != self.writer:
            self._end(
                errors.ProducerDisconnectedError,
                f"another producer ({found.writer}, owner level {found.owner_level}) has taken its saved state over",
            )
        self._token, self._in_doubt = token, False
        return None

    # --- ends

    def _end(self, error: type[PublishError], story: str, *, advice: str | None = None) -> NoReturn:
        """No more events go to this partition. `advice` in place of that of the error."""
        said = failures.advice_on(error, has_state=self.writer is not None) if advice is None else advice
        message = f"partition {self.partition_id}: {story}{said}"
        self._ended = (error, message)
        raise error(message, outcome=self._outcome)

    @property
    def _outcome(self) -> errors.Outcome:
        return errors.Outcome.NOT_STORED if self._unresolved is None else errors.Outcome.UNKNOWN

    def _refuse(self, failed: Failed) -> NoReturn:
        error = FATAL[failed.kind]
        if failed.kind in TERMINAL:
            self._end(error, failed.story)
        raise error(f"partition {self.partition_id}: {failed.story}", outcome=self._outcome)

    def _give_up(self, failed: Failed, attempts: int, in_doubt: int) -> NoReturn:
        """After the last attempt. `in_doubt` events were sent without an answer; those of an earlier call count as well."""
        story = f"partition {self.partition_id}: {failed.story} ({attempts} attempt{'s' * (attempts > 1)})"
        if self._unresolved is not None:
            saved = self._unresolved.pending
            raise errors.OutcomeUnknownError(
                f"{story}; it is unknown whether the {saved.count} events from {saved.first} on were stored: send the "
                "same batch again"
            )
        if in_doubt:
            raise errors.OutcomeUnknownError(
                f"{story}; it is unknown whether the {in_doubt} events were stored"
            )
        raise errors.PublishUnavailableError(story)
