"""What an entity takes in one transfer: sizes, counts, sessions and partitions."""

from collections.abc import Sequence

from devstack.amqp.links import IncomingLink
from devstack.amqp.ports import too_large
from devstack.amqp.wire.errors import MESSAGE_TOO_LARGE, NOT_ALLOWED, AmqpError
from devstack.service_bus.broker import Topic
from devstack.service_bus.messages.messages import identity
from devstack.service_bus.queue import Queue
from devstack.service_bus.settings import EntityLimits

MAX_BATCH_COUNT = 4500
"""Messages in a batch (azure-sdk-for-js issue 12041)."""

MAX_BATCH_SIZE = "com.microsoft:max-message-batch-size"


def announce_limits(link: IncomingLink, limits: EntityLimits) -> None:
    """Give a sender's link the limits of its entity, before the answer to its attach is sent."""
    if limits.message is not None:
        link.max_message_size = limits.message
    if limits.batch is not None:
        link.properties = {MAX_BATCH_SIZE: limits.batch}


def check_transfer(
    entity: Queue | Topic, parts: Sequence[bytes], size: int, delivery_id: int, limit: int
) -> None:
    """Raises AmqpError unless the entity takes these messages, `size` bytes in one transfer, at once."""
    limits = entity.limits
    counted = size + limits.header * len(parts)
    if counted > limit:
        raise too_large(delivery_id, counted, limit)
    if limits.unannounced is not None and size > limits.unannounced:
        raise AmqpError(MESSAGE_TOO_LARGE, "The message is too large.")
    if len(parts) > MAX_BATCH_COUNT:
        raise AmqpError(NOT_ALLOWED, f"a batch of {len(parts)} messages, accepted: up to {MAX_BATCH_COUNT}")
    if isinstance(entity, Queue) and entity.settings.requires_session:
        _check_sessions(entity, parts)
    if limits.partitioned and len({_partition(part) for part in parts}) > 1:
        raise AmqpError(
            NOT_ALLOWED,
            "Batching brokered messages with distinct SessionId or PartitionKey is not supported for an entity "
            "with partitioning enabled.",
        )


def _check_sessions(queue: Queue, parts: Sequence[bytes]) -> None:
    for part in parts:
        if not identity(part).session_id:
            raise AmqpError(
                NOT_ALLOWED, f"{queue.name!r} requires sessions, and a message without a session id was sent"
            )


def _partition(part: bytes) -> str | None:
    ids = identity(part)
    return ids.session_id or ids.partition_key
