"""A consumer's end: where it starts, what it may read, and sending at the speed of its credit."""

import re
from typing import Any

from devstack.amqp.links import OutgoingLink
from devstack.amqp.misbehaviour import sever
from devstack.amqp.ports import Settlement
from devstack.amqp.wire.errors import INVALID_FIELD, AmqpError
from devstack.amqp.wire.values import Array, Described
from devstack.event_hubs.namespace import Namespace
from devstack.event_hubs.storage.events import runtime_annotations, with_delivery_annotations
from devstack.event_hubs.storage.hubs import Hub, Partition
from devstack.event_hubs.storage.log import Start
from devstack.event_hubs.storage.readers import Readers
from devstack.servers.faults import Fault

_EPOCH = "com.microsoft:epoch"
_RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"
_SELECTOR = "apache.org:selector-filter:string"
_EXPRESSION = re.compile(
    r"amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time)\s*(>=|>)\s*'?([^']*?)'?\s*"
)
_FILTER_FIELD = 7  # of a source
# One write to the socket: enough that its cost vanishes, and little enough to notice a slow reader.
_CHUNK, _CHUNK_BYTES = 512, 256 * 1024


class PartitionSource:
    """Sends the events of one partition, in order and settled, from a start on.

    Raises AmqpError for a start that is refused, and if the reader may not join the others.
    """

    def __init__(
        self, namespace: Namespace, hub: Hub, partition: Partition, group: str, link: OutgoingLink
    ) -> None:
        properties = link.attach.properties or {}
        self.hub = hub
        self.partition = partition
        self.group = group
        self.link = link
        self.name = link.name
        self.epoch: int | None = properties.get(_EPOCH)
        self.next_sequence_number = partition.log.find(parse_start(link.attach.source))
        self._namespace = namespace
        self._readers: Readers = partition.readers(group)
        self._tells_runtime = is_desired(_RUNTIME_METRIC, link.attach.desired_capabilities)
        self._held = False
        self._readers.join(self)
        link.pre_settled = True  # clients of Event Hubs settle nothing
        partition.grown.add(self.on_credit)
        namespace.ends.add(self)

    def on_credit(self) -> None:
        while not self._held and (room := self.link.room) > 0:
            messages, after = self.partition.log.read(
                self.next_sequence_number, min(room, _CHUNK), _CHUNK_BYTES
            )
            if not messages:
                return
            fault = self._namespace.faults.take(f"deliver:{self.link.address}")
            if fault is None:
                self.next_sequence_number = after
            elif fault.kind != "duplicate":
                self._misbehave(fault)
                return
            self.link.send_settled(self._annotated(messages))

    def rewind(self, sequence_number: int) -> None:
        """Deliver again from a sequence number on."""
        self.next_sequence_number = sequence_number
        self.on_credit()

    def displaced(self, error: AmqpError) -> None:
        self.link.detach(error)

    def on_settlement(self, settlement: Settlement) -> None:
        """What is sent settled is not settled again."""

    def on_detached(self) -> None:
        self._readers.leave(self)
        self.partition.grown.discard(self.on_credit)
        self._namespace.ends.discard(self)

    def _annotated(self, messages: list[bytes]) -> list[bytes]:
        if not self._tells_runtime:
            return messages
        log = self.partition.log
        now_ms = int(self._namespace.clock() * 1000)
        annotations = runtime_annotations(
            log.last_sequence_number, log.last_offset, log.last_enqueued_ms, now_ms
        )
        return [with_delivery_annotations(annotations, message) for message in messages]

    def _misbehave(self, fault: Fault) -> None:
        if fault.kind != "latency":
            sever(fault, self.link)
            return
        self._held = True
        self._namespace.later(fault.seconds, self._release)

    def _release(self) -> None:
        self._held = False
        self.on_credit()


def parse_start(source: Described | None) -> Start:
    """Where a consumer wants to begin: as its filter says, without one at the first event.

    Raises AmqpError for a filter that is not understood.
    """
    fields = source.value if source is not None and isinstance(source.value, list) else []
    filters = fields[_FILTER_FIELD] if len(fields) > _FILTER_FIELD else None
    if not isinstance(filters, dict) or _SELECTOR not in filters:
        return Start()
    selector: Any = filters[_SELECTOR]
    expression = selector.value if isinstance(selector, Described) else selector
    if isinstance(expression, bytes):
        expression = expression.decode(errors="replace")
    match = _EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        accepted = "amqp.annotation.x-opt-{offset|sequence-number|enqueued-time} {>|>=} '<value>'"
        raise AmqpError(INVALID_FIELD, f"the selector is {expression!r}, accepted: {accepted}")
    kind, comparison, value = match.groups()
    return Start(kind, value, comparison == ">=")


def is_desired(capability: str, desired: Any) -> bool:
    return capability in desired if isinstance(desired, Array) else capability == desired
