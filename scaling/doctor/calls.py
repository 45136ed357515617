"""The harmless calls: they read, or delete what is not there, which takes the same role as deleting what is.

Each opens a client of its own and closes it, in the event loop of its check. They raise whatever the SDKs raise.
"""

from __future__ import annotations

import base64
import binascii
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError

from scaling.doctor.sign_in import FORGED, Answer
from scaling.doctor.verdicts import Runtime, Waiting, normal
from scaling.scalers.arm.clients import CONNECTION, identity_of, open_resources
from scaling.scalers.arm.resources import SITES_VERSION
from scaling.scalers.arm.shared import ArmAccess
from scaling.scalers.arm.states import may_be_on
from scaling.scalers.resource.resource import at
from tidemark.foundation.azure.connections import (
    Settings,
    credential,
    describe_network_error,
    queue_client,
    table_service,
    tls_context,
)
from tidemark.foundation.azure.trials import NOTHING
from tidemark.foundation.gathering import gather

KNOCKING = 20.0
"""Seconds for the two requests from outside together with the app's start."""

APPS_AT_ONCE = 8
"""Apps of a plan whose settings are read at the same time: a check has 25 s, and a plan may have a hundred apps."""

_NO_MESSAGE = "00000000-0000-0000-0000-000000000000"
_RECEIPT = "AgAAAAMAAAAAAAAA"  # in the form of a real one


async def token_claims(settings: Settings, prefix: str, scope: str) -> Mapping[str, Any]:
    """The claims of a token that was issued to the identity of connection `prefix`."""
    identity = identity_of(settings) if prefix == CONNECTION else credential(settings, prefix)
    return claims_of((await identity.get_token(scope)).token)


def claims_of(token: str) -> Mapping[str, Any]:
    """The claims of a JSON web token, unverified: for people to read. None for a token of another form."""
    pieces = token.split(".")
    if len(pieces) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(pieces[1] + "=" * (-len(pieces[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


async def queue_waiting(settings: Settings, prefix: str, name: str) -> Waiting | None:
    """What waits in the queue, None for one that is missing, after a deletion that was allowed."""
    async with queue_client(settings, prefix, name, retry_total=0) as client:
        try:
            await client.delete_message(_NO_MESSAGE, _RECEIPT)
        except HttpResponseError as error:
            if error.status_code not in {400, 404}:
                raise
        try:
            count = (await client.get_queue_properties()).approximate_message_count or 0
            first = await client.peek_messages(max_messages=1)
        except ResourceNotFoundError:
            return None
    inserted = first[0].inserted_on if first else None
    return Waiting(count, inserted.timestamp() if inserted else None)


async def ahead_of_service(settings: Settings, prefix: str, clock: Callable[[], float]) -> float:
    """Seconds that `clock` is ahead of the storage service's, from the date of its answer, whatever else it says."""
    dates: list[str] = []
    async with table_service(settings, prefix, retry_total=0) as service:
        begun = clock()
        rows = service.get_table_client("ScalingState").query_entities(
            f"PartitionKey eq '{NOTHING}'",
            results_per_page=1,
            raw_response_hook=lambda answer: dates.append(answer.http_response.headers.get("Date", "")),
        )
        try:
            [row async for row in rows]
        except AzureError:
            if not any(dates):
                raise
        ended = clock()
    if not any(dates):
        raise ValueError("the service's answer has no date")
    # It is cut to the second.
    return (begun + ended) / 2 - (parsedate_to_datetime(dates[-1]).timestamp() + 0.5)


async def permitted(settings: Settings, resource_id: str) -> Sequence[Mapping[str, Any]]:
    """The caller's permissions on a resource, from Resource Manager."""
    async with open_resources(settings) as client:
        return [entry async for entry in client.permissions(resource_id)]


async def platform_sign_in(settings: Settings, site: str) -> Mapping[str, Any]:
    """How the platform signs people in to an app."""
    async with open_resources(settings) as client:
        properties = (await client.get(f"{site}/config/authsettingsV2", SITES_VERSION)).get("properties")
    if not isinstance(properties, dict):
        raise ValueError("the answer holds no object 'properties'")
    return properties


async def knocked(address: str, settings: Settings) -> tuple[Answer, Answer]:
    """An app's answers to a request of nobody, and to one with a forged header of an operator. Raises OSError."""
    import aiohttp  # noqa: PLC0415 - a fifth of a second, for one check

    secure = address.startswith("https:")
    connector = aiohttp.TCPConnector(ssl=tls_context(settings) if secure else True)
    timeout = aiohttp.ClientTimeout(total=KNOCKING)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=secure) as session:

        async def answered(headers: Mapping[str, str]) -> Answer:
            url = f"{address}/api/scaling/status"
            async with session.get(url, headers=headers, allow_redirects=False) as response:
                return Answer(response.status, _is_ours(await response.content.read(64 * 1024)))

        try:
            return await answered({}), await answered(FORGED)
        except aiohttp.ClientError as error:
            raise ConnectionError(describe_network_error(error)) from None


def _is_ours(body: bytes) -> bool:
    """An error of the app's own is an object with the one member `error`; those of the platform have others, or none."""
    try:
        return set(json.loads(body)) == {"error"}
    except (ValueError, TypeError, RecursionError):
        return False


async def autoscale_holder(settings: Settings, resource_id: str) -> str | None:
    """The name of an enabled Azure Monitor autoscale setting that targets the resource."""
    arm = ArmAccess(settings)
    try:
        return await arm.read_holder(resource_id)
    finally:
        await arm.leave(None)


async def workers_of_apps(settings: Settings, plan_id: str) -> Mapping[str, int | None] | None:
    """On how many instances each app of a plan runs at most, by name (None: not known); None where the plan does not scale by
    app, so that each app runs on all of them.
    """
    async with open_resources(settings) as client:
        if not may_be_on(at(await client.get(plan_id, SITES_VERSION), "properties.perSiteScaling")):
            return None
        sites = [site async for site in client.entries(f"{plan_id}/sites", SITES_VERSION)]

        async def workers_of(site: Mapping[str, Any]) -> int | None:
            try:
                config = await client.get(f"{site.get('id')}/config/web", SITES_VERSION)
            except HttpResponseError as error:
                if error.status_code == 403:
                    raise
                return None  # such as an app that was deleted since the list
            workers = at(config, "properties.numberOfWorkers")
            return workers if isinstance(workers, int) else None

        workers = await gather(workers_of, sites, at_once=APPS_AT_ONCE)
        return {str(site.get("name")): count for site, count in zip(sites, workers, strict=True)}


def runtime(settings: Settings, root: Path) -> Runtime:
    """What this process runs on, and what the app was tested with."""
    installed: dict[str, str] = {}
    for distribution in metadata.distributions():
        if (name := distribution.metadata["Name"]) is not None:
            # Of two the first is imported: the platform brings some of its own.
            installed.setdefault(normal(name), distribution.version)
    pinned = root / "requirements.txt"
    text = pinned.read_text(encoding="utf-8") if pinned.is_file() else None
    return Runtime(sys.version_info[:2], installed, text, settings)


def machine() -> str:
    """Where this runs, for people."""
    return platform.node() or "this machine"
