"""The control port: plain HTTP for tests and the demo, with no counterpart in Azure.

    GET  /plans                        every plan with its instances and history
    POST /plans/{name}/capacity        {"capacity": n}: somebody changes the plan behind our back
    POST /metrics                      {"resource_id", "metric", "dimensions", "values": {epoch seconds: value}}: what
                                       Azure Monitor is to tell of a resource
    GET, POST, DELETE /faults          see devstack.servers.faults

Bad requests are answered with 400 and {"error": what is accepted}.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from devstack.resource_manager.common.plans import Plan
from devstack.resource_manager.metrics import MetricsApi
from devstack.servers.faults import FaultRegistry, fault_routes


def control_application(
    plans: Callable[[], Iterable[Plan]], faults: FaultRegistry, metrics: MetricsApi
) -> web.Application:
    """`plans` is asked at every request, so that plans added later are seen."""

    async def get_plans(_request: web.Request) -> web.Response:
        return web.json_response({"plans": [_state(plan) for plan in plans()]})

    async def post_capacity(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        named = [plan for plan in plans() if plan.name.lower() == name.lower()]
        if not named:
            return web.json_response({"error": f"there is no plan {name!r}"}, status=404)
        if len(named) > 1:
            return web.json_response({"error": f"{len(named)} plans are called {name!r}"}, status=409)
        try:
            named[0].set_capacity(_capacity(await request.text()))
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(_state(named[0]))

    async def post_metrics(request: web.Request) -> web.Response:
        try:
            _add_series(metrics, await request.text())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.Response(status=204)

    app = fault_routes(faults)
    app.router.add_post("/metrics", post_metrics)
    app.router.add_get("/plans", get_plans)
    app.router.add_post("/plans/{name}/capacity", post_capacity)
    return app


def _capacity(text: str) -> int:
    document = json.loads(text)
    capacity = document.get("capacity") if isinstance(document, dict) else None
    if not isinstance(capacity, int) or isinstance(capacity, bool):
        raise ValueError(f'the body is {text!r}, accepted: {{"capacity": a whole number}}')
    return capacity


def _add_series(metrics: MetricsApi, text: str) -> None:
    """Raises ValueError that says what is accepted."""
    try:
        document = json.loads(text)
        values = {float(at): float(value) for at, value in document["values"].items()}
        dimensions = {str(name): str(value) for name, value in document.get("dimensions", {}).items()}
        metrics.add(str(document["resource_id"]), str(document["metric"]), values, **dimensions)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f'found {error}; accepted: {{"resource_id", "metric", "dimensions": {{}}, "values": {{epoch seconds: number}}}}'
        ) from None


def _state(plan: Plan) -> dict[str, Any]:
    now = plan.clock()
    instances = [
        {
            "id": instance.id,
            "asked_at": instance.asked_at,
            "ready_at": instance.ready_at,
            "ready": instance.ready_at <= now,
        }
        for instance in plan.instances(now)
    ]
    return {
        "id": plan.id,
        "name": plan.name,
        "sku": plan.sku.name,
        "now": now,
        "capacity": plan.capacity,
        "maximum": plan.sku.maximum,
        "ready": plan.ready_count(now),
        "provisioning_state": plan.provisioning_state.value,
        "instances": instances,
        "history": [{"at": at, "capacity": capacity} for at, capacity in plan.history],
    }
