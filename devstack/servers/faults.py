"""Faults that the local servers commit on request.

A server asks its registry at named points ("where") whether to misbehave:
`fault = faults.take("arm.get_plan")`. Which points and kinds exist is the server's business
and stated in its module docstring. A where ending in "*" matches every point with that
beginning.

`fault_routes(registry)` is the same thing over HTTP, for tests that live in another process:

    GET    /faults                                   the faults in force, oldest first
    POST   /faults   {"where": ..., "kind": ...}     adds one
    DELETE /faults                                   removes all
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields, replace

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to misbehave at one point, `count` times (None: until cleared).

    `kind` is "latency", "error", "drop_connection", "drop_ack" or what else the server at
    hand knows. `seconds` is how long to wait; `status` the HTTP status and `condition` the
    error code or AMQP condition to answer with; `retry_after` is in seconds.
    """

    where: str
    kind: str
    count: int | None = 1
    seconds: float = 0.0
    status: int = 500
    condition: str = ""
    retry_after: float | None = None

    def __post_init__(self) -> None:
        if not self.where or not self.kind:
            raise ValueError(
                f"a fault needs a where and a kind, got where={self.where!r}, kind={self.kind!r}"
            )
        if self.count is not None and self.count < 1:
            raise ValueError(f"count of fault {self.where!r} is {self.count}, accepted: 1 or more, or null")
        if self.seconds < 0:
            raise ValueError(f"seconds of fault {self.where!r} is {self.seconds}, accepted: 0 or more")

    def matches(self, where: str) -> bool:
        if self.where.endswith("*"):
            return where.startswith(self.where[:-1])
        return where == self.where


class FaultRegistry:
    """The faults in force, oldest first. Not thread-safe: use it on the loop of its server."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def take(self, where: str) -> Fault | None:
        """The oldest fault for this point, with one of its uses consumed; None if there is none."""
        for index, fault in enumerate(self._faults):
            if fault.matches(where):
                if fault.count == 1:
                    del self._faults[index]
                elif fault.count is not None:
                    self._faults[index] = replace(fault, count=fault.count - 1)
                return fault
        return None

    def clear(self) -> None:
        self._faults.clear()

    def list(self) -> list[Fault]:
        return list(self._faults)


_FIELDS: dict[str, tuple[type, ...]] = {
    "where": (str,),
    "kind": (str,),
    "count": (int, type(None)),
    "seconds": (int, float),
    "status": (int,),
    "condition": (str,),
    "retry_after": (int, float, type(None)),
}
assert set(_FIELDS) == {field.name for field in fields(Fault)}  # keeps the table complete


def parse_fault(document: object) -> Fault:
    """A fault from its JSON form.

    Raises ValueError that names the key at fault.
    """
    if not isinstance(document, dict):
        raise ValueError(f"a fault is a JSON object, got {type(document).__name__}")
    for name, value in document.items():
        if name not in _FIELDS:
            raise ValueError(f"a fault has no key {name!r}, accepted: {', '.join(_FIELDS)}")
        if not isinstance(value, _FIELDS[name]) or isinstance(value, bool):
            expected = " or ".join(kind.__name__ for kind in _FIELDS[name])
            raise ValueError(f"{name} of a fault is {value!r}, accepted: {expected}")
    return Fault(**{"where": "", "kind": "", **document})


def fault_routes(registry: FaultRegistry) -> web.Application:
    """A sub-application that serves `/faults`; mount it on a control port of the server."""
    app = web.Application()
    add_fault_routes(app, registry)
    return app


def add_fault_routes(app: web.Application, registry: FaultRegistry) -> None:
    """Serves `/faults` beside what an application serves."""
    for method, handler in _handlers(registry).items():
        app.router.add_route(method, "/faults", handler)


def _handlers(registry: FaultRegistry) -> dict[str, Callable[[web.Request], Awaitable[web.Response]]]:
    async def get(_request: web.Request) -> web.Response:
        return web.json_response([asdict(fault) for fault in registry.list()])

    async def post(request: web.Request) -> web.Response:
        try:
            fault = parse_fault(await request.json())
        except ValueError as error:  # includes malformed JSON
            return web.json_response({"error": str(error)}, status=400)
        registry.add(fault)
        return web.json_response(asdict(fault), status=201)

    async def delete(_request: web.Request) -> web.Response:
        registry.clear()
        return web.Response(status=204)

    return {"GET": get, "POST": post, "DELETE": delete}
