"""The administration API: entities over HTTP.

    GET    /{entity}                              GET /$Resources/queues, /$Resources/topics
    PUT    /{entity}  (If-Match: * updates)       GET /{topic}/subscriptions
    DELETE /{entity}                              GET /{topic}/subscriptions/{subscription}/rules
                                                  GET /$namespaceinfo

where an entity is a queue, a topic, {topic}/subscriptions/{subscription}, or a rule below that: .../rules/{rule}. Case
does not matter. A shared access signature is verified, any bearer token is accepted.

Fault points are "admin.get:/orders", "admin.put:...", "admin.delete:..." with the kinds error
(status, condition as text, retry_after), latency (seconds) and drop_connection.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from aiohttp import web

from devstack.amqp.requests import verify_sas
from devstack.amqp.wire.errors import AmqpError
from devstack.service_bus import atom
from devstack.service_bus.broker import EntityExistsError, Topic
from devstack.service_bus.peer import Namespace
from devstack.service_bus.queue import Queue
from devstack.service_bus.rules.documents import parse_rule
from devstack.service_bus.rules.rules import DEFAULT_RULE, Rule
from devstack.service_bus.settings import QueueSettings

_PAGE = 100  # entries, as the service has it
_Entity = TypeVar("_Entity", Queue, Topic, Rule)
_SUBSCRIPTION = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<name>[^/]+)(?:/(?P<rules>rules)(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)


class _RefusedError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Administration:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._broker = namespace.broker

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        path = unquote(request.path)
        fault = self._namespace.faults.take(f"admin.{request.method.lower()}:{path}")
        if fault is not None and fault.kind == "drop_connection":
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=fault.status)
        if fault is not None and fault.kind == "error":
            headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
            return _failure(fault.status, fault.condition or "refused by a fault", headers)
        if fault is not None:
            await asyncio.sleep(fault.seconds)
        try:
            self._authorize(request)
            status, document = self._respond(request, path.strip("/"), await request.read())
        except _RefusedError as error:
            return _failure(error.status, str(error))
        except EntityExistsError as error:
            return _failure(409, str(error))
        except AmqpError as error:  # the broker knows no such entity
            return _failure(404, error.description)
        except ValueError as error:
            return _failure(400, str(error))
        return web.Response(status=status, text=document, content_type="application/atom+xml")

    def _authorize(self, request: web.Request) -> None:
        token = request.headers.get("Authorization", "")
        if token.startswith("Bearer "):
            return
        refusal = verify_sas(token, self._namespace.key, self._namespace.clock())
        if refusal is not None:
            raise _RefusedError(401, refusal)

    def _respond(self, request: web.Request, path: str, body: bytes) -> tuple[int, str]:
        base = f"https://{request.host}"
        if request.method == "GET":
            return 200, self._get(request, path, base)
        if request.method == "PUT":
            update = "If-Match" in request.headers
            entry = self._put(path, body, base, update=update)
            self._namespace.detach_disabled()
            return 200 if update else 201, entry
        if request.method == "DELETE":
            below = _SUBSCRIPTION.fullmatch(path)
            if below is not None and below["rule"]:
                self._broker.remove_rule(_subscription(below), below["rule"])
                return 200, ""
            self._broker.delete(path)
            self._namespace.detach_disabled()
            return 200, ""
        raise _RefusedError(405, f"method {request.method}, accepted: GET, PUT, DELETE")

    # --- reading ---

    def _get(self, request: web.Request, path: str, base: str) -> str:
        lowered = path.lower()
        if lowered == "$namespaceinfo":
            return atom.namespace_entry(request.host, base)
        if lowered == "$resources/queues":
            return self._list(
                request, list(self._broker.queues.values()), lambda q: atom.queue_entry(q, base)
            )
        if lowered == "$resources/topics":
            return self._list(
                request, list(self._broker.topics.values()), lambda t: atom.topic_entry(t, base)
            )
        below = _SUBSCRIPTION.fullmatch(path)
        if below is None:
            return self._entry(path, base)
        if below["name"] is None:
            queues = list(self._broker.topic(below["topic"]).subscriptions.values())
            return self._list(request, queues, lambda q: atom.queue_entry(q, base, subscription=True))
        address = _subscription(below)
        if below["rule"]:
            return atom.rule_entry(self._broker.rule(address, below["rule"]), f"{base}/{path}")
        if below["rules"]:
            rules = list(self._broker.rules(address).values())
            return self._list(
                request, rules, lambda rule: atom.rule_entry(rule, f"{base}/{path}/{rule.name}")
            )
        return atom.queue_entry(self._broker.source(address), base, subscription=True)

    def _entry(self, path: str, base: str) -> str:
        if path.lower() in self._broker.topics:
            return atom.topic_entry(self._broker.topic(path), base)
        return atom.queue_entry(self._broker.source(path), base)

    def _list(self, request: web.Request, entities: list[_Entity], entry: Callable[[_Entity], str]) -> str:
        skip = int(request.query.get("$skip", 0))
        top = int(request.query.get("$top", _PAGE))
        page = [entry(entity) for entity in entities[skip : skip + top]]
        address = f"https://{request.host}{request.path}"
        more = skip + top < len(entities)
        return atom.feed(
            request.path, address, page, f"{address}?$skip={skip + top}&$top={top}" if more else None
        )

    # --- writing ---

    def _put(self, path: str, body: bytes, base: str, *, update: bool) -> str:
        below = _SUBSCRIPTION.fullmatch(path)
        if below is not None and below["rule"]:
            description = atom.find_description(body, "RuleDescription")
            if description is None:
                raise ValueError("the body describes no rule, accepted: RuleDescription")
            rule = parse_rule(below["rule"], description)
            stored = self._broker.put_rule(_subscription(below), rule, update=update)
            return atom.rule_entry(stored, f"{base}/{path}")
        kind, properties = atom.parse_description(body)
        if kind == "TopicDescription":
            status = properties.get("Status") or "Active"
            if update:
                self._broker.topic(path).update(status)
            topic = self._broker.topic(path) if update else self._broker.create_topic(path, status)
            topic.duplicate_window = atom.duplicate_window(properties)
            topic.properties = atom.kept_properties(properties)
            return atom.topic_entry(topic, base)
        settings = atom.queue_settings(properties)
        if update:
            queue = self._broker.source(path)
            queue.update(replace(settings, limits=queue.limits))  # no client says anything of those
        else:
            queue = self._create(kind, path, settings, body)
        queue.properties = atom.kept_properties(properties)
        return atom.queue_entry(queue, base, subscription=kind == "SubscriptionDescription")

    def _create(self, kind: str, path: str, settings: QueueSettings, body: bytes) -> Queue:
        below = _SUBSCRIPTION.fullmatch(path)
        if kind == "QueueDescription" or below is None or below["name"] is None:
            return self._broker.create_queue(path, settings)
        default = atom.find_description(body, "DefaultRuleDescription")
        rule = None if default is None else parse_rule(_name_of(default), default)
        created = self._broker.create_subscription(below["topic"], below["name"], settings)
        if rule is not None:  # instead of the rule that takes everything
            self._broker.remove_rule(_subscription(below), DEFAULT_RULE)
            self._broker.put_rule(_subscription(below), rule)
        return created


def _subscription(path: re.Match[str]) -> str:
    return f"{path['topic']}/Subscriptions/{path['name']}"


def _name_of(rule: ET.Element) -> str:
    names = (child.text for child in rule if child.tag.rpartition("}")[2] == "Name")
    return next(names, None) or DEFAULT_RULE


def _failure(status: int, detail: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        text=atom.error_document(status, detail),
        content_type="application/xml",
        headers=headers,
    )
