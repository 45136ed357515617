"""Responses of an HTTP API, without a framework."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tidemark.foundation.errors import OrderError
from tidemark.foundation.sanitize import json_without_secrets, without_secrets

MAX_BODY = 64 * 1024
"""Bytes of the largest accepted order. Chosen: orders have a few hundred, and JSON is parsed in the memory of the app."""

JSON = "application/json"
HTML = "text/html"


class Response(Struct, frozen=True):
    status: int
    body: bytes
    media_type: str = JSON
    headers: dict[str, str] = {}


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, json_without_secrets(value), JSON, {"Cache-Control": "no-store"})


def error_response(status: int, message: str) -> Response:
    """`{"error": message}`; the message names the input at fault and what is accepted."""
    return json_response({"error": without_secrets(message)}, status)


def json_fields(body: bytes) -> dict[str, Any]:
    """The members of the JSON object in a request's body. Raises OrderError."""
    if len(body) > MAX_BODY:
        raise OrderError(f"body: found {len(body)} bytes; at most {MAX_BODY} are accepted")
    if not body.strip():
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise OrderError(f"body: a JSON object in UTF-8 is accepted; {error}") from None
