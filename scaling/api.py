"""The HTTP API without HTTP: parameters in, status and JSON out. The blueprint only translates."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

import msgspec
from msgspec import Struct

from scaling import views
from scaling.config_reader import parse_duration
from scaling.controls import ORDERS, OrderError
from scaling.dashboard import page
from scaling.model import LogEntry, LogKind
from scaling.policy import Policy
from scaling.ports import ConflictError
from scaling.runner import ATTEMPTS, Autoscaler
from scaling.version import VERSION

MAX_LIMIT = 1000
DEFAULT_LIMIT = 100
MAX_BODY = 64 * 1024

JSON = "application/json"
HTML = "text/html"


class Response(Struct, frozen=True):
    """What to answer: status, body, its media type, and headers."""

    status: int
    body: bytes
    media_type: str = JSON
    headers: dict[str, str] = {}


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(value), JSON, {"Cache-Control": "no-store"})


def error_response(status: int, message: str) -> Response:
    """`{"error": message}`; the message names the input at fault and what is accepted."""
    return json_response({"error": message}, status)


def dashboard() -> Response:
    """The page. It carries its own content policy; framing can only be forbidden by a header."""
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": "frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(200, page().encode(), HTML, headers)


async def health(autoscaler: Autoscaler) -> Response:
    """200 while the state store answers; open to everybody, so it says nothing else.

    Raises StoreUnavailableError.
    """
    await autoscaler.ports.states.load(next(iter(autoscaler.config.policies)))
    return json_response({"status": "healthy", "version": VERSION})


async def status(autoscaler: Autoscaler) -> Response:
    """Every target as it stands, what lint finds in the rules, and the messages the host gave up on."""
    ports, config = autoscaler.ports, autoscaler.config
    snapshots = await ports.states.load_all(config.policies)
    count, poison = await ports.poison.peek()
    problems = [f"{finding.severity}: {finding.text}" for finding in await autoscaler.findings()]
    now = autoscaler.clock()
    targets = [
        views.target_view(config.policies[name], snapshot, now=now) for name, snapshot in snapshots.items()
    ]
    return json_response(
        views.status_view(
            targets,
            now=now,
            collect_interval=config.interval,
            poison_count=count,
            poison=poison,
            problems=problems,
        )
    )


async def log(autoscaler: Autoscaler, parameters: Mapping[str, str]) -> Response:
    """`target`, `since` (epoch seconds, or a duration back from now), `limit`, `continuation`."""
    unknown = [
        name for name in parameters if name not in {"target", "since", "limit", "continuation", "code"}
    ]
    if unknown:
        return error_response(400, f"{unknown[0]}: accepted are target, since, limit, continuation")
    target = parameters.get("target") or None
    if target is not None and target not in autoscaler.config.policies:
        return error_response(404, _unknown_target(autoscaler, target))
    try:
        since, limit = _since(parameters.get("since"), autoscaler.clock()), _limit(parameters.get("limit"))
        page_ = await autoscaler.ports.log.read(
            target, since=since, limit=limit, continuation=parameters.get("continuation") or None
        )
    except ValueError as error:
        return error_response(400, str(error))
    return json_response(views.log_view(page_))


def _since(text: str | None, now: float) -> float | None:
    if not text:
        return None
    try:
        since = float(text)
    except ValueError:
        since = nan
    if isfinite(since):
        return since
    try:
        return now - parse_duration(text)
    except ValueError:
        raise ValueError(
            f"since: found '{text}'; accepted are epoch seconds or a duration back from now, such as '2h'"
        ) from None


def _limit(text: str | None) -> int:
    if not text:
        return DEFAULT_LIMIT
    if not text.isdigit() or not 1 <= int(text) <= MAX_LIMIT:
        raise ValueError(f"limit: found '{text}'; accepted are whole numbers 1 to {MAX_LIMIT}")
    return int(text)


class Order(Struct, frozen=True):
    """An operator's order as it came in; `principal` is the signed-in user, where the platform knows one."""

    target: str
    name: str
    body: bytes = b""
    principal: str | None = None


async def control(autoscaler: Autoscaler, order: Order) -> Response:
    """Carries out an order and writes it to the log first: an order is never without a trace."""
    policy = autoscaler.config.policies.get(order.target)
    if policy is None:
        return error_response(404, _unknown_target(autoscaler, order.target))
    if order.name not in ORDERS:
        return error_response(404, f"order: found '{order.name}'; accepted are {', '.join(ORDERS)}")
    try:
        fields = _fields(order.body)
        await _carry_out(autoscaler, policy, order.name, fields, by=order.principal or _by(fields))
    except OrderError as error:
        return error_response(400, str(error))
    except ConflictError:
        return error_response(409, "other orders for this target kept arriving; try again")
    snapshot = await autoscaler.ports.states.load(order.target)
    return json_response(views.target_view(policy, snapshot, now=autoscaler.clock()))


async def _carry_out(
    autoscaler: Autoscaler, policy: Policy, name: str, fields: Mapping[str, Any], *, by: str
) -> None:
    ports, now = autoscaler.ports, autoscaler.clock()
    for attempt in range(ATTEMPTS):
        controls, etag = await ports.controls.load(policy.target)
        changed, text = ORDERS[name](controls, fields, policy, by=by, now=now)
        line = f"control {policy.target}: {text}, by {by}"
        entry = LogEntry(policy.target, now, LogKind.CONTROL, f"control-{name}", line, name, by=by)
        await ports.log.append([entry])
        try:
            await ports.controls.save(policy.target, changed, etag)
        except ConflictError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def _fields(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BODY:
        raise OrderError(f"body: found {len(body)} bytes; at most {MAX_BODY} are accepted")
    if not body.strip():
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise OrderError(f"body: a JSON object is accepted; {error}") from None


def _by(fields: Mapping[str, Any]) -> str:
    by = fields.get("by") or "unnamed operator"
    if not isinstance(by, str) or len(by) > 200:
        raise OrderError(f"by: found {by!r}; a name of at most 200 characters is accepted")
    return by


def _unknown_target(autoscaler: Autoscaler, target: str) -> str:
    known = ", ".join(list(autoscaler.config.policies)[:20])
    return f"target: found '{target}'; configured are {known}"
