"""The state of the producer of one partition, as it is loaded from a store and saved there (pure).

Each save needs the token of the last, so a process that was overtaken is fenced before it sends anything new. A set that it had
saved before may still be on its way: the process that goes on sends that set first, under the same numbers, and then raises the
owner level, so that the service refuses the other process. No clock decides anything.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NoReturn

from tidemark.publisher import errors, model
from tidemark.publisher.errors import PublishError
from tidemark.publisher.event_hubs.core import failures, steps
from tidemark.publisher.event_hubs.core.steps import Failed, FailureKind, Steps
from tidemark.publisher.model import Claims, NumberedSet, PendingSet


@dataclass(eq=False)
class StoredState:
    """See the module. `writer` names this producer in the saved state; None: nothing is loaded or saved. `process` and `since`
    are those of a Holder. `resend_unknown`: if the service has forgotten whether the pending set of the saved state is stored,
    the set is sent again with new numbers.
    """

    partition_id: str
    _options: model.PartitionPublishingOptions
    _retry: model.RetryPolicy
    _: KW_ONLY
    idempotent: bool = True
    writer: str | None = None
    process: str = "this process"
    since: str = "an unknown time"
    resend_unknown: bool = False

    def __post_init__(self) -> None:
        self._agreed = Claims()  # agreed with the service; the number is that of the last published event
        self._is_open = False
        self._unknown_set: NumberedSet | None = None
        self._bookmark: str | None = None
        self._final_error: tuple[type[PublishError], str] | None = None
        self._loaded = self.writer is None
        self._token: str | None = None
        self._is_token_unsure = False  # after a save without an answer
        self._has_unsaved = False
        self._revision = 0
        self._has_begun = False  # whether starting_sequence_number no longer applies
        self._first: int | None = None  # number of the last published set
        self._hub_created_at: str | None = None
        self._is_same_hub = True  # False if the saved state has no creation time of its hub
        self._wanted_level = self._options.owner_level
        self._epoch = 0
        self._unended: model.Holder | None = None

    @property
    def saved_state(self) -> model.SavedState:
        """Where an application goes on. Call `prepare` or `restore` before."""
        return model.SavedState(self._bookmark, self._pending, self._unended)

    @property
    def _pending(self) -> PendingSet | None:
        return None if self._unknown_set is None else self._unknown_set.pending

    @property
    def loaded_pending(self) -> PendingSet | None:
        """The pending set of a process before this one."""
        set_ = self._unknown_set
        return None if set_ is None or set_.sources is not None else set_.pending

    def _forget_identity(self) -> None:
        self._unknown_set = None
        self._agreed = Claims()
        self._wanted_level = self._options.owner_level
        self._has_begun = True
        self._is_open = False

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
        self._hub_created_at = created_at
        self._loaded = True
        if record is not None:
            self._restore(record, created_at)
        return None

    def _require_hub(self, created_at: str | None) -> None:
        """End the producer if the hub is another one. An unknown creation time is no reason to end."""
        if self._hub_created_at is None or created_at is None:
            self._is_same_hub = False
        elif self._hub_created_at != created_at:
            problem = failures.of_another_hub(self._hub_created_at, created_at)
            self._end(errors.InvalidProducerStateError, problem, advice="")

    def _restore(self, record: model.ProducerRecord, created_at: str | None) -> None:
        options = self._options
        if options.producer_group_id not in {None, record.producer_group_id}:
            raise errors.PublishSettingsError(
                f"partition {self.partition_id}: producer_group_id is {options.producer_group_id}, but the saved state "
                f"has {record.producer_group_id}; leave the option out"
            )
        if options.owner_level is not None and options.owner_level < record.owner_level:
            self._end(
                errors.ProducerDisconnectedError,
                f"its state was claimed with owner level {record.owner_level}, this producer has {options.owner_level}",
            )
        self._is_same_hub = record.hub_created_at is not None
        self._hub_created_at = record.hub_created_at or self._hub_created_at
        self._require_hub(created_at)
        self._agreed = Claims(record.producer_group_id, record.owner_level, record.last_published)
        self._bookmark, self._revision, self._has_begun = record.bookmark, record.revision, True
        self._unknown_set = None if record.pending is None else NumberedSet(record.pending)
        self._epoch = max(record.holder.epoch, record.owner_level)
        if not record.is_released:
            self._unended = record.holder
            if options.owner_level is None and options.producer_group_id is None:
                self._take_over()

    def _take_over(self) -> None:
        """Want an owner level above all that earlier holders of the state may have claimed."""
        self._wanted_level = self._epoch + 1
        self._epoch = 0 if self._wanted_level > model.MAX_OWNER_LEVEL else self._wanted_level

    def _save(self, pending: PendingSet | None, *, is_released: bool = False) -> Steps[Failed | None]:
        if self._is_token_unsure:
            failed = yield from self._reload_token()
            if failed is not None:
                return failed
        group, level, last = self._agreed
        if group is None or level is None or last is None or self.writer is None:
            return None  # nothing to save yet
        self._revision += 1
        record = model.ProducerRecord(
            group,
            level,
            last,
            self._bookmark,
            pending,
            self.writer,
            self._revision,
            self._hub_created_at,
            model.Holder(self.process, self.since, max(self._epoch, level)),
            is_released,
        )
        answer = yield steps.Save(record, self._token)
        if isinstance(answer, Failed):
            self._is_token_unsure = True
            if answer.kind is not FailureKind.CONFLICT:
                return answer
            # If the answer of a save is lost, the client repeats the save, which then conflicts with itself.
            again = self._save(pending, is_released=is_released)
            return (yield from self._reload_token()) or (yield from again)
        self._token, self._has_unsaved = answer, pending is not None
        return None

    def _reload_token(self) -> Steps[Failed | None]:
        """Get the token of the stored state after a save without an answer, if no other producer has written."""
        answer = yield steps.Load()
        if isinstance(answer, Failed):
            return answer
        stored, token = answer
        if stored is None and self._token is not None:
            self._end(errors.InvalidProducerStateError, failures.DELETED, advice="")
        if stored is not None and token != self._token and stored.writer != self.writer:
            self._end_overtaken(stored)
        self._token, self._is_token_unsure = token, False
        return None

    # --- ends

    def _end(self, error: type[PublishError], problem: str, *, advice: str | None = None) -> NoReturn:
        """Publish no more to this partition. `advice` replaces that of the error."""
        ending = failures.advice_on(error, has_state=self.writer is not None) if advice is None else advice
        message = f"partition {self.partition_id}: {problem}{ending}"
        self._final_error = (error, message)
        raise error(message, outcome=self._outcome)

    @property
    def _outcome(self) -> errors.Outcome:
        return errors.Outcome.NOT_STORED if self._unknown_set is None else errors.Outcome.UNKNOWN

    def _end_overtaken(self, stored: model.ProducerRecord) -> NoReturn:
        mine = model.Holder(self.process, self.since, self._epoch)
        self._end(errors.ProducerDisconnectedError, failures.of_takeover(stored.holder, mine), advice="")
