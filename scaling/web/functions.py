"""The blueprint: timers, queues, and the HTTP API. Bodies only translate; the work is in `scaling.service.autoscaler`.

Log lines are emitted here, on the invocation's own task: the host drops lines it cannot attribute to an
invocation. Queue outputs are lists, so the host passes each message on as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import typing
from functools import cache

import azure.functions as func

from scaling.service.autoscaler import Autoscaler
from scaling.service.shell import Outcome
from scaling.web import api, past
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.http.answers import Response, error_response
from tidemark.foundation.http.callers import UNKNOWN, Caller, RefusedError, admit, auth_mode_of
from tidemark.foundation.log.process import keep_secrets_from_logs
from tidemark.foundation.log.tail import log_line
from tidemark.foundation.sanitize import describe_error, raise_without_secrets
from tidemark.foundation.settings_reader import ConfigError

if typing.TYPE_CHECKING:
    from scaling.service.metrics import AutoscalerMetrics

blueprint = func.Blueprint()  # type: ignore[no-untyped-call]  # the SDK has no annotation there
_log = logging.getLogger("tidemark.scaling")
keep_secrets_from_logs()

AUTH_MODE = auth_mode_of(os.environ)

LEVEL = func.AuthLevel.ANONYMOUS if AUTH_MODE.sign_in else func.AuthLevel.FUNCTION
"""What the host asks for before it calls: a key of the function or of the app, or nothing where `_respond` asks for
the role of who is signed in. Never the master key, which opens everything there is: no person should type that into a page.
"""

_health = api.CachedAnswer(5.0, clock=time.monotonic)  # it is open to everybody, and costs a read of a table
_examination = api.CachedAnswer(
    10.0, clock=time.monotonic
)  # it asks every service there is, in threads of its own
_of_targets = asyncio.Lock()  # the same of named targets: not kept, and one at a time

Messages = func.Out[typing.List[str]]


def autoscaler() -> Autoscaler:
    """The process's. Raises ConfigError as long as it cannot be built."""
    from scaling.service import assembly  # noqa: PLC0415 - it loads the SDKs of storage, which indexing does without

    return assembly.autoscaler()


def _finish(outcome: Outcome, output: Messages | None = None) -> None:
    """Ends a function: logs what its work has to say, and puts out its messages."""
    for line in outcome.lines:
        _log_line(line)
    for line in outcome.warnings:
        _log.warning("%s", log_line(line))
    _measure((*outcome.lines, *outcome.warnings))
    if output is not None and outcome.messages:
        output.set(list(outcome.messages))


@cache
def _metrics() -> AutoscalerMetrics:
    """The process's."""
    from scaling.service import assembly, metrics  # noqa: PLC0415 - OpenTelemetry, where it is asked for

    return metrics.metrics_of(os.environ, assembly.clock)


def _measure(lines: typing.Sequence[str]) -> None:
    """Feeds the metrics, where a setting asks for them. Telemetry ends nothing."""
    if os.environ.get("TIDEMARK_METRICS_EXPORTER", "none").strip() in {"", "none"}:
        return
    try:
        _metrics().record(lines)
    except Exception as error:  # also what an exporter raises
        _log.warning("metrics: %s", describe_error(error))


def _log_line(line: str) -> None:
    _log.info("%s", log_line(line))


def _answer(response: Response) -> func.HttpResponse:
    return func.HttpResponse(
        response.body,
        status_code=response.status,
        mimetype=response.media_type,
        charset="utf-8",
        headers=response.headers,
    )


async def _made(
    work: typing.Callable[[Autoscaler], typing.Awaitable[Response]], *, details: bool = True
) -> Response:
    """The answer of `work`; a configuration or a store that is out of order is a 503 that says so."""
    try:
        return await work(autoscaler())
    except (ConfigError, StoreUnavailableError) as error:
        return error_response(503, str(error) if details else type(error).__name__)


async def _respond(
    req: func.HttpRequest,
    work: typing.Callable[[Autoscaler, Caller], typing.Awaitable[Response]],
    *,
    order: bool = False,
) -> func.HttpResponse:
    """The answer to those who may ask: the host has checked the key; where sign-in takes its place, this does."""
    try:
        caller = admit(AUTH_MODE, req.headers, order=order)
    except RefusedError as error:
        return _answer(error_response(error.status, str(error)))
    with raise_without_secrets():
        return _answer(await _made(lambda autoscaler: work(autoscaler, caller)))


@blueprint.timer_trigger(
    arg_name="timer", schedule="%COLLECT_SCHEDULE%", run_on_startup=False, use_monitor=True
)
@blueprint.queue_output(arg_name="reports", queue_name="metrics", connection=STORAGE)
async def collect_metrics(timer: func.TimerRequest, reports: func.Out[typing.List[str]]) -> None:
    """Reads every configured metric and capacity; one report per target."""
    with raise_without_secrets():
        outcome = await autoscaler().collect()
    _finish(outcome, reports)


@blueprint.queue_trigger(arg_name="message", queue_name="metrics", connection=STORAGE)
@blueprint.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
async def scaling_logic(message: func.QueueMessage, actions: func.Out[typing.List[str]]) -> None:
    """Decides upon one report."""
    with raise_without_secrets():
        outcome = await autoscaler().evaluate(message.get_body())
    _finish(outcome, actions)


@blueprint.queue_trigger(arg_name="message", queue_name="actions", connection=STORAGE)
async def scaler(message: func.QueueMessage) -> None:
    """Carries out one action."""
    with raise_without_secrets():
        outcome = await autoscaler().apply(message.get_body())
    _finish(outcome)


@blueprint.timer_trigger(
    arg_name="timer", schedule="%VERIFY_SCHEDULE%", run_on_startup=False, use_monitor=True
)
@blueprint.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
async def verify_effects(timer: func.TimerRequest, actions: func.Out[typing.List[str]]) -> None:
    """Compares requested with reached; sends lost actions again."""
    with raise_without_secrets():
        outcome = await autoscaler().verify()
    _finish(outcome, actions)


@blueprint.timer_trigger(
    arg_name="timer", schedule="15,45 * * * * *", run_on_startup=False, use_monitor=False
)
async def send_notices(timer: func.TimerRequest) -> None:
    """Sends what waits for the webhooks of `[notify]`, if there are any."""
    with raise_without_secrets():
        outcome = await autoscaler().send_notices()
    _finish(outcome)


@blueprint.route("scaling/status", methods=["GET"], auth_level=LEVEL)
async def scaling_status(req: func.HttpRequest) -> func.HttpResponse:
    """Every target as it stands."""
    return await _respond(req, api.status)


@blueprint.route("scaling/{target}/recommendation", methods=["GET"], auth_level=LEVEL)
async def scaling_recommendation(req: func.HttpRequest) -> func.HttpResponse:
    """What a target should be set to."""
    target = req.route_params["target"]
    return await _respond(req, lambda autoscaler, _: api.recommendation(autoscaler, target))


@blueprint.route("scaling/{target}/drain", methods=["GET"], auth_level=LEVEL)
async def scaling_drain(req: func.HttpRequest) -> func.HttpResponse:
    """The drain notice of a target, which its workers acknowledge."""
    target = req.route_params["target"]
    return await _respond(req, lambda autoscaler, _: api.drain(autoscaler, target))


@blueprint.route("scaling/calls", methods=["GET"], auth_level=LEVEL)
async def scaling_calls(req: func.HttpRequest) -> func.HttpResponse:
    """What the processes of this app have called, and of what budget."""
    return await _respond(req, lambda scaler, _: api.calls(scaler))


@blueprint.route("scaling/log", methods=["GET"], auth_level=LEVEL)
async def scaling_log(req: func.HttpRequest) -> func.HttpResponse:
    """The decision log, newest first, page by page."""
    return await _respond(req, lambda scaler, _: api.log(scaler, req.params))


@blueprint.route("scaling/{target}/history", methods=["GET"], auth_level=LEVEL)
async def scaling_history(req: func.HttpRequest) -> func.HttpResponse:
    """The past of one target, as much of it as a chart shows."""
    return await _respond(req, lambda scaler, _: past.history(scaler, req.route_params["target"], req.params))


@blueprint.route("scaling/{target}/rules/trial", methods=["POST"], auth_level=LEVEL)
async def scaling_trial(req: func.HttpRequest) -> func.HttpResponse:
    """What other rules would have done with the last day of one target. Asked for by who may give orders."""
    target, body = req.route_params["target"], req.get_body()
    return await _respond(req, lambda scaler, _: past.trial(scaler, target, body), order=True)


@blueprint.route("notify/test", methods=["POST"], auth_level=LEVEL)
async def notify_test(req: func.HttpRequest) -> func.HttpResponse:
    """Sends a notice of kind `test` to the webhooks, and returns their answers."""
    return await _respond(req, lambda scaler, _: api.notify_test(scaler, req.get_body()), order=True)


@blueprint.route("scaling/{target}/{order}", methods=["POST"], auth_level=LEVEL)
async def scaling_control(req: func.HttpRequest) -> func.HttpResponse:
    """An operator's order: pause, resume, override, dry-run, promote; or a worker's: acknowledge."""
    target, name, body = req.route_params["target"], req.route_params["order"], req.get_body()
    return await _respond(
        req,
        lambda scaler, caller: api.control(scaler, api.Order(target, name, body, caller), log_line=_log_line),
        order=True,
    )


@blueprint.route("scaling/doctor", methods=["GET"], auth_level=LEVEL)
async def scaling_doctor(req: func.HttpRequest) -> func.HttpResponse:
    """Tries, as the app itself, what a deployment needs; says for each failure what to do."""
    try:
        admit(AUTH_MODE, req.headers)
    except RefusedError as error:
        return _answer(error_response(error.status, str(error)))
    warnings: list[str] = []

    async def make() -> Response:
        from scaling.doctor.examination import examined  # noqa: PLC0415 - loads every adapter, for one click a month

        response, lines = await examined(targets)
        warnings.extend(lines)
        return response

    targets = req.params.get("target", "")
    with raise_without_secrets():
        if not targets:
            response = await _examination.get(make)
        elif _of_targets.locked():  # any page can have a browser ask, with the cookie of whoever is signed in
            response = error_response(429, "target: other targets are being examined; ask again in a minute")
        else:
            async with _of_targets:
                response = await make()
    for line in warnings:
        _log.warning("%s", line)
    return _answer(response)


@blueprint.route("dashboard", methods=["GET"], auth_level=LEVEL)
async def dashboard(req: func.HttpRequest) -> func.HttpResponse:
    """The page that shows all this; it also shows what is wrong with a configuration that cannot be used."""
    try:
        admit(AUTH_MODE, req.headers)
    except RefusedError as error:
        if error.status == UNKNOWN:
            return _answer(api.sign_in())
        return _answer(api.refused(error, req.headers.get("accept", ""), sign_in=AUTH_MODE.sign_in))
    return _answer(api.dashboard())


@blueprint.route("health", methods=["GET"], auth_level=func.AuthLevel.ANONYMOUS)
async def health(req: func.HttpRequest) -> func.HttpResponse:
    """Whether the configuration is usable and the state store answers."""
    with raise_without_secrets():
        return _answer(await _health.get(lambda: _made(api.health, details=False)))
