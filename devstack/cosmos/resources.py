"""Answers about everything but documents: the account, databases, containers, ranges, offers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from devstack.cosmos.partitions.ranges import Range
from devstack.cosmos.protocol.errors import bad_request
from devstack.cosmos.protocol.requests import Request, Response, level_headers
from devstack.cosmos.query import parse
from devstack.cosmos.store.account import Account, Database
from devstack.cosmos.store.container import Container
from devstack.cosmos.store.throughput import Level, Offer

# Of a container, what a replacement that does not name it keeps.
_FIXED = ("partitionKey", "indexingPolicy", "conflictResolutionPolicy", "uniqueKeyPolicy")
_QUERY_FORM = "A query request is {query: text, parameters: [{name, value}]}"

Handler = Callable[[Request], Response]


class Resources:
    """`address` tells the server's own URL, which the SDKs take as the account's only region."""

    def __init__(self, account: Account, address: Callable[[], str]) -> None:
        self._account = account
        self._address = address

    def handlers(self) -> Mapping[str, Handler]:
        """By point of devstack.cosmos.protocol.requests."""
        return {
            "account.read": self._read_account,
            "databases.list": self._list_databases,
            "databases.query": self._list_databases,
            "databases.create": self._create_database,
            "databases.read": lambda request: _answer(200, self._database(request).properties),
            "databases.delete": self._delete_database,
            "containers.list": self._list_containers,
            "containers.query": self._list_containers,
            "containers.create": self._create_container,
            "containers.read": lambda request: _answer(200, self._container(request).properties),
            "containers.replace": self._replace_container,
            "containers.delete": self._delete_container,
            "ranges.list": self._list_ranges,
            "offers.list": self._list_offers,
            "offers.query": self._list_offers,
            "offers.read": self._read_offer,
            "offers.replace": self._replace_offer,
        }

    def _database(self, request: Request) -> Database:
        return self._account.database(request.names[0], owner=len(request.names) > 1)

    def _container(self, request: Request) -> Container:
        return self._database(request).container(request.names[1])

    def _read_account(self, _request: Request) -> Response:
        region = [{"name": "Local", "databaseAccountEndpoint": self._address()}]
        return _answer(
            200,
            {
                "_self": "",
                "id": "local",
                "_rid": "local",
                "_dbs": "//dbs/",
                "media": "//media/",
                "addresses": "//addresses/",
                "writableLocations": region,
                "readableLocations": region,
                "enableMultipleWriteLocations": False,
                "userReplicationPolicy": {
                    "asyncReplication": False,
                    "minReplicaSetSize": 1,
                    "maxReplicasetSize": 4,
                },
                "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
                "systemReplicationPolicy": {"minReplicaSetSize": 1, "maxReplicasetSize": 4},
                "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
                "queryEngineConfiguration": "{}",
            },
        )

    def _list_databases(self, request: Request) -> Response:
        databases = (database.properties for database in self._account.databases.values())
        return _feed(request, "Databases", "", databases)

    def _create_database(self, request: Request) -> Response:
        level = _level(request)
        database = self._account.create_database(_object(request).get("id"), level)
        return _answer(201, database.properties)

    def _delete_database(self, request: Request) -> Response:
        del self._account.databases[self._database(request).name]
        return Response(204, {})

    def _list_containers(self, request: Request) -> Response:
        database = self._account.database(request.names[0], owner=True)
        containers = (container.properties for container in database.containers.values())
        return _feed(request, "DocumentCollections", database.rid_text, containers)

    def _create_container(self, request: Request) -> Response:
        database = self._account.database(request.names[0], owner=True)
        container = self._account.create_container(database, _object(request), _level(request))
        return _answer(201, container.properties)

    def _replace_container(self, request: Request) -> Response:
        container = self._container(request)
        document = _object(request)
        if (
            document.get("partitionKey", container.properties["partitionKey"])
            != container.properties["partitionKey"]
        ):
            raise bad_request("The partition key of a container cannot be changed")
        kept = {name: value for name, value in container.properties.items() if name.startswith("_")}
        fixed = {name: container.properties[name] for name in _FIXED if name in container.properties}
        container.expire(self._account.clock())
        container.replace_properties({**fixed, **document, **kept, "id": container.name})
        return _answer(200, container.properties)

    def _delete_container(self, request: Request) -> Response:
        del self._database(request).containers[self._container(request).name]
        return Response(204, {})

    def _list_ranges(self, request: Request) -> Response:
        container = self._account.database(request.names[0], owner=True).container(
            request.names[1], owner=True
        )
        range_map = container.map
        etag = f'"{range_map.version}"'
        known = request.headers.get("if-none-match", "").strip('"')
        version = int(known) if known.isdecimal() else 0
        headers = {"etag": etag, "x-ms-request-charge": "1"}
        if version >= range_map.version:
            return Response(304, headers)
        described = [_describe_range(container, one) for one in range_map.since(version)]
        body = {"_rid": container.rid_text, "PartitionKeyRanges": described, "_count": len(described)}
        headers["x-ms-item-count"] = str(len(described))
        return Response(200, headers, msgspec.json.encode(body))

    def _list_offers(self, request: Request) -> Response:
        return _feed(request, "Offers", "", map(_describe_offer, self._account.offers()))

    def _read_offer(self, request: Request) -> Response:
        return _offer_answer(self._account.offer(request.names[0]))

    def _replace_offer(self, request: Request) -> Response:
        offer = self._account.offer(request.names[0])
        if request.flag("x-ms-cosmos-migrate-offer-to-autopilot"):
            self._account.migrate_offer(offer, autoscale=True)
        elif request.flag("x-ms-cosmos-migrate-offer-to-manual-throughput"):
            self._account.migrate_offer(offer, autoscale=False)
        else:
            self._account.replace_offer(offer, _wanted_level(request))
        return _offer_answer(offer)


def _level(request: Request) -> Level | None:
    wanted = level_headers(request.headers)
    return None if wanted is None else Level(*wanted)


def _wanted_level(request: Request) -> Level:
    """Of the two amounts an offer names, the one that its kind goes by."""
    content = _object(request).get("content")
    if not isinstance(content, dict):
        raise bad_request("An offer needs a content: {offerThroughput} or {offerAutopilotSettings}")
    settings = content.get("offerAutopilotSettings")
    if isinstance(settings, dict):
        amount, autoscale = settings.get("maxThroughput"), True
    else:
        amount, autoscale = content.get("offerThroughput"), False
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise bad_request(f"The offer's throughput is {amount!r}, accepted: a whole number")
    return Level(amount, autoscale)


def _describe_offer(offer: Offer) -> dict[str, Any]:
    level = offer.level
    content: dict[str, Any] = {
        "offerThroughput": level.ru // 10 if level.autoscale else level.ru,
        "offerIsRUPerMinuteThroughputEnabled": False,
        "offerMinimumThroughputParameters": {
            "maxThroughputEverProvisioned": offer.highest,
            "maxConsumedStorageEverInKB": offer.owner.stored_bytes() // 1024,
        },
    }
    if level.autoscale:
        content["offerAutopilotSettings"] = {
            "tier": 0,
            "maximumTierThroughput": 0,
            "autoUpgrade": False,
            "maxThroughput": level.ru,
        }
    return {
        "resource": offer.owner.link,
        "offerType": "Invalid",
        "offerResourceId": offer.owner.rid,
        "offerVersion": "V2",
        "content": content,
        "id": offer.rid,
        "_rid": offer.rid,
        "_self": f"offers/{offer.rid}/",
        "_etag": f'"{offer.updates}"',
        "_ts": 0,
    }


def _offer_answer(offer: Offer) -> Response:
    headers = {
        "x-ms-cosmos-min-throughput": str(offer.minimum()),
        "x-ms-offer-replace-pending": str(offer.pending is not None).lower(),
        "etag": f'"{offer.updates}"',
    }
    return Response(200, headers, msgspec.json.encode(_describe_offer(offer)))


def _describe_range(container: Container, key_range: Range) -> dict[str, Any]:
    return {
        "_rid": f"{container.rid_text}{key_range.id}",
        "id": key_range.id,
        "_etag": f'"{key_range.created}"',
        "minInclusive": key_range.minimum,
        "maxExclusive": key_range.maximum,
        "ridPrefix": int(key_range.id),
        "_self": f"{container.properties['_self']}pkranges/{key_range.id}/",
        "throughputFraction": 1 / len(container.map),
        "status": "online",
        "parents": list(key_range.parents),
        "_ts": 0,
        "_lsn": key_range.lsn,
    }


def _feed(request: Request, name: str, rid: str, items: Iterable[Any]) -> Response:
    """All resources of a kind, or those that the query in the request picks; always one page."""
    listed = list(items)
    if request.point.endswith(".query"):
        document = _object(request)
        text, parameters = query_of(document)
        listed = parse(text, parameters).run(listed)
    body = {"_rid": rid, name: listed, "_count": len(listed)}
    return Response(200, {"x-ms-item-count": str(len(listed))}, msgspec.json.encode(body))


def query_of(document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Text and parameters of a query request. Raises CosmosError (400)."""
    text, parameters = document.get("query"), document.get("parameters") or []
    if not isinstance(text, str) or not isinstance(parameters, list):
        raise bad_request(_QUERY_FORM)
    try:
        return text, {parameter["name"]: parameter.get("value") for parameter in parameters}
    except (TypeError, KeyError, AttributeError):
        raise bad_request(_QUERY_FORM) from None


def _answer(status: int, document: Mapping[str, Any]) -> Response:
    headers = {"etag": document["_etag"]} if "_etag" in document else {}
    return Response(status, headers, msgspec.json.encode(document))


def _object(request: Request) -> dict[str, Any]:
    document = request.json()
    if not isinstance(document, dict):
        raise bad_request(f"The body is {type(document).__name__}, accepted: an object")
    return document
