"""The HTTP API without HTTP: parameters in, status and JSON out. The blueprint only translates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from math import inf, isfinite
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct, structs

from scaling.calls.usage import CallsSeen, seen
from scaling.config.policy import Policy
from scaling.decision.orders import MAX_NAME, ORDERS
from scaling.drains.view import DRAINING, drain_view
from scaling.log_entry import LogEntry, LogKind
from scaling.model import NO_CONTROLS, Controls
from scaling.ports import Snapshot, StateStore
from scaling.service.autoscaler import Autoscaler
from scaling.service.entries import entry_line
from scaling.shadow.comparison import promotion_warning
from scaling.storage.orders import OrderWriter, carried_out, order_key
from scaling.web import views
from scaling.web.dashboard import page, refusal_page
from scaling.web.recommendation import NoAdviceError, recommendation_of
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import ConflictError, OrderError
from tidemark.foundation.http.answers import HTML, Response, error_response, json_fields, json_response
from tidemark.foundation.http.callers import LOGIN, LOGOUT, NOBODY, Caller, RefusedError, named
from tidemark.foundation.log.tail import Line
from tidemark.foundation.sanitize import one_line, sanitize_line
from tidemark.foundation.version import VERSION

MAX_LIMIT = 1000
DEFAULT_LIMIT = 100


_PAGE = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def dashboard() -> Response:
    """The page. It carries its own content policy; framing can only be forbidden by a header."""
    return Response(200, page().encode(), HTML, _PAGE)


def refused(error: RefusedError, accept: str, *, sign_in: bool) -> Response:
    """Why the page is not opened: as a page for a browser, which says so in `Accept`, else as the API says it. `sign_in`:
    whoever asks has signed in, and can do so as somebody else.
    """
    if "text/html" not in accept.casefold():
        return error_response(error.status, str(error))
    text = refusal_page(sanitize_line(str(error)), LOGOUT if sign_in else "")
    return Response(error.status, text.encode(), HTML, {**_PAGE, "Cache-Control": "no-store"})


def sign_in() -> Response:
    """To where the platform signs people in, and from there back to the page."""
    headers = {
        "Cache-Control": "no-store",
        "Location": f"{LOGIN}?post_login_redirect_uri=%2Fapi%2Fdashboard",
        "Referrer-Policy": "no-referrer",
    }
    return Response(302, b"", HTML, headers)


class CachedAnswer:
    """An answer that is asked for by everybody: made once, however many ask meanwhile, and kept for `seconds`."""

    def __init__(self, seconds: float, *, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never run back."""
        self._seconds = seconds
        self._clock = clock
        self._making: asyncio.Task[Response] | None = None
        self._until = -inf

    async def get(self, make: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        """The answer kept, or a new one. What `make` raises is raised here, and not kept."""
        task = self._making
        failed = task is not None and task.done() and (task.cancelled() or task.exception() is not None)
        if (
            task is None
            or failed
            or (task.done() and self._clock() >= self._until)
            or task.get_loop() is not asyncio.get_running_loop()
        ):
            self._making = task = asyncio.create_task(self._made(make))
        return await asyncio.shield(task)

    async def _made(self, make: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        answer = await make()
        self._until = self._clock() + self._seconds
        return answer


async def health(autoscaler: Autoscaler) -> Response:
    """200 while the state store answers; open to everybody, so it says nothing else.

    Raises StoreUnavailableError.
    """
    await autoscaler.ports.states.load(next(iter(autoscaler.config.policies)))
    return json_response({"status": "healthy", "version": VERSION})


async def status(autoscaler: Autoscaler, caller: Caller = NOBODY) -> Response:
    """Every target as it stands, what lint finds in the rules, the messages the host gave up on, and who asks."""
    ports, config = autoscaler.ports, autoscaler.config
    snapshots, poison = await ports.states.load_all(config.policies), await ports.poison.peek()
    problems = [
        sanitize_line(f"{finding.severity}: {finding.text}") for finding in await autoscaler.findings()
    ]
    standing = (
        promotion_warning(config.policies[name], snapshot.controls) for name, snapshot in snapshots.items()
    )
    problems += [sanitize_line(f"warning: {text}") for text in standing if text is not None]
    view = views.status_view(
        config, snapshots, poison, now=autoscaler.clock(), problems=problems, signed_in=caller.name
    )
    return json_response(structs.replace(view, may_order=caller.may_order))


async def recommendation(autoscaler: Autoscaler, target: str) -> Response:
    """What a target should be set to; 503 while there is nothing to go by, so that nobody reads a number out of it."""
    policy = autoscaler.config.policies.get(target)
    if policy is None:
        return error_response(404, unknown_target(autoscaler, target))
    snapshot = await autoscaler.ports.states.load(target)
    interval, now = policy.spec.interval or autoscaler.config.interval, autoscaler.clock()
    try:
        return json_response(recommendation_of(policy, snapshot, interval=interval, now=now))
    except NoAdviceError as error:
        return error_response(503, sanitize_line(str(error)))


async def calls(autoscaler: Autoscaler) -> Response:
    """What each process has called within the last hour. Raises StoreUnavailableError."""
    return json_response(await calls_seen(autoscaler))


async def calls_seen(autoscaler: Autoscaler) -> CallsSeen:
    """The same before it is JSON."""
    noting, now = autoscaler.ports.calls, autoscaler.clock()
    return seen([] if noting is None else await noting.counts.read(), now)


async def log(autoscaler: Autoscaler, parameters: Mapping[str, str]) -> Response:
    """`target`, `since` (epoch seconds, or a duration back from now), `limit`, `continuation`."""
    unknown = [
        name for name in parameters if name not in {"target", "since", "limit", "continuation", "code"}
    ]
    if unknown:
        return error_response(400, f"{unknown[0]}: accepted are target, since, limit, continuation")
    target = parameters.get("target") or None
    if target is not None and not await known(autoscaler, target):
        return error_response(404, unknown_target(autoscaler, target))
    try:
        since = moment("since", parameters.get("since"), autoscaler.clock())
        limit = _limit(parameters.get("limit"))
        page_ = await autoscaler.ports.log.read(
            target, since=since, limit=limit, continuation=parameters.get("continuation") or None
        )
    except ValueError as error:
        return error_response(400, str(error))
    return json_response(views.log_view(page_))


async def known(autoscaler: Autoscaler, target: str) -> bool:
    """Configured, or once was: its entries stay. Orders for consumers are logged as `consumer NAME`."""
    configured = target in autoscaler.config.policies
    return configured or bool((await autoscaler.ports.log.read(target, limit=1)).entries)


def moment(name: str, text: str | None, now: float) -> float | None:
    """Epoch seconds, or a duration back from now; None where nothing is said. Raises ValueError."""
    if not text:
        return None
    with suppress(ValueError):
        if isfinite(at := float(text)):
            return at
    try:
        return now - parse_duration(text)
    except ValueError:
        raise ValueError(
            f"{name}: found '{text}'; accepted are epoch seconds or a duration back from now, such as '2h'"
        ) from None


def _limit(text: str | None) -> int:
    if not text:
        return DEFAULT_LIMIT
    if not text.isdigit() or not 1 <= int(text) <= MAX_LIMIT:
        raise ValueError(f"limit: found '{text}'; accepted are whole numbers 1 to {MAX_LIMIT}")
    return int(text)


class Order(Struct, frozen=True):
    """An operator's order as it came in."""

    target: str
    name: str
    body: bytes = b""
    caller: Caller = NOBODY


class NoticeOverError(OrderError):
    """A worker acknowledges a drain notice that does not stand any more."""


_writers: WeakKeyDictionary[StateStore, OrderWriter] = WeakKeyDictionary()
"""One for each store, so that orders which come at the same time are saved together."""


class OrderView(views.TargetView, frozen=True, kw_only=True):
    """The answer to an order: what was done, and the target as it stands then."""

    done: str


def _log_nothing(_line: Line) -> None:
    """For callers that have no log of their own."""


async def control(
    autoscaler: Autoscaler, order: Order, *, log_line: Callable[[Line], None] = _log_nothing
) -> Response:
    """Carries out an order, and writes it to the decision log whatever becomes of it; `log_line` gets its line when it is done.

    The answer is the target as it stands then, with what was `done` in words.
    """
    policy = autoscaler.config.policies.get(order.target)
    if policy is None:
        return error_response(404, unknown_target(autoscaler, order.target))
    if order.name not in ORDERS:
        return error_response(404, f"order: found '{order.name}'; accepted are {', '.join(ORDERS)}")
    try:
        fields = json_fields(order.body)
        by, name_in_log = named(order.caller, fields.get("by"))
        if order.name == "acknowledge" and await _is_acknowledged(autoscaler, policy, fields):
            return await _ordered(autoscaler, policy, "acknowledged already")
        done = await carry_out(
            autoscaler, policy, order.name, fields, by=by, name_in_log=name_in_log, log_line=log_line
        )
    except NoticeOverError as error:
        return error_response(409, str(error))
    except ValueError as error:
        return error_response(400, str(error))
    except ConflictError:
        return error_response(409, "other orders for this target kept arriving; try again")
    return await _ordered(autoscaler, policy, done)


async def _ordered(autoscaler: Autoscaler, policy: Policy, done: str) -> Response:
    snapshot = await autoscaler.ports.states.load(policy.target)
    target = views.target_view(policy, snapshot, now=autoscaler.clock())
    return json_response(OrderView(**structs.asdict(target), done=done))


async def _is_acknowledged(autoscaler: Autoscaler, policy: Policy, fields: Mapping[str, Any]) -> bool:
    """Whether an acknowledgement changes nothing, because it came before. Raises NoticeOverError for one that is too late."""
    snapshot, notice = await autoscaler.ports.states.load(policy.target), fields.get("notice")
    if not isinstance(notice, str):
        return False
    _require_open(snapshot, notice)
    return fields.get("worker") in drain_view(snapshot.state, snapshot.controls).acknowledged


def _require_open(snapshot: Snapshot, notice: str) -> None:
    """Raises NoticeOverError."""
    view = drain_view(snapshot.state, snapshot.controls)
    if (view.state, view.notice) != (DRAINING, notice):
        named = f"found '{one_line(notice)[:MAX_NAME]}'"
        stands = (
            f"the notice is {view.notice}"
            if view.state == DRAINING
            else "no notice stands: all go on with their work"
        )
        raise NoticeOverError(f"notice: {named}, which is over; {stands}")


async def drain(autoscaler: Autoscaler, target: str) -> Response:
    """The drain notice of a target, for its workers."""
    if target not in autoscaler.config.policies:
        return error_response(404, unknown_target(autoscaler, target))
    snapshot = await autoscaler.ports.states.load(target)
    return json_response(drain_view(snapshot.state, snapshot.controls))


async def carry_out(
    autoscaler: Autoscaler,
    policy: Policy,
    name: str,
    fields: Mapping[str, Any],
    *,
    by: str,
    name_in_log: str,
    log_line: Callable[[Line], None] = _log_nothing,
) -> str:
    """Gives an order, and writes it to the log; returns what it does, in words.

    Raises OrderError before anything is written, ConflictError when other orders kept winning.
    """
    ports, now = autoscaler.ports, autoscaler.clock()
    _, text = ORDERS[name](NO_CONTROLS, fields, policy, by=by, now=now)

    is_of_notice = name == "acknowledge"

    def change(loaded: Snapshot) -> Controls:
        if is_of_notice:  # else one that is late would replace those of the notice that stands
            _require_open(loaded, fields["notice"])
        return ORDERS[name](loaded.controls, fields, policy, by=by, now=now)[0]

    async def save() -> None:
        writer = _writers.setdefault(ports.states, OrderWriter())
        await writer.save(ports.states, policy.target, change, needs_state=is_of_notice)

    line = f"control {policy.target}: {text}, by {name_in_log}"
    entry = LogEntry(policy.target, now, LogKind.CONTROL, order_key(name), line, name, by=by)
    await carried_out(ports.log, entry, save)
    log_line(entry_line(entry))
    return text


async def notify_test(autoscaler: Autoscaler, body: bytes) -> Response:
    """What the webhook named in `body`, or each of them, answers to a notice of kind `test`."""
    from scaling.notices.trial import tested  # noqa: PLC0415 - for one click of an operator's

    try:
        webhook = json_fields(body).get("webhook")
        if webhook is not None and not isinstance(webhook, str):
            raise ValueError(f"webhook: found {webhook!r}; a name is accepted")
        return json_response(await tested(autoscaler.ports.announcer, webhook, autoscaler.clock()))
    except ValueError as error:
        return error_response(400, str(error))


def unknown_target(autoscaler: Autoscaler, target: str) -> str:
    known = ", ".join(list(autoscaler.config.policies)[:20])
    return f"target: found '{one_line(target)[:200]}'; configured are {known}"
