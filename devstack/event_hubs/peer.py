"""What one AMQP connection to the namespace may do: its producers, consumers and tokens."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs

from devstack.amqp.connection import Connection
from devstack.amqp.links import IncomingLink, OutgoingLink
from devstack.amqp.misbehaviour import answer, receive, refusal, sever
from devstack.amqp.ports import ACCEPTED, Delivery, Sink, Source, rejected
from devstack.amqp.requests import CBS_ADDRESS, Reply, RequestNode, cbs_node, is_key, verify_sas
from devstack.amqp.wire.errors import INVALID_FIELD, NOT_ALLOWED, NOT_FOUND, UNAUTHORIZED, AmqpError
from devstack.amqp.wire.messages import Request
from devstack.amqp.wire.values import Array, Described, Symbol
from devstack.event_hubs.management import respond
from devstack.event_hubs.namespace import Namespace, Refused
from devstack.event_hubs.sources import PartitionSource, is_desired
from devstack.event_hubs.storage.events import parse_delivery
from devstack.event_hubs.storage.hubs import Hub, Partition
from devstack.event_hubs.storage.idempotence import CAPABILITY, Publishers, link_properties, read_asked

_SENDER = re.compile(r"([^/]+)(?:/partitions/([^/]+))?", re.IGNORECASE)
_RECEIVER = re.compile(r"([^/]+)/consumergroups/([^/]+)/partitions/([^/]+)", re.IGNORECASE)
_MANAGEMENT = "$management"
_FOREVER = float("inf")


class EventSink:
    """A producer's end: of one partition, or of the gateway that chooses one for each delivery."""

    def __init__(
        self, namespace: Namespace, hub: Hub, partition: Partition | None, link: IncomingLink
    ) -> None:
        self.hub = hub
        self.link = link
        self._partition = partition
        self._namespace = namespace
        self._publishers = self._publish_idempotently(link)
        link.on_part = self._on_part
        namespace.ends.add(self)

    def on_message(self, delivery: Delivery) -> None:
        fault = self._namespace.faults.take(f"send:{self.link.address}")
        receive(delivery, self._store, fault, link=self.link, timers=self._namespace)

    def on_detached(self) -> None:
        self._namespace.ends.discard(self)

    def _on_part(self) -> None:
        fault = self._namespace.faults.take(f"part:{self.link.address}")
        if fault is not None:
            sever(fault, self.link)

    def _publish_idempotently(self, link: IncomingLink) -> Publishers | None:
        """Agree on it if the link wants it and the hub offers it; raises AmqpError for a producer that is refused."""
        if not is_desired(CAPABILITY, link.attach.desired_capabilities) or not self.hub.idempotence.offered:
            return None
        if self._partition is None:
            raise AmqpError(
                NOT_ALLOWED,
                f"idempotent publishing to {link.address!r}, accepted: a partition, not the gateway",
            )
        publishers = self._partition.publishers
        link.properties = link_properties(publishers.attach(read_asked(link.attach.properties)))
        link.offered_capabilities = Array([Symbol(CAPABILITY)])
        return publishers

    def _store(self, delivery: Delivery) -> Described:
        """Append all events of a delivery to one partition; returns the outcome."""
        try:
            events = parse_delivery(delivery.message_format, delivery.payload)
            if not events:
                raise AmqpError(INVALID_FIELD, "a batch without events")
            partition = self._partition or self.hub.choose(events[0].partition_key)
            if self._publishers is None:
                partition.append(events)
            else:
                self._publishers.publish(
                    [event.claims for event in events], lambda note: partition.append(events, note=note)
                )
        except AmqpError as error:
            return rejected(error)
        return ACCEPTED


class Peer:
    """The service behind the links of one connection.

    Hubs are open to a connection while a token is good that was accepted on it; what the token
    was issued for is not looked at.
    """

    def __init__(self, namespace: Namespace, connection: Connection) -> None:
        self._namespace = namespace
        self._connection = connection
        self._authorized_until = 0.0
        self._cbs = cbs_node(self._verify)
        self._management = RequestNode(self._manage)
        namespace.peers.add(self)

    def sign_in(self, name: str, password: str) -> bool:
        if not is_key(name, password, self._namespace.key):
            return False
        self._authorized_until = _FOREVER  # as long as the connection lasts
        return True

    def attach_sink(self, link: IncomingLink) -> Sink:
        with self._remembering_refusal(link.address):
            return self._sink(link)

    def attach_source(self, link: OutgoingLink) -> Source:
        with self._remembering_refusal(link.address):
            return self._source(link)

    def check_token(self) -> None:
        if 0 < self._authorized_until <= self._namespace.clock():
            self.revoke()

    def revoke(self) -> None:
        """Take the token for expired, until another is put."""
        self._authorized_until = 0.0
        for end in list(self._namespace.ends):
            if end.link.session.connection is self._connection:
                end.link.detach(AmqpError(UNAUTHORIZED, "ExpiredToken: the token is expired"))

    def closed(self) -> None:
        """The connection is gone."""
        self._namespace.peers.discard(self)

    @contextmanager
    def _remembering_refusal(self, address: str) -> Iterator[None]:
        try:
            yield
        except AmqpError as error:
            self._namespace.refused.append(Refused(address, error.condition, error.description))
            raise

    def _sink(self, link: IncomingLink) -> Sink:
        if link.address == CBS_ADDRESS:
            return self._cbs.attach_sink(link)
        self._admit(link.address)
        if _is_management(link.address):
            return self._management.attach_sink(link)
        match = _SENDER.fullmatch(link.address)
        if match is None:
            raise AmqpError(NOT_FOUND, f"nothing can be sent to {link.address!r}")
        hub = self._namespace.hubs.hub(match[1])
        return EventSink(self._namespace, hub, hub.partition(match[2]) if match[2] else None, link)

    def _source(self, link: OutgoingLink) -> Source:
        if link.address == CBS_ADDRESS:
            return self._cbs.attach_source(link)
        self._admit(link.address)
        if _is_management(link.address):
            return self._management.attach_source(link)
        match = _RECEIVER.fullmatch(link.address)
        if match is None:
            raise AmqpError(NOT_FOUND, f"nothing can be received from {link.address!r}")
        hub = self._namespace.hubs.hub(match[1])
        hub.check_group(match[2])
        return PartitionSource(self._namespace, hub, hub.partition(match[3]), match[2], link)

    def _admit(self, address: str) -> None:
        """Raises AmqpError for a link that may not be attached."""
        if self._authorized_until <= self._namespace.clock():
            raise AmqpError(UNAUTHORIZED, f"no accepted token on this connection for {address!r}")
        fault = self._namespace.faults.take(f"attach:{address}")
        if fault is None:
            return
        if fault.kind == "drop_connection":
            self._connection.drop()
        elif fault.kind == "half_open":
            self._connection.freeze()
        raise refusal(fault)

    def _verify(self, _token_type: str, token: str) -> str | None:
        # The type is no help: the SDK says "jwt" for shared access signatures too.
        fault = self._namespace.faults.take("put-token")
        if fault is not None and fault.kind == "half_open":
            self._connection.freeze()
        elif fault is not None and fault.kind == "drop_connection":
            self._connection.drop()
        elif fault is not None:
            return fault.condition or "refused by a fault"
        expires = _FOREVER  # of a bearer token nothing is known here
        if token.startswith("SharedAccessSignature"):
            refused = verify_sas(token, self._namespace.key, self._namespace.clock())
            if refused is not None:
                return refused
            expires = float(parse_qs(token.partition(" ")[2])["se"][0])
        self._authorized_until = max(self._authorized_until, expires)
        return None

    def _manage(self, request: Request, reply: Reply) -> None:
        namespace = self._namespace
        answer(
            namespace.faults.take(f"manage:{request.application_properties.get('name')}"),
            lambda refused: respond(namespace.hubs, request, refused),
            reply,
            connection=self._connection,
            timers=namespace,
        )


def _is_management(address: str) -> bool:
    return address == _MANAGEMENT or address.endswith("/" + _MANAGEMENT)
