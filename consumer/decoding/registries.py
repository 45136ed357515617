"""Schemas from Azure Schema Registry, by id and by name, and from a registry of Confluent's kind.

Clients are opened for a call and closed after it: each schema is fetched once. What a registry refuses (401, 403) is
unavailable and not unknown, because a role may be missing.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Collection, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from consumer.decoding.bodies import Definition
from tidemark.foundation.azure.connections import (
    ConnectionSettingsError,
    Settings,
    connection_string,
    credential,
    describe_identity_error,
    identity_setting,
    not_connected,
    transport_options,
)
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.http.outward import Answer, Outward, check_address, trusted_hosts
from tidemark.foundation.keys import namespace_host
from tidemark.foundation.pacing import patience
from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.secrets.known import hide_text
from tidemark.foundation.version import install_hint

if TYPE_CHECKING:
    from azure.schemaregistry.aio import SchemaRegistryClient

AT_ONCE = 8
"""Requests at a time. Chosen."""

MOST_REFERENCES = 50
"""Schemas that one schema may need, in a registry of Confluent's kind. Chosen: each is a request."""

_IDENTITY = ("IDENTITY_ENDPOINT", "IDENTITY_HEADER")

_RETRIES = {"retry_total": 1, "retry_backoff_factor": 0.2}
"""Whoever loads tries again."""

Into = Callable[[str, Definition | None], None]


class AzureRegistry:
    """Schemas by id, in the namespace of a connection. Raises SettingsError for a connection that cannot work."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        if find_spec("azure.schemaregistry") is None:
            raise SettingsError(
                f"schemas of Azure Schema Registry need the package azure-schemaregistry: {install_hint('decoders')}"
            )
        self.namespace = registry_namespace(settings, prefix)
        self._prefix = prefix
        # The local stack's identity is in its settings; the platform's is in the environment of the process.
        lent = {name: settings[name] for name in _IDENTITY if settings.get(name)}
        self._credential = credential(settings, prefix, lent)
        self._options = {**transport_options(settings), **_RETRIES}

    def _client(self) -> SchemaRegistryClient:
        from azure.schemaregistry.aio import SchemaRegistryClient  # noqa: PLC0415 - an optional extra

        timeouts = patience.held().timeouts()
        return SchemaRegistryClient(self.namespace, self._credential, **timeouts, **self._options)

    async def fetch(self, ids: Collection[str], into: Into) -> None:
        async with await asyncio.to_thread(self._client) as client:
            await _each(ids, lambda schema_id: self._by_id(client, schema_id, into))

    async def _by_id(self, client: SchemaRegistryClient, schema_id: str, into: Into) -> None:
        into(schema_id, await self._asked(lambda: client.get_schema(schema_id)))

    async def _asked(self, call: Callable[[], Awaitable[Any]]) -> Definition | None:
        """None for a schema that does not exist."""
        from azure.core.exceptions import ResourceNotFoundError  # noqa: PLC0415 - see LazyClient

        try:
            schema = await call()
        except ResourceNotFoundError:
            return None
        except MemoryError:
            raise
        except Exception as error:  # the SDK raises a TypeError for an answer without the service's headers
            raise UnavailableError(
                f"the schema registry {self.namespace} ({self._prefix}): {describe_identity_error(error)}"
            ) from error
        kind = str(getattr(schema.properties.format, "value", schema.properties.format)).lower()
        return Definition(schema.definition, "avro" if "avro" in kind else kind)

    async def reach(self) -> None:
        """Asks for a schema that does not exist. Raises UnavailableError, whose cause is the SDK's error."""
        async with await asyncio.to_thread(self._client) as client:
            await self._asked(lambda: client.get_schema("0" * 32))


class NamedSchemas(AzureRegistry):
    """All versions of named schemas, `group/name`, by `mark`, which is the id that events have."""

    def __init__(
        self, settings: Settings, prefix: str, names: Iterable[str], mark: Callable[[Definition], str]
    ) -> None:
        super().__init__(settings, prefix)
        self._mark = mark
        self._next = dict.fromkeys(names, 1)
        """Name -> the first version that was not fetched yet."""
        for name in self._next:
            if not all(part.strip() for part in (*name.split("/"), name)) or name.count("/") != 1:
                raise SettingsError(f"the schema name '{name}' is not known; accepted: group/name")

    async def fetch(self, ids: Collection[str], into: Into) -> None:
        answered = set()
        async with await asyncio.to_thread(self._client) as client:
            for name in self._next:
                while (definition := await self._version(client, name)) is not None:
                    mark = self._mark(definition)
                    into(mark, definition)
                    answered.add(mark)
                    self._next[name] += 1
        for schema_id in set(ids) - answered:
            into(schema_id, None)

    async def _version(self, client: SchemaRegistryClient, name: str) -> Definition | None:
        group, _, schema = name.partition("/")
        version = self._next[name]
        return await self._asked(lambda: client.get_schema(group_name=group, name=schema, version=version))


def registry_namespace(settings: Settings, prefix: str) -> str:
    """The host of a registry's namespace. Raises ConnectionSettingsError; the service takes identities only, no keys."""
    namespace = identity_setting(settings, prefix, "fullyQualifiedNamespace")
    if namespace is None:
        if connection_string(settings, prefix) is not None:
            raise ConnectionSettingsError(
                f"{prefix} is a connection string, and Azure Schema Registry accepts identities only: set"
                f" {prefix}__fullyQualifiedNamespace to <namespace>.servicebus.windows.net"
            )
        way = f"{prefix}__fullyQualifiedNamespace to <namespace>.servicebus.windows.net"
        raise not_connected("schema registry", prefix, way, "nothing")
    host = namespace_host(namespace)
    if not host:
        raise ConnectionSettingsError(
            f"{prefix}__fullyQualifiedNamespace has no host; expected <namespace>.servicebus.windows.net"
        )
    return host


class _Listed(msgspec.Struct):
    """A schema as a registry of Confluent's kind lists it."""

    schema: str
    schema_type: str = msgspec.field(default="AVRO", name="schemaType")
    references: list[_Reference] = msgspec.field(default_factory=list)


class _Reference(msgspec.Struct):
    subject: str
    version: int


class ConfluentRegistry:
    """Schemas by id over HTTP. Raises SettingsError for a connection that cannot work."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        address = settings.get(prefix, "").strip().rstrip("/")
        if not address:
            raise SettingsError(
                f"no schema registry '{prefix}': set {prefix} to its https address, and {prefix}__username and"
                f" {prefix}__password if it asks for them"
            )
        check_address(address, prefix, trusted_hosts(settings))
        self._settings, self._prefix, self._address = settings, prefix, address
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        user = identity_setting(settings, prefix, "username")
        password = identity_setting(settings, prefix, "password") or ""
        if user is not None:
            hide_text(password)
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            hide_text(token)
            self._headers["Authorization"] = f"Basic {token}"

    async def fetch(self, ids: Collection[str], into: Into) -> None:
        async with Outward(self._settings) as outward:
            await _each(ids, lambda schema_id: self._by_id(outward, schema_id, into))

    async def reach(self) -> None:
        """Asks for the list of subjects. Raises UnavailableError."""
        async with Outward(self._settings) as outward:
            await self._asked(outward, "subjects?limit=1")

    async def _by_id(self, outward: Outward, schema_id: str, into: Into) -> None:
        answer = await self._asked(outward, f"schemas/ids/{schema_id}")
        if answer is None:
            into(schema_id, None)
            return
        listed = self._listed(answer)
        texts: dict[tuple[str, int], str] = {}
        whole = await self._add_references(outward, listed, texts, 0)
        texts_in_order = tuple(texts.values())
        definition = Definition(listed.schema, listed.schema_type.lower(), texts_in_order)
        into(schema_id, definition if whole else None)

    async def _add_references(
        self, outward: Outward, listed: _Listed, texts: dict[tuple[str, int], str], level: int
    ) -> bool:
        """Each after those that it needs itself. False if one does not exist, or not yet."""
        for reference in listed.references:
            key = (reference.subject, reference.version)
            if key in texts:
                continue
            if len(texts) >= MOST_REFERENCES or level >= MOST_REFERENCES:
                return True  # reading it then says which name is not known
            path = f"subjects/{quote(reference.subject, '')}/versions/{reference.version}"
            if (answer := await self._asked(outward, path)) is None:
                return False
            inner = self._listed(answer)
            if not await self._add_references(outward, inner, texts, level + 1):
                return False
            texts[key] = inner.schema
        return True

    async def _asked(self, outward: Outward, path: str) -> Answer | None:
        """None for what does not exist."""
        try:
            answer = await outward.ask(
                "GET", f"{self._address}/{path}", setting=self._prefix, headers=self._headers
            )
        except SettingsError as error:  # its name leads to an address that is not called
            raise UnavailableError(str(error)) from error
        if answer.status == 404 and b'"error_code"' in answer.body:
            return None
        if answer.status != 200:
            host = sanitize_line(urlsplit(self._address).netloc)
            refused = "access refused, " if answer.status in {401, 403} else ""
            if answer.status == 404:  # a registry says which of its things does not exist
                refused = "no registry at this address, "
            raise UnavailableError(
                f"the schema registry {host} ({self._prefix}): {refused}status {answer.status}"
            )
        return answer

    def _listed(self, answer: Answer) -> _Listed:
        try:
            return msgspec.json.decode(answer.body, type=_Listed)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnavailableError(
                f"the answer of {self._prefix} is no schema: {sanitize_line(str(error))}"
            ) from None


async def _each(ids: Collection[str], fetch: Callable[[str], Awaitable[None]]) -> None:
    """All of them, a few at a time. Raises the first error when all have ended, so that what was answered is kept."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(schema_id: str) -> None:
        async with turns:
            await fetch(schema_id)

    for result in await asyncio.gather(*(one(schema_id) for schema_id in ids), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
