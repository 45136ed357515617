"""Publishes to Event Hubs without duplicates, and to Service Bus in big batches.

`__all__` lists the public names. Each is loaded at its first use, so a program that publishes events does not load the SDK of
Service Bus, and one without state in SQL does not need SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.foundation.errors import SettingsError, UnavailableError
    from tidemark.foundation.sql.database import SqlDatabase
    from tidemark.publisher.errors import (
        AlreadyPublishedError,
        FlushTimeoutError,
        InvalidProducerStateError,
        MessageTooLargeError,
        Outcome,
        OutcomeUnknownError,
        ProducerClosedError,
        ProducerDisconnectedError,
        PublishError,
        PublishRefusedError,
        PublishSettingsError,
        PublishUnavailableError,
        UnsupportedPublishingError,
    )
    from tidemark.publisher.event_hubs.batch import (
        FailedEvent,
        Published,
        PublishingBatch,
        Unpublished,
        published_sequence_number,
    )
    from tidemark.publisher.event_hubs.batching import BufferLimits
    from tidemark.publisher.event_hubs.buffered_producer import BufferedProducer
    from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key
    from tidemark.publisher.event_hubs.ports.state_store import ProducerStateStore, StateConflictError
    from tidemark.publisher.event_hubs.producer import IdempotentProducer, ProducerOptions
    from tidemark.publisher.event_hubs.states.blob import BlobStateStore
    from tidemark.publisher.event_hubs.states.file import FileStateStore
    from tidemark.publisher.event_hubs.states.memory import MemoryStateStore
    from tidemark.publisher.event_hubs.states.sql import SqlStateStore
    from tidemark.publisher.event_hubs.sync_producer import SyncIdempotentProducer
    from tidemark.publisher.model import (
        PartitionPublishingOptions,
        PartitionPublishingProperties,
        PendingSet,
        ProducerRecord,
        RetryPolicy,
        SavedState,
        StateKey,
    )
    from tidemark.publisher.service_bus.claim_check import ClaimCheck, SyncClaimCheck
    from tidemark.publisher.service_bus.claim_receiver import (
        ClaimPolicy,
        ClaimReceiver,
        Processed,
        SyncClaimReceiver,
        restores_claims,
    )
    from tidemark.publisher.service_bus.core.claims import ClaimSettings
    from tidemark.publisher.service_bus.core.errors import (
        ClaimCheckError,
        ClaimDamagedError,
        ClaimMissingError,
        ClaimSettledError,
        OversizedMessageError,
        PartiallySentError,
        UnsendableMessageError,
    )
    from tidemark.publisher.service_bus.core.packing import Limits
    from tidemark.publisher.service_bus.core.send_report import PlainMessage, Refused, SendReport
    from tidemark.publisher.service_bus.core.sending import SendPolicy
    from tidemark.publisher.service_bus.sender import BigBatchSender
    from tidemark.publisher.service_bus.sync_sender import SyncBigBatchSender

__all__ = [
    "AlreadyPublishedError",
    "BigBatchSender",
    "BlobStateStore",
    "BufferLimits",
    "BufferedProducer",
    "ClaimCheck",
    "ClaimCheckError",
    "ClaimDamagedError",
    "ClaimMissingError",
    "ClaimPolicy",
    "ClaimReceiver",
    "ClaimSettings",
    "ClaimSettledError",
    "FailedEvent",
    "FileStateStore",
    "FlushTimeoutError",
    "IdempotentProducer",
    "InvalidProducerStateError",
    "Limits",
    "MemoryStateStore",
    "MessageTooLargeError",
    "Outcome",
    "OutcomeUnknownError",
    "OversizedMessageError",
    "PartiallySentError",
    "PartitionPublishingOptions",
    "PartitionPublishingProperties",
    "PendingSet",
    "PlainMessage",
    "Processed",
    "ProducerClosedError",
    "ProducerDisconnectedError",
    "ProducerOptions",
    "ProducerRecord",
    "ProducerStateStore",
    "PublishError",
    "PublishRefusedError",
    "PublishSettingsError",
    "PublishUnavailableError",
    "Published",
    "PublishingBatch",
    "Refused",
    "RetryPolicy",
    "SavedState",
    "SendPolicy",
    "SendReport",
    "SettingsError",
    "SqlDatabase",
    "SqlStateStore",
    "StateConflictError",
    "StateKey",
    "SyncBigBatchSender",
    "SyncClaimCheck",
    "SyncClaimReceiver",
    "SyncIdempotentProducer",
    "UnavailableError",
    "Unpublished",
    "UnsendableMessageError",
    "UnsupportedPublishingError",
    "partition_of_key",
    "published_sequence_number",
    "restores_claims",
]

_NAMES = {
    "foundation.errors": "SettingsError UnavailableError",
    "foundation.sql.database": "SqlDatabase",
    "publisher.errors": "AlreadyPublishedError FlushTimeoutError InvalidProducerStateError MessageTooLargeError Outcome OutcomeUnknownError ProducerClosedError ProducerDisconnectedError PublishError PublishRefusedError PublishSettingsError PublishUnavailableError UnsupportedPublishingError",
    "publisher.event_hubs.batch": "FailedEvent Published PublishingBatch Unpublished published_sequence_number",
    "publisher.event_hubs.batching": "BufferLimits",
    "publisher.event_hubs.buffered_producer": "BufferedProducer",
    "publisher.event_hubs.core.partition_keys": "partition_of_key",
    "publisher.event_hubs.ports.state_store": "ProducerStateStore StateConflictError",
    "publisher.event_hubs.producer": "IdempotentProducer ProducerOptions",
    "publisher.event_hubs.states.blob": "BlobStateStore",
    "publisher.event_hubs.states.file": "FileStateStore",
    "publisher.event_hubs.states.memory": "MemoryStateStore",
    "publisher.event_hubs.states.sql": "SqlStateStore",
    "publisher.event_hubs.sync_producer": "SyncIdempotentProducer",
    "publisher.model": "PartitionPublishingOptions PartitionPublishingProperties PendingSet ProducerRecord RetryPolicy SavedState StateKey",
    "publisher.service_bus.claim_check": "ClaimCheck SyncClaimCheck",
    "publisher.service_bus.claim_receiver": "ClaimPolicy ClaimReceiver Processed SyncClaimReceiver restores_claims",
    "publisher.service_bus.core.claims": "ClaimSettings",
    "publisher.service_bus.core.errors": "ClaimCheckError ClaimDamagedError ClaimMissingError ClaimSettledError OversizedMessageError PartiallySentError UnsendableMessageError",
    "publisher.service_bus.core.packing": "Limits",
    "publisher.service_bus.core.send_report": "PlainMessage Refused SendReport",
    "publisher.service_bus.core.sending": "SendPolicy",
    "publisher.service_bus.sender": "BigBatchSender",
    "publisher.service_bus.sync_sender": "SyncBigBatchSender",
}
"""Module below `tidemark` -> its public names."""

if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Load a public name from its module. Raises AttributeError for other names."""
        for module, names in _NAMES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"tidemark.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
