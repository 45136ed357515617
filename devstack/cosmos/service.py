"""The whole service as one function: `handle(method, target, headers, body)`."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from uuid import UUID

import msgspec
from msgspec import Struct

from devstack.cosmos.documents import Documents, OperationFault
from devstack.cosmos.protocol.authorization import Authorization
from devstack.cosmos.protocol.errors import CosmosError
from devstack.cosmos.protocol.requests import Request, Response, parse_request
from devstack.cosmos.resources import Handler, Resources
from devstack.cosmos.store.account import Account

_log = logging.getLogger(__name__)

Answer = tuple[int, dict[str, str], bytes]


class RangeStatistics(Struct, frozen=True):
    """Of one physical partition, gone or not: operations done, operations refused, RU spent."""

    operations: int
    throttled: int
    request_units: float


class Statistics(Struct, frozen=True):
    """`requests` counts those that arrived, by point; `statuses` those answered, by status.

    `ranges` is by "database/container/range".
    """

    requests: dict[str, int]
    statuses: dict[str, int]
    ranges: dict[str, RangeStatistics]

    @property
    def operations(self) -> int:
        return sum(statistics.operations for statistics in self.ranges.values())

    @property
    def throttled(self) -> int:
        return sum(statistics.throttled for statistics in self.ranges.values())


class Service:
    """Not thread-safe, and never waits. `operation_fault` is that of devstack.cosmos.documents."""

    def __init__(
        self,
        account: Account,
        authorization: Authorization,
        address: Callable[[], str],
        operation_fault: Callable[[], OperationFault | None] = lambda: None,
    ) -> None:
        self.account = account
        self.documents = Documents(account, operation_fault)
        self._authorization = authorization
        self._handlers: dict[str, Handler] = {
            **Resources(account, address).handlers(),
            **self.documents.handlers(),
        }
        self._requests: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._activities = count(1)

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to one request; `headers` with lower-case names. Raises nothing for a bad one."""
        try:
            request = parse_request(method, target, headers, body)
        except CosmosError as error:
            return self.refuse(error)
        self.count(request)
        return self.answer(request)

    def count(self, request: Request) -> None:
        """Note that a request has arrived."""
        self._requests[request.point] += 1

    def answer(self, request: Request) -> Answer:
        """The answer to a request that has been parsed and counted."""
        try:
            self._authorize(request)
            response = self._handlers[request.point](request)
        except CosmosError as error:
            return self.refuse(error)
        except Exception as error:  # a defect of this server, told to its client at once
            _log.exception("%s %s", request.method, request.point)
            return self.refuse(CosmosError(500, f"Defect of the local server: {error!r}"))
        return self._finish(response)

    def refuse(self, error: CosmosError) -> Answer:
        """The answer for an error."""
        headers = {"x-ms-substatus": str(error.substatus), "x-ms-request-charge": f"{error.charge:g}"}
        if error.retry_after_ms is not None:
            headers["x-ms-retry-after-ms"] = str(error.retry_after_ms)
        body = msgspec.json.encode({"code": error.code, "message": error.message})
        return self._finish(Response(error.status, headers, body))

    def statistics(self) -> Statistics:
        ranges = {
            f"{database.name}/{container.name}/{key_range.id}": RangeStatistics(
                key_range.operations, key_range.throttled, round(key_range.budget.spent, 2)
            )
            for database in self.account.databases.values()
            for container in database.containers.values()
            for key_range in container.map.history
        }
        statuses = {str(status): number for status, number in self._statuses.items()}
        return Statistics(dict(self._requests), statuses, ranges)

    def _authorize(self, request: Request) -> None:
        self._authorization.verify(request.method, request.kind, request.link, request.headers)

    def _finish(self, response: Response) -> Answer:
        self._statuses[response.status] += 1
        headers = response.headers
        headers["x-ms-activity-id"] = str(UUID(int=next(self._activities)))
        headers.setdefault("x-ms-request-charge", "1")
        headers["x-ms-version"] = "2018-12-31"
        if response.body:
            headers["content-type"] = "application/json"
        return response.status, headers, response.body
