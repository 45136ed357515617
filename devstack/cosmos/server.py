"""The server: one port for the service, the control of faults (`/faults`) and statistics (`/stats`).

Points of faults ("where"):
- those of devstack.cosmos.protocol.requests: "docs.bulk", "docs.upsert", "ranges.list", "offers.replace" ...
- "range.<id>.<point>" for document requests that go to one physical partition ("range.0.*" is a hot range);
- "op.<verb>.<id>" for each operation of a bulk request ("op.upsert.*"); only "error" there;
- "now", for `inject` and POST /faults alone: the kind happens at once.

Kinds: "error" (`status`, sub-status in `condition`, `retry_after`), "error_after" (the same, but the
request has been carried out), "latency" (`seconds`), "late" (the same, and it is carried out although the client is gone), "drop_connection" (before the request is
carried out), "drop_ack" (after), "hang" (no answer for `seconds`, 0 for ever; never carried
out), and before the request is looked at: "split", "merge", "recreate_container", "delete_database",
of what the request names or `condition` does, as "database/container/range".
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import msgspec

from devstack.cosmos.batches import Operation
from devstack.cosmos.http import HttpConnection
from devstack.cosmos.partitions.budget import Prices
from devstack.cosmos.partitions.ranges import Range
from devstack.cosmos.protocol.authorization import Authorization
from devstack.cosmos.protocol.errors import CosmosError
from devstack.cosmos.protocol.requests import Request, parse_request
from devstack.cosmos.service import Answer, Service, Statistics
from devstack.cosmos.store.account import Account
from devstack.cosmos.store.container import Container
from devstack.cosmos.store.throughput import Level, Offer
from devstack.processes.child import free_ports
from devstack.servers.certificates import Certificate
from devstack.servers.faults import Fault, FaultRegistry, parse_fault
from devstack.servers.started import Started

DEFAULT_KEY = (  # of the public emulator
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
)
_HOST = "127.0.0.1"
_BACKLOG = 512
_EVENTS = ("split", "merge", "recreate_container", "delete_database")
KINDS = ("error", "error_after", "latency", "late", "drop_connection", "drop_ack", "hang", *_EVENTS)


class CosmosServer(Started):
    """An account on the loopback address, in memory: it forgets everything when its process ends.

    `port` 0 takes a free one. `aad` also accepts bearer tokens, any of them; with a `certificate`
    the server speaks HTTPS, without which the SDKs send no such token. `clock` (seconds since
    1970) is what request units per second and pending throughput go by; throughput above what
    the partitions carry takes effect after `split_delay` seconds.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        key: str = DEFAULT_KEY,
        aad: bool = False,
        certificate: Certificate | None = None,
        prices: Prices | None = None,
        split_delay: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.port = port
        self.key = key
        self.faults = FaultRegistry()
        self.account = Account(clock, prices=prices or Prices(), split_delay=split_delay)
        self.service = Service(
            self.account, Authorization(key, bearer=aad), lambda: self.endpoint, self._operation_faults
        )
        self._certificate = certificate
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        """The URL of the account."""
        return f"{'https' if self._certificate else 'http'}://{_HOST}:{self.port}/"

    @property
    def connection_string(self) -> str:
        return f"AccountEndpoint={self.endpoint};AccountKey={self.key};"

    async def start(self) -> None:
        """Listen; raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self._exchange, self._connections),
            _HOST,
            self.port or free_ports(1)[0],
            backlog=_BACKLOG,
            ssl=self._certificate.server_context() if self._certificate else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Hang up on everybody and release the port. The data stays."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        self.drop_connections()
        for connection in connections:
            await connection.closed()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def drop_connections(self) -> None:
        """Hang up on all clients at once, as a failing network does."""
        for connection in list(self._connections):
            connection.abort()

    # In process: on the server's loop only. All raise CosmosError as the service would answer.

    def create_database(
        self, name: str, *, throughput: int | None = None, autoscale: int | None = None
    ) -> None:
        """With throughput that its containers share, in RU/s, if either amount is given."""
        self.account.create_database(name, _level(throughput, autoscale))

    def create_container(
        self,
        database: str,
        name: str,
        partition_key_paths: str | list[str],
        *,
        throughput: int | None = None,
        autoscale: int | None = None,
        version: int = 2,
        default_ttl: int | None = None,
    ) -> Container:
        """The database is created if there is none. A list of paths makes a hierarchical key."""
        if database not in self.account.databases:
            self.account.create_database(database)
        single = isinstance(partition_key_paths, str)
        document: dict[str, Any] = {
            "id": name,
            "partitionKey": {
                "paths": [partition_key_paths] if single else partition_key_paths,
                "kind": "Hash" if single else "MultiHash",
                **({} if version == 1 else {"version": version}),
            },
        }
        if default_ttl is not None:
            document["defaultTtl"] = default_ttl
        holder = self.account.database(database)
        return self.account.create_container(holder, document, _level(throughput, autoscale))

    def container(self, database: str, name: str) -> Container:
        """As it is now: without the documents whose time is over."""
        container = self.account.database(database).container(name)
        container.expire(self.account.clock())
        return container

    def documents(self, database: str, name: str) -> list[dict[str, Any]]:
        """All documents with their system properties."""
        container = self.container(database, name)
        return [msgspec.json.decode(container.full(document)) for _, document in container.documents()]

    def document_count(self, database: str, name: str) -> int:
        return sum(len(partition.documents) for partition in self.container(database, name).partitions())

    def offer(self, database: str, name: str | None = None) -> Offer:
        """The throughput of a container or, without its name, of a database. CosmosError (404) if it has none."""
        holder = self.account.database(database)
        offer = holder.offer if name is None else holder.container(name).offer
        if offer is None:
            raise CosmosError(404, f"The database {database!r} shares no throughput", substatus=10004)
        offer.advance(self.account.clock())
        return offer

    def replace_throughput(
        self,
        database: str,
        name: str | None = None,
        *,
        throughput: int | None = None,
        autoscale: int | None = None,
    ) -> Offer:
        """As a client's replacement, with all its rules; ValueError unless exactly one amount is given."""
        level = _level(throughput, autoscale)
        if level is None:
            raise ValueError("neither throughput nor autoscale is given, accepted: one of them")
        offer = self.offer(database, name)
        self.account.replace_offer(offer, level)
        return offer

    def split(self, database: str, name: str, range_id: str | None = None) -> None:
        """Cut one physical partition in two; without an id, the widest."""
        container = self.container(database, name)
        container.split(container.map.by_id(range_id) if range_id else container.map.widest())

    def merge(self, database: str, name: str, range_id: str | None = None) -> None:
        """Join a physical partition, by default the first, with its right neighbour; ValueError if it has none."""
        container = self.container(database, name)
        container.merge(container.map.by_id(range_id) if range_id else container.map.ranges[0])

    def recreate_container(self, database: str, name: str) -> None:
        """Delete it with its documents; an empty one takes its name under a new resource id."""
        self.account.recreate_container(self.account.database(database), name)

    def delete_database(self, name: str) -> None:
        del self.account.databases[self.account.database(name).name]

    def stats(self) -> Statistics:
        return self.service.statistics()

    # Faults

    def inject(self, fault: Fault) -> None:
        """Add a fault, or commit it at once if its where is "now".

        Raises ValueError for a kind that is not known here, or an event that cannot happen.
        """
        if fault.kind not in KINDS:
            raise ValueError(f"kind of a fault is {fault.kind!r}, accepted: {', '.join(KINDS)}")
        if fault.where != "now":
            self.faults.add(fault)
            return
        if fault.kind not in _EVENTS:
            raise ValueError(f"kind of a fault now is {fault.kind!r}, accepted: {', '.join(_EVENTS)}")
        try:
            self._happen(fault.kind, fault.condition.split("/"))
        except CosmosError as error:
            raise ValueError(error.message) from error

    def _exchange(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> Answer | Awaitable[Answer | None]:
        if target in ("/faults", "/stats"):
            return self._control(method, target, body)
        if not self.faults.list():
            return self.service.handle(method, target, headers, body)
        try:
            request = parse_request(method, target, headers, body)
        except CosmosError as error:
            return self.service.refuse(error)
        self.service.count(request)
        fault = self._take(request)
        return self.service.answer(request) if fault is None else self._commit(fault, request)

    def _take(self, request: Request) -> Fault | None:
        fault = self.faults.take(request.point)
        holder = self._range_of(request) if fault is None else None
        return self.faults.take(f"range.{holder.id}.{request.point}") if holder is not None else fault

    def _range_of(self, request: Request) -> Range | None:
        """The physical partition that a document request goes to; None if that is not one."""
        if not request.point.startswith("docs."):
            return None
        name = request.headers.get("x-ms-documentdb-partitionkeyrangeid")
        key = request.headers.get("x-ms-documentdb-partitionkey")
        with contextlib.suppress(CosmosError):
            container = self.service.documents.container(request)
            if name is not None:
                return container.map.by_id(name)
            return container.partition(key).range
        return None

    async def _commit(self, fault: Fault, request: Request) -> Answer | None:
        if fault.kind == "error":
            return self.service.refuse(_error(fault))
        if fault.kind == "error_after":
            self.service.answer(request)
            return self.service.refuse(_error(fault))
        if fault.kind in ("drop_connection", "drop_ack"):
            if fault.kind == "drop_ack":
                self.service.answer(request)
            return None
        if fault.kind == "hang":
            await asyncio.sleep(fault.seconds or math.inf)
            return None
        if fault.kind == "latency":
            await asyncio.sleep(fault.seconds)
            return self.service.answer(request)
        if fault.kind == "late":
            loop = asyncio.get_running_loop()
            done: asyncio.Future[Answer] = loop.create_future()
            loop.call_later(fault.seconds, lambda: done.set_result(self.service.answer(request)))
            return await asyncio.shield(done)
        names = fault.condition.split("/") if fault.condition else list(request.names[:2])
        try:
            self._happen(fault.kind, names)
        except (CosmosError, ValueError) as error:
            return self.service.refuse(CosmosError(500, f"The fault {fault.kind!r} cannot happen: {error}"))
        return self.service.answer(request)

    def _happen(self, kind: str, names: list[str]) -> None:
        if kind == "delete_database":
            self.delete_database(names[0])
            return
        if len(names) < 2:
            raise ValueError(f"{kind} is of {'/'.join(names)!r}, accepted: database/container")
        if kind == "recreate_container":
            self.recreate_container(names[0], names[1])
            return
        (self.split if kind == "split" else self.merge)(*names[:3])

    def _operation_faults(self) -> Callable[[Operation, Range], CosmosError | None] | None:
        if not self.faults.list():
            return None

        def fault(operation: Operation, holder: Range) -> CosmosError | None:
            name = operation.id or _id_of(operation)
            ordered = self.faults.take(f"op.{operation.operation_type.lower()}.{name}")
            if ordered is None:
                return None
            error = _error(ordered)
            if error.status == 429:
                holder.throttled += 1
            return error

        return fault

    def _control(self, method: str, target: str, body: bytes) -> Answer:
        if target == "/stats":
            return _json(200, self.stats())
        if method == "GET":
            return _json(200, [asdict(fault) for fault in self.faults.list()])
        if method == "DELETE":
            self.faults.clear()
            return 204, {}, b""
        try:
            fault = parse_fault(msgspec.json.decode(body))
            self.inject(fault)
        except ValueError as error:  # malformed JSON, too
            return _json(400, {"error": str(error)})
        return _json(201, asdict(fault))


def _level(throughput: int | None, autoscale: int | None) -> Level | None:
    if throughput is not None and autoscale is not None:
        raise ValueError(f"throughput is {throughput} and autoscale {autoscale}, accepted: one of them")
    if autoscale is not None:
        return Level(autoscale, autoscale=True)
    return None if throughput is None else Level(throughput)


def _error(fault: Fault) -> CosmosError:
    substatus = int(fault.condition) if fault.condition.isdecimal() else 0
    message = f"Injected fault at {fault.where}"
    return CosmosError(fault.status, message, substatus=substatus, retry_after=fault.retry_after)


def _id_of(operation: Operation) -> str:
    try:
        return str(msgspec.json.decode(operation.resource_body)["id"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""


def _json(status: int, value: object) -> Answer:
    return status, {"content-type": "application/json"}, msgspec.json.encode(value)
