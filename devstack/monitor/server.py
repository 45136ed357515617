"""One HTTPS server for metrics of several resources, log queries, PromQL and documents: what collectors of a number ask.

    POST /subscriptions/{id}/metrics:getBatch        metrics of the local Resource Manager (`MetricsApi`), 50 resources at most
    POST /v1/workspaces/{id}/query, /v1{resource id}/query    `logs`: query -> rows of one table
    GET  /api/v1/query?query=                        `series`: query -> values; {} is a vector without elements
    GET  /documents/{name}                           `documents`: name -> bytes, or what becomes JSON

The first two want a bearer token. What is not known answers 404, in the words of each service.

Faults (`devstack.servers.faults`) at monitor.batch, monitor.logs, monitor.prometheus and monitor.documents:

    latency           waits `seconds`, then answers as usual
    error             answers `status`, with `condition` as the message, and `retry_after`
    drop_connection   closes the connection
"""

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from devstack.resource_manager.common.documents import Answer, ArmError, Call
from devstack.resource_manager.metrics import MetricsApi
from devstack.servers.certificates import Certificate
from devstack.servers.faults import FaultRegistry
from devstack.servers.http import served

MOST = 50
_ID = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)"
    r"/providers/(?P<type>[^/]+/[^/]+)/(?P<name>[^/]+)(?P<rest>(?:/[^/]+/[^/]+)*)",
    re.IGNORECASE,
)
_SAME = ("interval", "metricnames", "aggregation", "top")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `token` is what came as a bearer, `body` its JSON."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")


@dataclass(slots=True)
class MonitorServer:
    """Serves on a free port from `start` to `stop`; what it answers may be changed at any time."""

    certificate: Certificate
    metrics: MetricsApi | None = None
    logs: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    faults: FaultRegistry = field(default_factory=FaultRegistry)
    asked: list[Asked] = field(default_factory=list)
    _serving: AsyncExitStack = field(default_factory=AsyncExitStack)
    _port: int = 0

    @property
    def base_url(self) -> str:
        return f"https://localhost:{self._port}"

    @property
    def ca_path(self) -> Path:
        return self.certificate.ca_path

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/subscriptions/{subscription}/metrics:getBatch", self._handler("batch"))
        app.router.add_post("/v1/{place:.+}/query", self._handler("logs"))
        app.router.add_get("/api/v1/query", self._handler("prometheus"))
        app.router.add_get("/documents/{name}", self._handler("documents"))
        serving = served(app, context=self.certificate.server_context())
        self._port = await self._serving.enter_async_context(serving)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.aclose()

    def _handler(self, name: str) -> Any:
        answer = {
            "batch": self._batch,
            "logs": self._log,
            "prometheus": self._prometheus,
            "documents": self._document,
        }[name]

        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            asked = Asked(
                request.method,
                request.path,
                request.query,
                request.headers,
                json.loads(body) if body else None,
            )
            self.asked.append(asked)
            fault = self.faults.take(f"monitor.{name}")
            if fault is not None and fault.kind == "latency":
                await asyncio.sleep(fault.seconds)
            elif fault is not None and fault.kind == "drop_connection":
                if request.transport is not None:
                    request.transport.close()
                return web.Response(status=500)
            elif fault is not None:
                headers = {"Retry-After": f"{fault.retry_after:g}"} if fault.retry_after else {}
                document = {"error": {"code": "Fault", "message": str(fault.condition or "a fault")}}
                return web.json_response(document, status=fault.status or 500, headers=headers)
            if name in {"batch", "logs"} and not asked.token:
                return _error(401, "Unauthorized", "The token is missing.")
            return answer(asked)

        return handle

    def _batch(self, asked: Asked) -> web.Response:
        """The answer for each resource, as Resource Manager would give it; one that is not known spoils all."""
        resources = asked.body.get("resourceids", [])
        if not 0 < len(resources) <= MOST or self.metrics is None:
            return _error(400, "BadRequest", f"{len(resources)} resources; accepted are 1 to {MOST}.")
        begin, end = asked.query["starttime"], asked.query["endtime"]
        query = {name: asked.query[name] for name in _SAME if name in asked.query}
        query |= {"timespan": f"{begin}/{end}", "$filter": asked.query.get("filter", "")}
        values = []
        try:
            for resource in resources:
                match = _ID.fullmatch(resource)
                if match is None:
                    return _error(400, "BadRequest", f"'{resource}' is no resource.")
                parts = {name: part for name, part in match.groupdict().items() if part}
                answer = self.metrics.get_metrics(Call("GET", resource, parts, query=query)).body
                values.append({**answer, "starttime": begin, "endtime": end, "resourceid": resource})
        except ArmError as error:
            return _sent(error.answer)
        return web.json_response({"values": values})

    def _log(self, asked: Asked) -> web.Response:
        query = asked.body.get("query", "")
        if query not in self.logs:
            return _error(
                404, "PathNotFoundError", f"the local server does not know {asked.path} with this query"
            )
        rows = self.logs[query]
        if isinstance(rows, dict):  # a whole answer
            return web.json_response(rows)
        columns = [{"name": f"c{index}", "type": "real"} for index in range(len(rows[0]) if rows else 1)]
        return web.json_response({"tables": [{"name": "PrimaryResult", "columns": columns, "rows": rows}]})

    def _prometheus(self, asked: Asked) -> web.Response:
        query = asked.query.get("query", "")
        if query not in self.series:
            problem = {"status": "error", "errorType": "bad_data", "error": f"does not exist: {query}"}
            return web.json_response(problem, status=404)
        values = self.series[query]
        if isinstance(values, dict) and "status" in values:  # a whole answer
            return web.json_response(values)
        kind = "vector" if isinstance(values, dict) else "scalar"
        result: Any = [0, str(values)]
        if isinstance(values, dict):
            result = [
                {"metric": {"instance": name}, "value": [0, str(value)]} for name, value in values.items()
            ]
        return web.json_response({"status": "success", "data": {"resultType": kind, "result": result}})

    def _document(self, asked: Asked) -> web.Response:
        name = asked.path.rpartition("/")[2]
        if name not in self.documents:
            return _error(404, "NotFound", "there is none")
        document = self.documents[name]
        if isinstance(document, web.Response):
            return web.Response(status=document.status, headers=document.headers, body=document.body)
        if isinstance(document, bytes):
            return web.Response(body=document, content_type="application/json")
        return web.json_response(document)


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)


def _sent(answer: Answer) -> web.Response:
    return web.json_response(answer.body, status=answer.status, headers=answer.headers)
