"""The account: databases, containers and their throughput."""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from devstack.cosmos.partitions.budget import Budget, Prices
from devstack.cosmos.partitions.keys import parse_definition
from devstack.cosmos.protocol.errors import CosmosError, bad_request, not_found
from devstack.cosmos.store.container import Container
from devstack.cosmos.store.rids import container_rid, database_rid, rid_text
from devstack.cosmos.store.throughput import RANGE_CEILING, Level, Offer, Owner

DEFAULT_THROUGHPUT = 400  # RU/s of a container that asks for none, in a database that shares none
MAX_UPDATES = 25  # replacements of throughput per account and _UPDATE_WINDOW
_UPDATE_WINDOW = 300.0  # seconds


class Database:
    def __init__(self, name: str, rid: bytes, now: float) -> None:
        self.name = name
        self.rid = rid
        self.rid_text = rid_text(rid)
        self.containers: dict[str, Container] = {}
        self.offer: Offer | None = None
        self.properties: dict[str, Any] = {
            "id": name,
            "_rid": self.rid_text,
            "_self": f"dbs/{self.rid_text}/",
            "_etag": f'"{self.rid_text}"',
            "_colls": "colls/",
            "_users": "users/",
            "_ts": int(now),
        }
        self.budget = Budget()
        self.shards = 1  # physical partitions behind shared throughput

    def container(self, name: str, *, owner: bool = False) -> Container:
        """By name or resource id. Raises CosmosError (404)."""
        named = self.containers.get(name) or next(
            (container for container in self.containers.values() if container.rid_text == name), None
        )
        if named is None:
            raise not_found(f"container {name!r}", owner=owner)
        return named


class Account:
    """`clock` gives seconds since 1970; `split_delay` is that of devstack.cosmos.store.throughput."""

    def __init__(self, clock: Callable[[], float], *, prices: Prices, split_delay: float) -> None:
        self.databases: dict[str, Database] = {}
        self.clock = clock
        self.prices = prices
        self.split_delay = split_delay
        self._numbers = count(1)
        self._updates: deque[float] = deque()

    def database(self, name: str, *, owner: bool = False) -> Database:
        """By name or resource id. Raises CosmosError (404); 1003 if it is only the `owner` of what is asked for."""
        named = self.databases.get(name) or next(
            (database for database in self.databases.values() if database.rid_text == name), None
        )
        if named is None:
            raise not_found(f"database {name!r}", owner=owner)
        return named

    def create_database(self, name: object, level: Level | None = None) -> Database:
        """With shared throughput if a level is given. Raises CosmosError: 400 or 409."""
        name = _checked_name("database", name)
        if name in self.databases:
            raise CosmosError(409, f"Resource with specified id {name!r} already exists.")
        database = Database(name, database_rid(next(self._numbers) << 8), self.clock())
        if level is not None:
            database.shards = -(-level.ru // RANGE_CEILING)
            database.offer = self._offer(level, _shared(database))
        self.databases[name] = database
        return database

    def create_container(
        self, database: Database, document: dict[str, Any], level: Level | None = None
    ) -> Container:
        """Raises CosmosError: 400 or 409."""
        name = _checked_name("container", document.get("id"))
        if name in database.containers:
            raise CosmosError(409, f"Resource with specified id {name!r} already exists.")
        definition = parse_definition(document.get("partitionKey"))
        rid = container_rid(database.rid, next(self._numbers))
        if level is None and database.offer is None:
            level = Level(DEFAULT_THROUGHPUT)
        container = Container(
            name=name,
            rid=rid,
            properties=_container_properties(database, document, rid, self.clock()),
            definition=definition,
            ranges=-(-level.ru // RANGE_CEILING) if level else 1,
            prices=self.prices,
        )
        container.offer = self._offer(level, _dedicated(container)) if level else database.offer
        if level is None:
            container.shared_budget = database.budget
        database.containers[name] = container
        return container

    def recreate_container(self, database: Database, name: str) -> Container:
        """An empty one of the same name, definition and throughput, with a new resource id."""
        old = database.container(name)
        del database.containers[old.name]
        level = old.offer.level if old.offer is not None and not old.shares else None
        return self.create_container(database, old.properties, level)

    # Throughput

    def offers(self) -> list[Offer]:
        offers = [database.offer for database in self.databases.values()]
        for database in self.databases.values():
            offers.extend(
                container.offer for container in database.containers.values() if not container.shares
            )
        now = self.clock()
        present = [offer for offer in offers if offer is not None]
        for offer in present:
            offer.advance(now)
        return present

    def offer(self, rid: str) -> Offer:
        """Raises CosmosError (404)."""
        for offer in self.offers():
            if offer.rid == rid or offer.rid.lower() == rid.lower():
                return offer
        raise not_found(f"offer {rid!r}")

    def find_offer(self, database: str, container: str | None) -> Offer | None:
        """That of a container, or of a database; None for one without throughput of its own. Raises CosmosError (404)."""
        holder = self.database(database)
        if container is None:
            return holder.offer
        held = holder.container(container)
        return None if held.shares else held.offer

    def replace_offer(self, offer: Offer, level: Level) -> None:
        """Raises CosmosError: 400, 423, or 429 after 25 replacements within five minutes."""
        now = self.clock()
        while self._updates and self._updates[0] <= now - _UPDATE_WINDOW:
            self._updates.popleft()
        if len(self._updates) >= MAX_UPDATES:
            raise CosmosError(
                429,
                f"More than {MAX_UPDATES} throughput updates within {_UPDATE_WINDOW:.0f} seconds.",
                retry_after=self._updates[0] + _UPDATE_WINDOW - now,
            )
        if level.autoscale is not offer.level.autoscale:
            raise bad_request(
                f"The offer is {offer.level.describe()}; to change it to {level.describe()}, "
                "please invoke the migration API."
            )
        offer.replace(level, now)
        self._updates.append(now)

    def migrate_offer(self, offer: Offer, *, autoscale: bool) -> None:
        """Between manual and autoscale; the new amount is the least that is allowed and carries the old one."""
        if offer.level.autoscale is autoscale:
            return
        step = 1000 if autoscale else 100
        minimum = offer.minimum(autoscale=autoscale)
        amount = max(minimum, -(-offer.level.ru // step) * step)
        offer.replace(Level(amount, autoscale), self.clock())

    def _offer(self, level: Level, owner: Owner) -> Offer:
        number = next(self._numbers)
        return Offer(rid_text(number.to_bytes(3)), level, owner, self.split_delay)


def _dedicated(container: Container) -> Owner:
    def split_to(wanted: int) -> None:
        while len(container.map) < wanted:
            container.split(container.map.widest())

    return Owner(
        link=container.properties["_self"],
        rid=container.rid_text,
        stored_bytes=lambda: container.stored_bytes,
        containers=lambda: 1,
        range_count=lambda: len(container.map),
        split_to=split_to,
    )


def _shared(database: Database) -> Owner:
    def shared() -> list[Container]:
        return [container for container in database.containers.values() if container.shares]

    def split_to(wanted: int) -> None:
        database.shards = max(database.shards, wanted)

    return Owner(
        link=database.properties["_self"],
        rid=database.rid_text,
        stored_bytes=lambda: sum(container.stored_bytes for container in shared()),
        containers=lambda: len(shared()),
        range_count=lambda: database.shards,
        split_to=split_to,
    )


def _container_properties(
    database: Database, document: dict[str, Any], rid: bytes, now: float
) -> dict[str, Any]:
    text = rid_text(rid)
    return {
        "indexingPolicy": {
            "indexingMode": "consistent",
            "automatic": True,
            "includedPaths": [{"path": "/*"}],
            "excludedPaths": [{"path": '/"_etag"/?'}],
        },
        "conflictResolutionPolicy": {"mode": "LastWriterWins", "conflictResolutionPath": "/_ts"},
        **document,
        "_rid": text,
        "_self": f"{database.properties['_self']}colls/{text}/",
        "_etag": f'"{text}"',
        "_docs": "docs/",
        "_sprocs": "sprocs/",
        "_triggers": "triggers/",
        "_udfs": "udfs/",
        "_conflicts": "conflicts/",
        "_ts": int(now),
    }


def _checked_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= 255 or not set("/\\?#").isdisjoint(name):
        raise bad_request(f"The id of a {what} is {name!r}, accepted: 1 to 255 characters without / \\ ? #")
    return name
