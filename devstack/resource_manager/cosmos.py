"""Cosmos DB accounts in Resource Manager: the throughput of SQL databases and containers.

The throughput itself is the local Cosmos server's (`devstack.cosmos.store.throughput`), so that a change made here is the
change that the data plane sees. An update is accepted with 202 and an operation to follow; it is carried out by the data
plane at once, and what that refuses is answered in the provider's words. Fault points and kinds besides the common ones:

    arm.put_throughput   failed_operation   accepted, ends as Failed after `operation_seconds`
                         ignored_update     accepted, ends as Succeeded, the throughput stays
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from devstack.cosmos.protocol.errors import CosmosError
from devstack.cosmos.store.throughput import MAXIMUM, Level, Offer
from devstack.resource_manager.common.documents import Answer, ArmError, Call, front_door_error

if TYPE_CHECKING:
    from devstack.cosmos.store.account import Account

PUT_KINDS = frozenset({"failed_operation", "ignored_update"})

_API_VERSION = "2025-10-15"  # only written into the links to operations; any version is accepted


@dataclass(slots=True)
class _Operation:
    ends_at: float
    failure: str | None
    resource: Call


@dataclass(slots=True)
class CosmosAccount:
    """One account in Resource Manager, and its data plane. `operation_seconds` is how long an update takes to be reported."""

    id: str
    data: Account
    operation_seconds: float = 0.0
    poll_after: int = 1
    operations: dict[str, _Operation] = field(default_factory=dict)


class CosmosApi:
    """Answers the routes of `Microsoft.DocumentDB`; accounts by lower-case id."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.accounts: dict[str, CosmosAccount] = {}

    def knows_subscription(self, subscription: str) -> bool:
        return any(known.startswith(f"/subscriptions/{subscription.lower()}/") for known in self.accounts)

    def get_throughput(self, call: Call) -> Answer:
        _, offer = self._offer(call)
        return Answer(200, self._document(call, offer))

    def put_throughput(self, call: Call) -> Answer:
        """Carries out the update. Refused: a change of kind, the 26th update in 5 minutes, what the offer refuses."""
        account, offer = self._offer(call)
        level = _requested(call.document)
        kind = call.fault.kind if call.fault is not None else ""
        if kind not in PUT_KINDS:
            with _in_the_providers_words():
                account.data.replace_offer(offer, level)
        return self._accepted(call, account, failed=kind == "failed_operation")

    def migrate_to_autoscale(self, call: Call) -> Answer:
        return self._migrate(call, autoscale=True)

    def migrate_to_manual(self, call: Call) -> Answer:
        return self._migrate(call, autoscale=False)

    def _migrate(self, call: Call, *, autoscale: bool) -> Answer:
        account, offer = self._offer(call)
        with _in_the_providers_words():
            account.data.migrate_offer(offer, autoscale=autoscale)
        return self._accepted(call, account, failed=False)

    # -- operations -------------------------------------------------------------------------------

    def get_operation(self, call: Call) -> Answer:
        account, operation = self._operation(call)
        if self._clock() < operation.ends_at:
            return Answer(200, {"status": "Dequeued"}, {"Retry-After": str(account.poll_after)})
        if operation.failure is not None:
            error = {"code": "InternalServerError", "message": operation.failure}
            return Answer(200, {"status": "Failed", "error": error})
        _, offer = self._offer(operation.resource)
        return Answer(200, {"status": "Succeeded", "properties": self._document(operation.resource, offer)})

    def get_operation_result(self, call: Call) -> Answer:
        account, operation = self._operation(call)
        if self._clock() < operation.ends_at:
            return Answer(202, None, {"Retry-After": str(account.poll_after)})
        if operation.failure is not None:
            raise _provider_error(500, operation.failure)
        _, offer = self._offer(operation.resource)
        return Answer(200, self._document(operation.resource, offer))

    # -- helpers ----------------------------------------------------------------------------------

    def _offer(self, call: Call) -> tuple[CosmosAccount, Offer]:
        account = self._account(call)
        try:
            offer = account.data.find_offer(call.parts["database"], call.parts.get("container"))
        except CosmosError as error:
            raise _provider_error(404, error.message) from None
        if offer is None:
            raise _provider_error(
                404, "Throughput is not configured for this resource: it shares throughput or is serverless."
            )
        offer.advance(self._clock())
        return account, offer

    def _account(self, call: Call) -> CosmosAccount:
        parts = call.parts
        path = f"/subscriptions/{parts['subscription']}/resourceGroups/{parts['group']}"
        name = f"{path}/providers/Microsoft.DocumentDB/databaseAccounts/{parts['account']}".lower()
        if name not in self.accounts:
            raise front_door_error(
                404,
                "ResourceNotFound",
                f"The Resource 'Microsoft.DocumentDB/databaseAccounts/{parts['account']}' under resource group "
                f"'{parts['group']}' was not found. For more details please go to "
                "https://aka.ms/ARMResourceNotFoundFix",
            )
        return self.accounts[name]

    def _accepted(self, call: Call, account: CosmosAccount, *, failed: bool) -> Answer:
        now, identifier = self._clock(), f"op{len(account.operations) + 1}"
        account.operations[identifier] = _Operation(
            ends_at=now + account.operation_seconds,
            failure="The update of the throughput failed." if failed else None,
            resource=call,
        )
        subscription, name = call.parts["subscription"], account.id.rpartition("/")[2]
        root = f"{call.base_url}/subscriptions/{subscription}/providers/Microsoft.DocumentDB/locations/local"
        headers = {
            "Azure-AsyncOperation": f"{root}/operationsStatus/{name}~{identifier}?api-version={_API_VERSION}",
            "Location": f"{root}/operationResults/{name}~{identifier}?api-version={_API_VERSION}",
            "Retry-After": str(account.poll_after),
        }
        return Answer(202, {"status": "Enqueued"}, headers)

    def _operation(self, call: Call) -> tuple[CosmosAccount, _Operation]:
        name, _, identifier = call.parts["id"].partition("~")
        for account in self.accounts.values():
            operation = account.operations.get(identifier)
            if account.id.rpartition("/")[2].lower() == name.lower() and operation is not None:
                return account, operation
        raise front_door_error(404, "NotFound", f"Operation '{call.parts['id']}' was not found.")

    def _document(self, call: Call, offer: Offer) -> dict[str, Any]:
        path, _, _ = call.path.partition("/migrateTo")
        kind = "containers/throughputSettings" if "container" in call.parts else "throughputSettings"
        return {
            "id": path,
            "type": f"Microsoft.DocumentDB/databaseAccounts/sqlDatabases/{kind}",
            "name": "default",
            "properties": {"resource": _resource(offer)},
        }


def _resource(offer: Offer) -> dict[str, Any]:
    """What was asked for shows as the target while it is pending; limits are strings, as published."""
    level, pending = offer.level, offer.pending
    resource: dict[str, Any] = {
        "minimumThroughput": str(offer.minimum()),
        "offerReplacePending": str(pending is not None).lower(),
        "instantMaximumThroughput": str(offer.instant_maximum),
        "softAllowedMaximumThroughput": str(MAXIMUM),
    }
    if level.autoscale:
        target = pending[0].ru if pending is not None else level.ru
        resource["autoscaleSettings"] = {"maxThroughput": level.ru, "targetMaxThroughput": target}
    else:
        resource["throughput"] = level.ru
    return resource


def _requested(document: Any) -> Level:
    properties = document.get("properties") if isinstance(document, dict) else None
    resource = properties.get("resource") if isinstance(properties, dict) else None
    asked = resource if isinstance(resource, dict) else {}
    manual = asked.get("throughput")
    autoscale = (asked.get("autoscaleSettings") or {}).get("maxThroughput")
    if (manual is None) == (autoscale is None):
        raise _provider_error(400, "Either throughput or autoscaleSettings is required, but not both.")
    ru = manual if manual is not None else autoscale
    if not isinstance(ru, int) or isinstance(ru, bool):
        raise _provider_error(400, f"The throughput is {ru!r}; a whole number is accepted.")
    return Level(ru, autoscale=manual is None)


_CODES = {400: "BadRequest", 404: "NotFound", 429: "TooManyRequests", 500: "InternalServerError"}


@contextmanager
def _in_the_providers_words() -> Iterator[None]:
    """Around what the data plane does, and may refuse."""
    try:
        yield
    except CosmosError as error:
        text = f"Message: {json.dumps({'Errors': [error.message]})}"
        raise _provider_error(error.status, text, code=error.code, retry_after=error.retry_after) from None


def _provider_error(
    status: int, message: str, *, code: str | None = None, retry_after: float | None = None
) -> ArmError:
    """An error as the Cosmos DB provider words it: code and message are not wrapped in "error"."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    activity = "ActivityId: 00000000-0000-0000-0000-000000000000, Microsoft.Azure.Documents.Common/2.14.0"
    body = {"code": code or _CODES[status], "message": f"{message}\r\n{activity}"}
    return ArmError(Answer(status, body, headers))
