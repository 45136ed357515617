"""The registry on one port, HTTPS.

    PUT  /$schemaGroups/{group}/schemas/{name}                      registers a version; the same text keeps its id
    POST /$schemaGroups/{group}/schemas/{name}:get-id               the id of a text
    GET  /$schemaGroups/$schemas/{id}                               a schema
    GET  /$schemaGroups/{group}/schemas/{name}/versions/{version}   a schema
    GET  /$schemaGroups, /$schemaGroups/{group}/schemas/{name}/versions

As a registry of Confluent's kind, which has numbers as ids and asks for no token:

    POST /subjects/{subject}/versions                               registers a version
    GET  /schemas/ids/{id}, /subjects/{subject}/versions/{version}, /subjects

    GET, POST, DELETE /faults                                       see devstack.servers.faults

Fault points are registry.get, registry.put and registry.get-id, and confluent.get and confluent.post, with the kinds

    latency           waits `seconds`, then answers as usual
    error             answers `status`, with `condition` as the code, and `retry_after`
    drop_connection   closes the connection
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from aiohttp import web

from devstack.processes.child import free_ports
from devstack.servers.certificates import Certificate
from devstack.servers.faults import FaultRegistry, add_fault_routes
from devstack.servers.http import served

_JSON = "application/json; serialization=Avro"

_Answer = Callable[[web.Request, str], web.Response]


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of a schema. `content_type` says its format."""

    id: str
    group: str
    name: str
    version: int
    text: str
    content_type: str = _JSON


@dataclass(slots=True)
class SchemaRegistryServer:
    """Serves on `port` (0: a free one), as an async context manager. `data_dir` keeps the schemas in a file there."""

    certificate: Certificate
    port: int = 0
    data_dir: Path | None = None
    faults: FaultRegistry = field(default_factory=FaultRegistry)
    schemas: list[Schema] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Method and path of each request, in order, but those about faults."""
    _serving: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def namespace(self) -> str:
        """What a client takes as the fully qualified namespace."""
        return f"localhost:{self.port}"

    @property
    def base_url(self) -> str:
        """The address of the registry of Confluent's kind."""
        return f"https://{self.namespace}"

    @property
    def ca_path(self) -> Path:
        return self.certificate.ca_path

    async def __aenter__(self) -> Self:
        if self._file is not None and self._file.is_file():
            self.schemas = [Schema(**saved) for saved in json.loads(self._file.read_text(encoding="utf-8"))]
        app = web.Application()
        group = "/$schemaGroups/{group}/schemas/{name}"
        routes: tuple[tuple[str, str, str, _Answer], ...] = (
            ("PUT", group, "registry.put", self._register),
            ("POST", f"{group}:get-id", "registry.get-id", self._id_of),
            ("GET", "/$schemaGroups/$schemas/{id}", "registry.get", self._by_id),
            ("GET", f"{group}/versions/{{version}}", "registry.get", self._by_version),
            ("GET", f"{group}/versions", "registry.get", self._versions),
            ("GET", "/$schemaGroups", "registry.get", self._groups),
            ("POST", "/subjects/{name}/versions", "confluent.post", self._register_number),
            ("GET", "/schemas/ids/{id}", "confluent.get", self._by_number),
            ("GET", "/subjects/{name}/versions/{version}", "confluent.get", self._by_number),
            ("GET", "/subjects", "confluent.get", self._subjects),
        )
        for method, path, where, answer in routes:
            app.router.add_route(method, path, self._handler(where, answer))
        add_fault_routes(app, self.faults)
        port, context = self.port or free_ports(1)[0], self.certificate.server_context()
        self.port = await self._serving.enter_async_context(served(app, port=port, context=context))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.aclose()

    def register(self, group: str, name: str, text: str, content_type: str = _JSON) -> Schema:
        """The schema of this text; a new version of its name if there was none."""
        versions = self._named(group, name)
        schema = next((version for version in versions if version.text == text), None)
        if schema is None:
            schema_id = uuid.uuid4().hex if group else str(sum(not known.group for known in self.schemas) + 1)
            schema = Schema(schema_id, group, name, len(versions) + 1, text, content_type)
            self.schemas.append(schema)
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                written = self._file.with_suffix(".new")  # a server that is killed leaves the file whole
                written.write_text(json.dumps([asdict(known) for known in self.schemas]), encoding="utf-8")
                written.replace(self._file)
        return schema

    @property
    def _file(self) -> Path | None:
        return None if self.data_dir is None else self.data_dir / "schemas.json"

    def _named(self, group: str, name: str) -> list[Schema]:
        """The versions of a name, in order. The subjects of Confluent's kind are in the group ''."""
        return [schema for schema in self.schemas if (schema.group, schema.name) == (group, name)]

    def _handler(self, where: str, answer: _Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            self.asked.append(f"{request.method} {request.path}")
            fault = self.faults.take(where)
            if fault is not None and fault.kind == "latency":
                await asyncio.sleep(fault.seconds)
            elif fault is not None and fault.kind == "drop_connection":
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=500)
            elif fault is not None:
                headers = {"Retry-After": f"{fault.retry_after:g}"} if fault.retry_after else {}
                return _failure(fault.status, fault.condition or "Fault", "refused by a fault", headers)
            by_token = request.headers.get("Authorization", "").startswith("Bearer ")
            if where.startswith("registry.") and not by_token:
                return _failure(401, "Unauthorized", "The token is missing.")
            return answer(request, (await request.read()).decode())

        return handle

    # -- Azure's

    def _register(self, request: web.Request, body: str) -> web.Response:
        group, name = request.match_info["group"], request.match_info["name"]
        kind = request.headers.get("Content-Type", _JSON)
        return _described(request, self.register(group, name, body, kind), status=204)

    def _id_of(self, request: web.Request, body: str) -> web.Response:
        for schema in self._named(request.match_info["group"], request.match_info["name"]):
            if schema.text == body:
                return _described(request, schema, status=204)
        return _not_found(request)

    def _by_id(self, request: web.Request, _: str) -> web.Response:
        wanted = request.match_info["id"].lower()
        named = next((schema for schema in self.schemas if schema.group and schema.id == wanted), None)
        return _not_found(request) if named is None else _described(request, named)

    def _by_version(self, request: web.Request, _: str) -> web.Response:
        match = request.match_info
        for schema in self._named(match["group"], match["name"]):
            if str(schema.version) == match["version"]:
                return _described(request, schema)
        return _not_found(request)

    def _versions(self, request: web.Request, _: str) -> web.Response:
        versions = self._named(request.match_info["group"], request.match_info["name"])
        return (
            web.json_response({"Value": [schema.version for schema in versions]})
            if versions
            else _not_found(request)
        )

    def _groups(self, _request: web.Request, _: str) -> web.Response:
        return web.json_response({"Value": sorted({schema.group for schema in self.schemas if schema.group})})

    # -- Confluent's

    def _register_number(self, request: web.Request, body: str) -> web.Response:
        listed = json.loads(body)
        text = json.dumps(
            {name: listed[name] for name in ("schema", "schemaType", "references") if name in listed}
        )
        return web.json_response({"id": int(self.register("", request.match_info["name"], text).id)})

    def _by_number(self, request: web.Request, _: str) -> web.Response:
        match = request.match_info
        for schema in self.schemas:
            by_id = schema.id == match.get("id")
            by_version = (schema.name, str(schema.version)) == (match.get("name"), match.get("version"))
            if not schema.group and (by_id or by_version):
                listed: dict[str, Any] = json.loads(schema.text)
                return web.json_response(
                    {**listed, "subject": schema.name, "version": schema.version, "id": int(schema.id)}
                )
        return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)

    def _subjects(self, _request: web.Request, _: str) -> web.Response:
        return web.json_response(sorted({schema.name for schema in self.schemas if not schema.group}))


def _described(request: web.Request, schema: Schema, status: int = 200) -> web.Response:
    """The six headers of the service, and with 200 the text."""
    address = f"https://{request.host}/$schemaGroups"
    where = f"{address}/{quote(schema.group)}/schemas/{quote(schema.name)}/versions/{schema.version}"
    headers = {
        "Location": where,
        "Schema-Id": schema.id,
        "Schema-Id-Location": f"{address}/$schemas/{schema.id}",
        "Schema-Group-Name": schema.group,
        "Schema-Name": schema.name,
        "Schema-Version": str(schema.version),
    }
    if status == 204:
        return web.Response(status=status, headers=headers)
    return web.Response(body=schema.text.encode(), headers={**headers, "Content-Type": schema.content_type})


def _not_found(request: web.Request) -> web.Response:
    return _failure(404, "ItemNotFound", f"{request.path} was not found.")


def _failure(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status, headers=headers)
