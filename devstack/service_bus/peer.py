"""What one AMQP connection to the namespace may do: its senders, receivers and tokens."""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from devstack.amqp.connection import Connection
from devstack.amqp.links import IncomingLink, OutgoingLink
from devstack.amqp.misbehaviour import answer, receive, refusal, sever
from devstack.amqp.ports import ACCEPTED, Delivery, Settlement, Sink, Source, rejected
from devstack.amqp.requests import CBS_ADDRESS, Reply, RequestNode, cbs_node, is_key, verify_sas
from devstack.amqp.timers import Timers
from devstack.amqp.wire.errors import NOT_ALLOWED, UNAUTHORIZED, AmqpError
from devstack.amqp.wire.messages import BATCH_FORMAT, Request, batched
from devstack.amqp.wire.values import Described, Symbol, ULong
from devstack.servers.faults import FaultRegistry
from devstack.service_bus.broker import Broker
from devstack.service_bus.management import respond
from devstack.service_bus.messages.messages import Sent
from devstack.service_bus.queue import Clock, Queue
from devstack.service_bus.sessions import LOCKED_UNTIL, SESSION_FILTER, TIMEOUT, to_ticks
from devstack.service_bus.transfers import announce_limits, check_transfer

_MANAGEMENT_SUFFIX = "/$management"
_FILTER = 7  # the field of a source that holds its filters
_SESSION_WAIT = (
    60.0  # seconds, where a client does not say how long it waits: the default of the SDKs for an operation
)
_REJECTED = Described(ULong(0x25), [None])  # without an error: a rejection that was asked for


class Namespace(Timers):
    """What all connections share."""

    def __init__(self, broker: Broker, faults: FaultRegistry, clock: Clock, key: str) -> None:
        super().__init__()
        self.broker = broker
        self.faults = faults
        self.clock = clock
        self.key = key
        self._dispatchers: dict[Queue, Dispatcher] = {}

    def dispatcher(self, queue: Queue) -> "Dispatcher":
        if queue not in self._dispatchers:
            self._dispatchers[queue] = Dispatcher(queue)
        return self._dispatchers[queue]

    def detach_disabled(self) -> None:
        """Detach the receivers of entities that give no messages any more or are gone."""
        for dispatcher in list(self._dispatchers.values()):
            for link in dispatcher.links():
                try:
                    self.broker.check_receives(link.address)
                except AmqpError as error:
                    link.refuse(error) if link.waits else link.detach(error)


class Dispatcher:
    """Hands the messages of one queue to its receivers in turn."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._sources: deque[QueueSource] = deque()
        self.waiting: list[SessionSeeker] = []
        queue.available = self.pump

    def links(self) -> list[OutgoingLink]:
        return [*(source.link for source in self._sources), *(seeker.link for seeker in self.waiting)]

    def add(self, source: "QueueSource") -> None:
        self._sources.append(source)

    def remove(self, source: "QueueSource") -> None:
        self._sources.remove(source)

    def pump(self) -> None:
        """Deliver until there is no message or nobody who wants one. Who waits for a session gets one first."""
        self.seat()
        passed = 0
        while passed < len(self._sources):
            source = self._sources[0]
            self._sources.rotate(-1)
            if not source.link.ready:
                passed += 1
            elif source.deliver_next():
                passed = 0
            elif source.session is None:
                return
            else:
                passed += 1  # another receiver's session may have messages

    def seat(self) -> None:
        """Give sessions that became free, or got a message, to those who wait for one, in the order they came."""
        while self.waiting and self.queue.sessions.free_of(self.queue.sessions_with_messages()):
            self.waiting.pop(0).found()


class SessionSeeker:
    """A receiver's end while no session has a message: its attach is answered once one has, or its time is over."""

    def __init__(self, dispatcher: Dispatcher, link: OutgoingLink, found: Callable[[], None]) -> None:
        self.link = link
        self.found = found
        self._dispatcher = dispatcher
        dispatcher.waiting.append(self)
        link.waits = True

    def time_over(self) -> None:
        if self in self._dispatcher.waiting:
            self.link.refuse(AmqpError(TIMEOUT, "no session got a message in the time that the client waits"))

    def on_credit(self) -> None:
        """Nothing is given before there is a session."""

    def on_settlement(self, settlement: Settlement) -> None:
        """Nothing was given."""

    def on_detached(self) -> None:
        if self in self._dispatcher.waiting:
            self._dispatcher.waiting.remove(self)


class QueueSource:
    """A receiver's end of a queue, or of one session of it."""

    def __init__(
        self, namespace: Namespace, queue: Queue, link: OutgoingLink, session: str | None = None
    ) -> None:
        self.link = link
        self.session = session
        self._namespace = namespace
        self._queue = queue
        self._dispatcher = namespace.dispatcher(queue)
        self._dispatcher.add(self)

    def deliver_next(self) -> bool:
        """Deliver one message; False if there is none or a fault kept it back."""
        message = self._queue.receive(self.session)
        if message is None or message.lock_token is None:
            return False
        tag = message.lock_token
        fault = self._namespace.faults.take(f"deliver:{self.link.address}")
        if fault is not None:
            sever(fault, self.link)
            self._queue.release(tag)
            return False
        if self.link.pre_settled:
            self._queue.complete(tag)
        self.link.send(tag, message.encode())
        return True

    def on_credit(self) -> None:
        self._dispatcher.pump()

    def on_settlement(self, settlement: Settlement) -> None:
        fault = self._namespace.faults.take(f"settle:{self.link.address}")
        if fault is None:
            settlement.confirm(self._apply(settlement))
        elif fault.kind == "error":
            settlement.confirm(rejected(refusal(fault)))
        elif fault.kind == "latency":
            self._namespace.later(fault.seconds, lambda: settlement.confirm(self._apply(settlement)))
        elif fault.kind == "drop_ack":
            self._apply(settlement)
        else:
            sever(fault, self.link)

    def on_detached(self) -> None:
        """Locks stay until they run out, as the service has it; a session is free at once."""
        self._dispatcher.remove(self)
        if self.session is not None:
            self._queue.sessions.unlock(self.session)
            self._dispatcher.seat()

    def _apply(self, settlement: Settlement) -> Described | None:
        """Do what the peer decided; returns the outcome to confirm."""
        outcome = settlement.outcome
        code = outcome.descriptor if outcome is not None else None
        fields: list[Any] = outcome.value if outcome is not None and isinstance(outcome.value, list) else []
        try:
            if code == 0x24:
                self._queue.complete(settlement.tag)
            elif code == 0x25:
                self._queue.dead_letter(settlement.tag, *_reason(fields))
                return _REJECTED
            elif (
                code == 0x27
            ):  # modified; not all clients say that the delivery failed, and the service counts it
                _, undeliverable_here, changes = [*fields, None, None, None][:3]
                decide = self._queue.defer if undeliverable_here else self._queue.abandon
                decide(settlement.tag, changes or {})
            else:
                self._queue.release(settlement.tag)
        except AmqpError as error:
            return rejected(error)
        return outcome


class EntitySink:
    """A sender's end of a queue or topic."""

    def __init__(self, namespace: Namespace, link: IncomingLink) -> None:
        self._namespace = namespace
        self._link = link
        self._entity = namespace.broker.target(link.address)
        announce_limits(link, self._entity.limits)

    def on_message(self, delivery: Delivery) -> None:
        fault = self._namespace.faults.take(f"send:{self._link.address}")
        receive(delivery, self._store, fault, link=self._link, timers=self._namespace)

    def on_detached(self) -> None:
        """Nothing is kept per sender."""

    def _store(self, delivery: Delivery) -> Described:
        """Enqueue; returns the outcome. Of a batch either all messages are taken or none."""
        broker, address = self._namespace.broker, self._link.address
        try:
            broker.check_sends(address)
            batch = delivery.message_format == BATCH_FORMAT
            parts = batched(delivery.payload) if batch else [delivery.payload]
            check_transfer(
                self._entity, parts, len(delivery.payload), delivery.delivery_id, self._batch_limit(batch)
            )
            messages = [Sent.parse(part) for part in parts]
        except AmqpError as error:
            return rejected(error)
        entity = broker.target(address)
        for message in messages:
            entity.send(message)
        return ACCEPTED

    def _batch_limit(self, batch: bool) -> int:  # noqa: FBT001 - what the transfer is
        limit = self._entity.limits.batch
        return self._link.max_message_size if limit is None or not batch else limit


class Peer:
    """The service behind the links of one connection.

    Entities are open to a connection once one token was accepted on it; the audience and the
    expiry of the token are not looked at again.
    """

    def __init__(self, namespace: Namespace, connection: Connection) -> None:
        self._namespace = namespace
        self._connection = connection
        self._authorized = False
        self._cbs = cbs_node(self._verify)
        self._management: dict[str, RequestNode] = {}

    def sign_in(self, name: str, password: str) -> bool:
        self._authorized = self._authorized or is_key(name, password, self._namespace.key)
        return self._authorized

    def attach_sink(self, link: IncomingLink) -> Sink:
        node = self._request_node(link.address)
        if node is not None:
            self._announce_entity_limits(link)
            return node.attach_sink(link)
        self._admit(link.address)
        self._namespace.broker.check_sends(link.address)
        return EntitySink(self._namespace, link)

    def attach_source(self, link: OutgoingLink) -> Source:
        node = self._request_node(link.address)
        if node is not None:
            return node.attach_source(link)
        self._admit(link.address)
        self._namespace.broker.check_receives(link.address)
        queue = self._namespace.broker.source(link.address)
        if not queue.settings.requires_session:
            return QueueSource(self._namespace, queue, link)
        try:
            return QueueSource(self._namespace, queue, link, self._accept_session(queue, link))
        except AmqpError as error:
            if error.condition != TIMEOUT:
                raise
        return self._seek_session(queue, link)

    def _seek_session(self, queue: Queue, link: OutgoingLink) -> SessionSeeker:
        """Wait for a session as long as the client says, as the service does."""

        def found() -> None:
            link.admit(QueueSource(self._namespace, queue, link, self._accept_session(queue, link)))

        asked = (link.attach.properties or {}).get(TIMEOUT)
        seeker = SessionSeeker(self._namespace.dispatcher(queue), link, found)
        self._namespace.later(asked / 1000 if isinstance(asked, int) else _SESSION_WAIT, seeker.time_over)
        return seeker

    def _accept_session(self, queue: Queue, link: OutgoingLink) -> str:
        """Lock the session that the link's filter asks for, and tell the client which that is."""
        source = link.attach.source
        fields = list(source.value) if source is not None and isinstance(source.value, list) else []
        filters = fields[_FILTER] if len(fields) > _FILTER and isinstance(fields[_FILTER], dict) else {}
        if source is None or SESSION_FILTER not in filters:
            raise AmqpError(NOT_ALLOWED, f"{queue.name!r} requires sessions: receive with a session id")
        session = queue.sessions.lock(filters[SESSION_FILTER], queue.sessions_with_messages())
        fields[_FILTER] = {Symbol(SESSION_FILTER): session}
        link.attach = link.attach._replace(source=Described(source.descriptor, fields))
        until = self._namespace.clock() + queue.settings.lock_duration
        link.properties = {LOCKED_UNTIL: to_ticks(until)}
        return session

    def _announce_entity_limits(self, link: IncomingLink) -> None:
        """A request to a management node is limited as a message to its entity is."""
        with contextlib.suppress(AmqpError):  # a subscription, which nobody sends to
            entity = self._namespace.broker.target(link.address.removesuffix(_MANAGEMENT_SUFFIX))
            announce_limits(link, replace(entity.limits, batch=None))

    def _request_node(self, address: str) -> RequestNode | None:
        if address == CBS_ADDRESS:
            return self._cbs
        if not address.endswith(_MANAGEMENT_SUFFIX):
            return None
        entity = address[: -len(_MANAGEMENT_SUFFIX)]
        self._admit(address)
        if entity not in self._management:
            self._management[entity] = RequestNode(
                lambda request, reply: self._manage(entity, request, reply)
            )
        return self._management[entity]

    def _admit(self, address: str) -> None:
        """Raises AmqpError for a link that may not be attached."""
        if not self._authorized:
            raise AmqpError(UNAUTHORIZED, f"no accepted token on this connection for {address!r}")
        fault = self._namespace.faults.take(f"attach:{address}")
        if fault is not None:
            if fault.kind == "drop_connection":
                self._connection.drop()
            raise refusal(fault)

    def _verify(self, _token_type: str, token: str) -> str | None:
        # The type is no help: the SDK says "jwt" for shared access signatures too.
        fault = self._namespace.faults.take("put-token")
        if fault is not None:
            return fault.condition or "refused by a fault"
        refused = None
        if token.startswith("SharedAccessSignature"):
            refused = verify_sas(token, self._namespace.key, self._namespace.clock())
        self._authorized = self._authorized or refused is None
        return refused

    def _manage(self, entity: str, request: Request, reply: Reply) -> None:
        answer(
            self._namespace.faults.take(f"manage:{entity}"),
            lambda refused: respond(self._namespace.broker, entity, request, refused),
            reply,
            connection=self._connection,
            timers=self._namespace,
        )


def _reason(fields: list[Any]) -> tuple[str, str, dict[Any, Any]]:
    """Reason and description of a rejection, as clients put them into the info of its error, and the properties that
    are there beside them.
    """
    error = fields[0].value if fields and isinstance(fields[0], Described) else []
    if not isinstance(error, list):
        return "", "", {}
    _, description, info = [*error, None, None, None][:3]
    named: dict[Any, Any] = dict(info) if isinstance(info, dict) else {}
    reason = named.pop("DeadLetterReason", None)
    described = named.pop("DeadLetterErrorDescription", None)
    return str(reason or ""), str(described or description or ""), named
