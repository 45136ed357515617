"""HTTP triggers and the admin API."""

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import azure.functions as func
from aiohttp import web

from devstack.function_host.indexing import IndexedFunction
from devstack.function_host.settings import HostError

_MAX_BODY_BYTES = 100 * 1024 * 1024  # the real host's limit
_PARAMETER = re.compile(r"\{(?P<name>\w+)(?P<optional>\?)?\}")


@dataclass(frozen=True, slots=True)
class Keys:
    """Access keys; empty means there is none. As soon as there is one, levels are enforced."""

    admin: str = ""
    function: str = ""

    @property
    def any(self) -> bool:
        return bool(self.admin or self.function)

    def allow(self, level: str, offered: str) -> bool:
        """Tell whether the key offered opens this level (ANONYMOUS, FUNCTION, ADMIN). The admin key opens all."""
        if level == "ANONYMOUS" or not self.any:
            return True
        accepted = [self.admin] if level == "ADMIN" else [self.admin, self.function]
        return any(key and hmac.compare_digest(key.encode(), offered.encode()) for key in accepted)


class Route:
    """One HTTP function and the paths it answers."""

    def __init__(self, function: IndexedFunction, prefix: str) -> None:
        """Compile the route. Raises HostError naming the function if it has a part this host does not know."""
        self.function = function
        self.level = str(function.trigger.get("authLevel", "FUNCTION"))
        self._methods = {str(method).upper() for method in function.trigger.get("methods") or ()}
        template = str(function.trigger["route"]).strip("/")
        segments = [*prefix.split("/"), *template.split("/")] if prefix else template.split("/")
        self._pattern = re.compile("".join(self._segment(part) for part in segments if part), re.IGNORECASE)
        # More literal text first, segment by segment: things/mine wins over things/{id}.
        self.precedence = [0 if "{" not in part else 2 if "?" in part else 1 for part in segments]

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """The route parameters present in the path, or None if this route does not answer it."""
        matched = self._pattern.fullmatch(path.rstrip("/"))
        if matched is None or (self._methods and method not in self._methods):
            return None
        return {name: value for name, value in matched.groupdict().items() if value is not None}

    def _segment(self, text: str) -> str:
        if "{" not in text:
            return "/" + re.escape(text)
        parameter = _PARAMETER.fullmatch(text)
        if parameter is None:
            raise HostError(
                f"function {self.function.name}: route segment {text!r} is not known here; "
                "accepted: literal text, {name}, {name?}"
            )
        capture = f"/(?P<{parameter['name']}>[^/]+)"
        return f"(?:{capture})?" if parameter["optional"] else capture


class HttpServer:
    """The web application in front of the functions: HTTP triggers and /admin."""

    def __init__(
        self,
        functions: Sequence[IndexedFunction],
        prefix: str,
        keys: Keys,
        *,
        call: Callable[[IndexedFunction, func.HttpRequest], Awaitable[func.HttpResponse | str]],
        run: Callable[[IndexedFunction, str], None],
    ) -> None:
        """`call` answers a request with what the function returned, raising if it failed; `run` starts a manual run."""
        self._functions = {function.name.lower(): function for function in functions}
        http = [function for function in functions if function.trigger["type"] == "httpTrigger"]
        self._routes = sorted(
            (Route(function, prefix) for function in http), key=lambda route: route.precedence
        )
        self._keys = keys
        self._call = call
        self._run = run
        self.application = web.Application(client_max_size=_MAX_BODY_BYTES)
        self.application.add_routes(
            [
                web.get("/admin/host/status", self._status),
                web.get("/admin/functions", self._list),
                web.post("/admin/functions/{name}", self._run_manually),
                web.route("*", "/{path:.*}", self._dispatch),
            ]
        )

    async def _dispatch(self, request: web.Request) -> web.Response:
        self._refuse_other_origins(request)
        for route in self._routes:
            parameters = route.match(request.method, request.path)
            if parameters is not None and not route.function.disabled:
                self._require(route.level, request)
                return _response(
                    await self._call(route.function, await _function_request(request, parameters))
                )
        raise web.HTTPNotFound

    async def _status(self, request: web.Request) -> web.Response:
        self._require("ADMIN", request)
        return web.json_response({"state": "Running", "functions": len(self._functions)})

    async def _list(self, request: web.Request) -> web.Response:
        self._require("ADMIN", request)
        return web.json_response([_description(function) for function in self._functions.values()])

    async def _run_manually(self, request: web.Request) -> web.Response:
        self._refuse_other_origins(request)
        self._require("ADMIN", request)
        name = request.match_info["name"]
        if name.lower() not in self._functions:
            raise web.HTTPNotFound(text=f"there is no function {name}")
        try:
            body = await request.json()
            text = body["input"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise web.HTTPBadRequest(text='the body must be JSON: {"input": "text"}')
        self._run(self._functions[name.lower()], text)
        return web.Response(status=202)

    def _refuse_other_origins(self, request: web.Request) -> None:
        """Without keys, any page open in a browser here could give orders: a text/plain POST needs no permission of
        this server. Browsers say where a request comes from; the host name of this one, too, may be a foreign page's.
        """
        if not self._keys.any and (_is_foreign(request.host) or _is_cross_origin(request)):
            raise web.HTTPForbidden(
                text="requests of other sites' pages are refused while no key is set (--function-key, --admin-key)"
            )

    def _require(self, level: str, request: web.Request) -> None:
        offered = request.headers.get("x-functions-key") or request.query.get("code", "")
        if not self._keys.allow(level, offered):
            raise web.HTTPUnauthorized


def _is_foreign(host: str) -> bool:
    """A name that somebody else may have pointed at this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    return name not in {"localhost", "127.0.0.1", "::1"} and not name.endswith(".localhost")


def _is_cross_origin(request: web.Request) -> bool:
    origin = request.headers.get("Origin")
    if origin is not None:
        return urlsplit(origin).netloc != request.host
    return (
        request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}
        and request.method != "GET"
    )


def manual_request(body: str) -> func.HttpRequest:
    """What an HTTP function gets in a manual run: a POST of the input."""
    return func.HttpRequest("POST", "", body=body.encode())


async def _function_request(request: web.Request, route_params: Mapping[str, str]) -> func.HttpRequest:
    return func.HttpRequest(
        request.method,
        str(request.url),
        headers=request.headers,
        params=dict(request.query),
        route_params=route_params,
        body=await request.read(),
    )


def _response(value: func.HttpResponse | str) -> web.Response:
    """What the function returned, with the content type the worker gives it."""
    if isinstance(value, str):
        return web.Response(text=value)
    response = web.Response(body=value.get_body(), status=value.status_code)
    for name, text in value.headers.items():
        response.headers.add(name, text)
    if "content-type" not in value.headers:
        is_text = value.mimetype.startswith("text/")
        response.headers["Content-Type"] = (
            f"{value.mimetype}; charset={value.charset}" if is_text else value.mimetype
        )
    return response


def _description(function: IndexedFunction) -> dict[str, Any]:
    return {
        "name": function.name,
        "language": "python",
        "isDisabled": function.disabled,
        "config": {"bindings": list(function.raw_bindings)},
    }
