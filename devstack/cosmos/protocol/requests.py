"""One request and its answer, free of any HTTP framework; the names of what can be asked."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from devstack.cosmos.protocol.errors import CosmosError, bad_request

_DOCS = "dbs/*/colls/*/docs"
_POINTS = {
    ("GET", ""): "account.read",
    ("GET", "dbs"): "databases.list",
    ("POST", "dbs"): "databases.create",
    ("GET", "dbs/*"): "databases.read",
    ("DELETE", "dbs/*"): "databases.delete",
    ("GET", "dbs/*/colls"): "containers.list",
    ("POST", "dbs/*/colls"): "containers.create",
    ("GET", "dbs/*/colls/*"): "containers.read",
    ("PUT", "dbs/*/colls/*"): "containers.replace",
    ("DELETE", "dbs/*/colls/*"): "containers.delete",
    ("GET", "dbs/*/colls/*/pkranges"): "ranges.list",
    ("GET", "offers"): "offers.list",
    ("POST", "offers"): "offers.query",
    ("GET", "offers/*"): "offers.read",
    ("PUT", "offers/*"): "offers.replace",
    ("POST", "dbs/*/colls/*/operations/*"): "docs.delete_key",
    ("GET", _DOCS): "docs.list",
    ("GET", f"{_DOCS}/*"): "docs.read",
    ("PUT", f"{_DOCS}/*"): "docs.replace",
    ("PATCH", f"{_DOCS}/*"): "docs.patch",
    ("DELETE", f"{_DOCS}/*"): "docs.delete",
}
_QUERIES = {"dbs": "databases.query", "dbs/*/colls": "containers.query", _DOCS: "docs.query"}


class Request(Struct, frozen=True):
    """`headers` have lower-case names; `names` are the ids within the path, outermost first.

    `point` names what is asked for, as faults and statistics do: "docs.bulk", "ranges.list" ...
    """

    method: str
    point: str
    names: tuple[str, ...]
    kind: str
    link: str
    headers: Mapping[str, str]
    body: bytes

    def flag(self, header: str) -> bool:
        return self.headers.get(header, "").lower() == "true"

    def json(self) -> Any:
        """The body, decoded. Raises CosmosError (400)."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise bad_request(f"The body is not valid JSON: {error}") from None


class Response(Struct):
    status: int
    headers: dict[str, str]
    body: bytes = b""


def parse_request(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
    """Raises CosmosError (405) for an address or method that is not known."""
    path = target.partition("?")[0].strip("/")
    segments = path.split("/") if path else []
    if "%" in path:
        segments = [unquote(segment) for segment in segments]
    shape = "/".join("*" if index % 2 else segment for index, segment in enumerate(segments))
    point = _post_point(shape, headers) if method == "POST" else _POINTS.get((method, shape))
    if point is None:
        raise CosmosError(405, f"{method} {target} is not known here")
    named = len(segments) % 2 == 0
    kind = (segments[-2] if named else segments[-1]) if segments else ""
    link = "/".join(segments if named else segments[:-1])
    if point == "docs.delete_key":
        if segments[-1] != "partitionkeydelete":
            raise CosmosError(405, f"{method} {target} is not known here")
        kind, link = "partitionkey", "/".join(segments[:-2])  # what is signed
    if kind == "offers" and named:
        link = segments[-1].lower()  # a resource id, which is signed in lower case
    return Request(method, point, tuple(segments[1::2]), kind, link, headers, body)


def _post_point(shape: str, headers: Mapping[str, str]) -> str | None:
    if shape == _DOCS and "x-ms-cosmos-is-batch-request" in headers:
        atomic = headers.get("x-ms-cosmos-batch-atomic", "").lower() == "true"
        return "docs.batch" if atomic else "docs.bulk"
    if headers.get("x-ms-cosmos-is-query-plan-request", "").lower() == "true" and shape == _DOCS:
        return "docs.plan"
    if shape in _QUERIES and (
        headers.get("x-ms-documentdb-isquery", "").lower() == "true"
        or headers.get("content-type", "").startswith("application/query+json")
    ):
        return _QUERIES[shape]
    if shape == _DOCS:
        upsert = headers.get("x-ms-documentdb-is-upsert", "").lower() == "true"
        return "docs.upsert" if upsert else "docs.create"
    return _POINTS.get(("POST", shape))


def level_headers(headers: Mapping[str, str]) -> tuple[int, bool] | None:
    """The throughput that a create asks for: RU/s and whether it is autoscale. Raises CosmosError (400)."""
    manual = headers.get("x-ms-offer-throughput")
    settings = headers.get("x-ms-cosmos-offer-autopilot-settings")
    if manual is not None and settings is not None:
        raise bad_request("x-ms-offer-throughput and x-ms-cosmos-offer-autopilot-settings exclude each other")
    try:
        if settings is not None:
            return int(msgspec.json.decode(settings)["maxThroughput"]), True
        return None if manual is None else (int(manual), False)
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request(f"The requested throughput cannot be read: {error}") from None
