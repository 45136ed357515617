"""The blueprint: timers, queues, and the HTTP API. Bodies only translate; the work is in `scaling.runner`.

Log lines are emitted here, on the invocation's own task: the host drops lines it cannot attribute to an
invocation. Queue outputs are lists, so the host passes each message on as it is.
"""

from __future__ import annotations

import logging
import typing

import azure.functions as func

from scaling import api
from scaling.assembly import STORAGE, autoscaler
from scaling.config_reader import ConfigError
from scaling.ports import StoreUnavailableError
from scaling.runner import Autoscaler, Outcome

blueprint = func.Blueprint()  # type: ignore[no-untyped-call]  # the SDK has no annotation there
_log = logging.getLogger("tidemark.scaling")

Messages = func.Out[typing.List[str]]  # noqa: UP006 - `list[str]` makes the worker refuse the whole app


def _finish(outcome: Outcome, output: Messages | None = None) -> None:
    for line in outcome.lines:
        _log.info("%s", line)
    for line in outcome.warnings:
        _log.warning("%s", line)
    if output is not None and outcome.messages:
        output.set(list(outcome.messages))


def _answer(response: api.Response) -> func.HttpResponse:
    return func.HttpResponse(
        response.body,
        status_code=response.status,
        mimetype=response.media_type,
        charset="utf-8",
        headers=response.headers,
    )


async def _respond(
    work: typing.Callable[[Autoscaler], typing.Awaitable[api.Response]], *, details: bool = True
) -> func.HttpResponse:
    """The answer of `work`; a configuration or a store that is out of order is a 503 that says so."""
    try:
        return _answer(await work(autoscaler()))
    except (ConfigError, StoreUnavailableError) as error:
        return _answer(api.error_response(503, str(error) if details else type(error).__name__))


@blueprint.timer_trigger(
    arg_name="timer", schedule="%COLLECT_SCHEDULE%", run_on_startup=False, use_monitor=True
)
@blueprint.queue_output(arg_name="reports", queue_name="metrics", connection=STORAGE)
async def collect_metrics(timer: func.TimerRequest, reports: func.Out[typing.List[str]]) -> None:  # noqa: UP006, ARG001
    """Reads every configured metric and capacity; one report per target."""
    _finish(await autoscaler().collect(), reports)


@blueprint.queue_trigger(arg_name="message", queue_name="metrics", connection=STORAGE)
@blueprint.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
async def scaling_logic(message: func.QueueMessage, actions: func.Out[typing.List[str]]) -> None:  # noqa: UP006
    """Decides upon one report."""
    _finish(await autoscaler().evaluate(message.get_body()), actions)


@blueprint.queue_trigger(arg_name="message", queue_name="actions", connection=STORAGE)
async def scaler(message: func.QueueMessage) -> None:
    """Carries out one action."""
    _finish(await autoscaler().apply(message.get_body()))


@blueprint.timer_trigger(
    arg_name="timer", schedule="%VERIFY_SCHEDULE%", run_on_startup=False, use_monitor=True
)
@blueprint.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
async def verify_effects(timer: func.TimerRequest, actions: func.Out[typing.List[str]]) -> None:  # noqa: UP006, ARG001
    """Compares requested with reached; sends lost actions again."""
    _finish(await autoscaler().verify(), actions)


@blueprint.route("scaling/status", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
async def scaling_status(req: func.HttpRequest) -> func.HttpResponse:  # noqa: ARG001
    """Every target as it stands."""
    return await _respond(api.status)


@blueprint.route("scaling/log", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
async def scaling_log(req: func.HttpRequest) -> func.HttpResponse:
    """The decision log, newest first, page by page."""
    return await _respond(lambda scaler: api.log(scaler, req.params))


@blueprint.route("scaling/{target}/{order}", methods=["POST"], auth_level=func.AuthLevel.ADMIN)
async def scaling_control(req: func.HttpRequest) -> func.HttpResponse:
    """An operator's order: pause, resume, override, dry-run."""
    order = api.Order(
        req.route_params["target"],
        req.route_params["order"],
        req.get_body(),
        req.headers.get("x-ms-client-principal-name"),
    )
    return await _respond(lambda scaler: api.control(scaler, order))


@blueprint.route("dashboard", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
async def dashboard(req: func.HttpRequest) -> func.HttpResponse:  # noqa: ARG001
    """The page that shows all this; it also shows what is wrong with a configuration that cannot be used."""
    return _answer(api.dashboard())


@blueprint.route("health", methods=["GET"], auth_level=func.AuthLevel.ANONYMOUS)
async def health(req: func.HttpRequest) -> func.HttpResponse:  # noqa: ARG001
    """Whether the configuration is usable and the state store answers."""
    return await _respond(api.health, details=False)
