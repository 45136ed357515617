"""The consumers' part of the HTTP API. Bodies only translate; the work is in `consumer.web.api`."""

from __future__ import annotations

import os
import time
import typing
from functools import cache

import azure.functions as func

from tidemark.foundation.azure.connections import ConnectionSettingsError
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.http.answers import Response, error_response
from tidemark.foundation.http.callers import Caller, RefusedError, admit, auth_mode_of
from tidemark.foundation.sanitize import raise_without_secrets

if typing.TYPE_CHECKING:
    from consumer.web import api

blueprint = func.Blueprint()  # type: ignore[no-untyped-call]  # the SDK has no annotation there

AUTH_MODE = auth_mode_of(os.environ)

LEVEL = func.AuthLevel.ANONYMOUS if AUTH_MODE.sign_in else func.AuthLevel.FUNCTION
"""As in scaling.web.functions."""


@cache
def _opened() -> api.ConsumerTables:
    """The process's tables. Raises ConnectionSettingsError as long as there can be none."""
    from consumer.web import api

    return api.open_tables(dict(os.environ), time.time)


async def _respond(
    req: func.HttpRequest,
    work: typing.Callable[[api.ConsumerTables, Caller], typing.Awaitable[Response]],
    *,
    order: bool = False,
) -> func.HttpResponse:
    """As in scaling.web.functions."""
    with raise_without_secrets():
        try:
            caller = admit(AUTH_MODE, req.headers, order=order)
            response = await work(_opened(), caller)
        except RefusedError as error:
            response = error_response(error.status, str(error))
        except (ConnectionSettingsError, StoreUnavailableError) as error:
            response = error_response(503, str(error))
    return func.HttpResponse(
        response.body,
        status_code=response.status,
        mimetype=response.media_type,
        charset="utf-8",
        headers=response.headers,
    )


@blueprint.route("consumer/status", methods=["GET"], auth_level=LEVEL)
async def consumer_status(req: func.HttpRequest) -> func.HttpResponse:
    """The status of every consumer, as its instances reported it."""
    from consumer.web import api

    return await _respond(req, lambda tables, _: api.status(tables))


@blueprint.route("consumer/{name}/rate", methods=["POST"], auth_level=LEVEL)
async def consumer_rate(req: func.HttpRequest) -> func.HttpResponse:
    """Takes an operator's order for the rate of a consumer."""
    from consumer.web import api

    name, body = req.route_params["name"], req.get_body()
    return await _respond(req, lambda tables, caller: api.set_rate(tables, name, body, caller), order=True)
