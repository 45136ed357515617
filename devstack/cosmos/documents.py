"""Answers about documents: one at a time, in batches, in bulk, and by query."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from devstack.cosmos.batches import Operation, Result, parse_operations, run_batch, run_bulk
from devstack.cosmos.partitions.ranges import Range
from devstack.cosmos.protocol.errors import RID_MISMATCH, CosmosError, bad_request
from devstack.cosmos.protocol.requests import Request, Response
from devstack.cosmos.query import Query, parse
from devstack.cosmos.resources import Handler, query_of
from devstack.cosmos.store.account import Account
from devstack.cosmos.store.change_feed import INCREMENTAL, changed, parse_place, with_change
from devstack.cosmos.store.container import ANY, Condition, Container, Outcome, Partition

PAGE_ITEMS = 1000  # most items of one page
PAGE_BYTES = 4 * 1024 * 1024
_OPEN_RESULTS = 64  # queries whose further pages are kept

_PLAN = {
    "partitionedQueryExecutionInfoVersion": 2,
    "queryInfo": {
        "distinctType": "None",
        "top": None,
        "offset": None,
        "limit": None,
        "orderBy": [],
        "orderByExpressions": [],
        "groupByExpressions": [],
        "groupByAliases": [],
        "aggregates": [],
        "groupByAliasToAggregateType": {},
        "rewrittenQuery": "",
        "hasSelectValue": False,
        "hasNonStreamingOrderBy": False,
    },
    "queryRanges": [{"min": "", "max": "FF", "isMinInclusive": True, "isMaxInclusive": False}],
}

OperationFault = Callable[[Operation, Range], CosmosError | None]


class Results(Struct, frozen=True):
    """All results of a query, and the ranges that it is over."""

    items: list[Any]
    holders: list[Range]


class Documents:
    """`operation_fault` is asked for each operation of a bulk request while there are faults.

    The pages of a query come from one evaluation, kept for the last 64 queries with more to
    come; a continuation older than that starts the query anew at the same place.
    """

    def __init__(self, account: Account, operation_fault: Callable[[], OperationFault | None]) -> None:
        self._account = account
        self._operation_fault = operation_fault
        self._open: OrderedDict[str, Results] = OrderedDict()
        self._opened = 0

    def handlers(self) -> Mapping[str, Handler]:
        """By point of devstack.cosmos.protocol.requests."""
        return {
            "docs.create": lambda request: self._write("Create", request),
            "docs.upsert": lambda request: self._write("Upsert", request),
            "docs.replace": lambda request: self._write("Replace", request),
            "docs.read": self._read,
            "docs.patch": self._patch,
            "docs.delete": self._delete,
            "docs.delete_key": self._delete_key,
            "docs.batch": self._batch,
            "docs.bulk": self._bulk,
            "docs.query": self._query,
            "docs.list": lambda request: (
                self._changes(request) if "a-im" in request.headers else self._query(request)
            ),
            "docs.plan": self._plan,
        }

    def container(self, request: Request) -> Container:
        """Raises CosmosError: 404/1003, or 400/1024 if the client means one that is no more."""
        container = self._account.database(request.names[0], owner=True).container(
            request.names[1], owner=True
        )
        intended = request.headers.get("x-ms-cosmos-intended-collection-rid")
        if intended is not None and intended != container.rid_text:
            raise bad_request(
                f"The container {container.name!r} is {container.rid_text}, the request means {intended}",
                substatus=RID_MISMATCH,
            )
        if container.offer is not None:
            container.offer.advance(self._account.clock())
        container.expire(self._account.clock())
        return container

    # One document

    def _write(self, verb: str, request: Request) -> Response:
        container, partition = self._admitted(request)
        name = request.names[2] if verb == "Replace" else None
        outcome = container.write(
            verb, partition, name, request.body, _condition(request), self._account.clock()
        )
        return _answer(request, container, outcome)

    def _read(self, request: Request) -> Response:
        container, partition = self._admitted(request)
        outcome = container.read(partition, request.names[2], _condition(request))
        return _answer(request, container, outcome)

    def _patch(self, request: Request) -> Response:
        container, partition = self._admitted(request)
        outcome = container.patch(
            partition, request.names[2], request.body, _condition(request), self._account.clock()
        )
        return _answer(request, container, outcome)

    def _delete(self, request: Request) -> Response:
        container, partition = self._admitted(request)
        return _answer(request, container, container.delete(partition, request.names[2], _condition(request)))

    def _delete_key(self, request: Request) -> Response:
        """All documents of a logical partition. The service does it in the background, and hides them from then on."""
        container, partition = self._admitted(request)
        charge = 0.0
        for name in list(partition.documents):
            charge += container.delete(partition, name, ANY).charge
        return Response(200, _range_headers(partition.range, charge))

    def _admitted(self, request: Request) -> tuple[Container, Partition]:
        container = self.container(request)
        partition = container.partition(request.headers.get("x-ms-documentdb-partitionkey"))
        container.admit(partition.range, self._account.clock())
        return container, partition

    # Many

    def _batch(self, request: Request) -> Response:
        container = self.container(request)
        operations = parse_operations(request.body)
        partition = container.partition(request.headers.get("x-ms-documentdb-partitionkey"))
        now = self._account.clock()
        results = run_batch(container, partition, operations, now, minimal=_minimal(request))
        return _results(container, partition.range, results)

    def _bulk(self, request: Request) -> Response:
        container = self.container(request)
        name = request.headers.get("x-ms-documentdb-partitionkeyrangeid")
        if name is None:
            raise bad_request("A bulk request needs x-ms-documentdb-partitionkeyrangeid")
        holder = container.map.by_id(name)
        operations = parse_operations(request.body)
        fault = self._operation_fault()
        now = self._account.clock()
        results = run_bulk(
            container,
            holder,
            operations,
            now,
            minimal=_minimal(request),
            sabotage=None if fault is None else lambda operation: fault(operation, holder),
        )
        return _results(container, holder, results)

    # Change feed

    def _changes(self, request: Request) -> Response:
        """One page of what changed behind the place of the request; 304 with that place when nothing did."""
        mode = request.headers["a-im"]
        if mode.lower() != INCREMENTAL:
            raise bad_request(f"The change feed {mode!r} is not known here, accepted: Incremental Feed")
        container = self.container(request)
        partitions = _asked_for(container, request)
        holders = _holders(container, request, partitions)
        _admit(container, holders, self._account.clock())
        place = parse_place(
            request.headers.get("if-none-match"), request.headers.get("if-modified-since"), container.changes
        )
        documents = changed(partitions, place)
        items = [Raw(with_change(container.full(document), document.change)) for document in documents]
        end = _page_end(items, 0, request.headers.get("x-ms-max-item-count"))
        body = msgspec.json.encode(
            {"_rid": container.rid_text, "Documents": items[:end], "_count": end} if end else None
        )
        last = documents[end - 1].change if end < len(documents) else container.changes
        headers = {
            "x-ms-request-charge": str(container.charge_page(holders, len(body))),
            "x-ms-item-count": str(end),
            "x-ms-session-token": _session(holders[0]),
            "etag": f'"{last}"',
        }
        return Response(200, headers, body) if end else Response(304, headers)

    # Queries

    def _query(self, request: Request) -> Response:
        container = self.container(request)
        token = request.headers.get("x-ms-continuation")
        start, results = self._resumed(token) if token else (0, None)
        if results is None:
            partitions = _asked_for(container, request)
            holders = list(dict.fromkeys(partition.range for partition in partitions))
            _admit(container, holders, self._account.clock())
            results = Results(
                _evaluate(container, partitions, _parsed(request, self._account.clock())), holders
            )
        else:
            _admit(container, results.holders, self._account.clock())
        end = _page_end(results.items, start, request.headers.get("x-ms-max-item-count"))
        page = results.items[start:end]
        body = msgspec.json.encode({"_rid": container.rid_text, "Documents": page, "_count": len(page)})
        headers = {
            "x-ms-request-charge": str(container.charge_page(results.holders, len(body))),
            "x-ms-item-count": str(len(page)),
            "x-ms-session-token": _session(container.map.ranges[0]),
        }
        if end < len(results.items):
            headers["x-ms-continuation"] = self._keep(token, results, end)
        return Response(200, headers, body)

    def _plan(self, request: Request) -> Response:
        """For clients that put answers over ranges together themselves, as the JavaScript SDK does."""
        container = self.container(request)
        if not _parsed(request, self._account.clock()).streams and len(container.map) > 1:
            raise bad_request(
                "Plans of queries with ORDER BY, GROUP BY, DISTINCT, TOP, OFFSET or aggregates over several "
                f"physical partitions are not known here, and {container.name!r} has {len(container.map)}; "
                "name a partition key, or query without a plan."
            )
        return Response(200, {}, msgspec.json.encode(_PLAN))

    def _resumed(self, token: str) -> tuple[int, Results | None]:
        name, _, start = token.partition(":")
        if not start.isdecimal():
            raise bad_request(f"The continuation {token!r} is not one of this server's")
        return int(start), self._open.get(name)

    def _keep(self, token: str | None, results: Results, end: int) -> str:
        name = token.partition(":")[0] if token else ""
        if name not in self._open:
            self._opened += 1
            name = f"q{self._opened}"
        self._open[name] = results
        self._open.move_to_end(name)
        while len(self._open) > _OPEN_RESULTS:
            self._open.popitem(last=False)
        return f"{name}:{end}"


def _holders(container: Container, request: Request, partitions: Sequence[Partition]) -> list[Range]:
    """The ranges that a request is over: those of its documents or, of none, the one it names or the first."""
    ranges = list(dict.fromkeys(partition.range for partition in partitions))
    name = request.headers.get("x-ms-documentdb-partitionkeyrangeid")
    return ranges or [container.map.by_id(name) if name else container.map.ranges[0]]


def _admit(container: Container, holders: Sequence[Range], now: float) -> None:
    for holder in holders:
        container.admit(holder, now)


def _parsed(request: Request, now: float) -> Query:
    if request.point == "docs.list":
        return parse("SELECT * FROM c")
    document = request.json()
    if not isinstance(document, dict):
        raise bad_request(f"A query request is {type(document).__name__}, accepted: an object")
    return parse(*query_of(document), now=now)


def _asked_for(container: Container, request: Request) -> list[Partition]:
    """The logical partitions that a query is over. Raises CosmosError: 410/1002, or 400 if it names none."""
    headers = request.headers
    key = headers.get("x-ms-documentdb-partitionkey")
    if key is not None and key != "[]":
        wanted = container.definition.parse(key)
        if len(wanted) == len(container.definition.paths):
            return [container.partition(key)]
        prefix = container.definition.effective(wanted)
        return [partition for partition in container.partitions() if partition.effective.startswith(prefix)]
    partitions = list(container.partitions())
    if name := headers.get("x-ms-documentdb-partitionkeyrangeid"):
        holder = container.map.by_id(name)
        partitions = [partition for partition in partitions if partition.range is holder]
    elif (
        request.point == "docs.query"
        and len(container.map) > 1
        and not request.flag("x-ms-documentdb-query-enablecrosspartition")
    ):
        raise bad_request(
            "Cross partition query is required but disabled. "
            "Please set x-ms-documentdb-query-enablecrosspartition to true, or name a partition key."
        )
    low, high = headers.get("x-ms-start-epk"), headers.get("x-ms-end-epk")
    if low is None or high is None:
        return partitions
    return [partition for partition in partitions if low <= partition.effective < high]


def _evaluate(container: Container, partitions: Sequence[Partition], query: Query) -> list[Any]:
    """The results, documents as they are where the query does not change them."""
    if query.counts_all:
        return query.of_count(sum(len(partition.documents) for partition in partitions))
    bodies = (
        container.full(document) for partition in partitions for document in partition.documents.values()
    )
    if query.takes_all:
        return [Raw(body) for body in bodies]
    return query.run(map(msgspec.json.decode, bodies))


def _page_end(results: Sequence[Any], start: int, wanted: str | None) -> int:
    """Up to the number of items asked for and 4 MiB, but one item at least."""
    asked = int(wanted) if wanted is not None and wanted.lstrip("-").isdecimal() else -1
    end = min(len(results), start + (asked if 0 < asked <= PAGE_ITEMS else PAGE_ITEMS))
    size = 0
    for index in range(start, end):
        item = results[index]
        size += len(bytes(item)) if isinstance(item, Raw) else 0
        if size > PAGE_BYTES and index > start:
            return index
    return end


def _condition(request: Request) -> Condition:
    return Condition(request.headers.get("if-match"), request.headers.get("if-none-match"))


def _minimal(request: Request) -> bool:
    return "return=minimal" in request.headers.get("prefer", "").replace(" ", "").lower()


def _session(holder: Range) -> str:
    return f"{holder.id}:-1#{holder.lsn}"


def _range_headers(holder: Range, charge: float) -> dict[str, str]:
    return {
        "x-ms-request-charge": str(round(charge, 2)),
        "x-ms-session-token": _session(holder),
        "x-ms-documentdb-partitionkeyrangeid": holder.id,
        "lsn": str(holder.lsn),
    }


def _answer(request: Request, container: Container, outcome: Outcome) -> Response:
    headers = _range_headers(outcome.partition.range, outcome.charge)
    document = outcome.document
    if document is None:
        return Response(outcome.status, headers)
    headers["etag"] = document.etag
    headers["x-ms-alt-content-path"] = f"dbs/{request.names[0]}/colls/{container.name}"
    minimal = request.method != "GET" and _minimal(request)
    return Response(outcome.status, headers, b"" if minimal else container.full(document))


def _results(container: Container, holder: Range, results: Sequence[Result]) -> Response:
    headers = _range_headers(holder, sum(result.request_charge for result in results))
    mixed = any(result.status_code >= 400 for result in results)
    headers["x-ms-alt-content-path"] = container.name
    return Response(207 if mixed else 200, headers, msgspec.json.encode(results))
