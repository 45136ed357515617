"""The call budget of each service, what each request counts for, and the share of one process. Pure.

The published limits, and where they stand (learn.microsoft.com, read in November 2026; marked † where they are from memory):

management_reads, management_writes
    Azure Resource Manager: a token bucket for each subscription and caller, of 250 reads filled by 25 a second, and of 200
    writes filled by 10 a second ("Understand how Azure Resource Manager throttles requests").
metric_reads
    Azure Monitor by Resource Manager: 12,000 reads an hour and subscription†.
metric_batches
    Azure Monitor's own endpoints: 360,000 requests an hour and subscription†.
log_queries
    Log Analytics: 200 requests in 30 s for each caller ("Azure Monitor service limits"), here counted for each address.
service_bus
    Administration of Service Bus has no limit of its own. In the Standard tier a namespace has 1,000 credits a second, of which
    a message takes one and an operation of administration ten† ("Throttling operations on Azure Service Bus"): what is
    taken here is a tenth of them.
cosmos_reads, cosmos_updates
    Cosmos DB: 500 reads and 25 changes of throughput in 5 minutes and account ("Azure Cosmos DB service quotas").

A budget is a fifth below the published limit, because the service counts requests when they arrive, and other programs
call as the same identity. cosmos_updates has the whole limit: 25 are few, and nothing else changes throughput.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from urllib.parse import urlsplit

from msgspec import Struct

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import shorten
from tidemark.foundation.wording import count_text

SHARE = "TIDEMARK_CALL_SHARE"
BUDGETS = "TIDEMARK_CALL_BUDGETS"
WORKERS = "FUNCTIONS_WORKER_PROCESS_COUNT"

OTHER = "other"
"""Hosts without a budget: their calls are counted, and an answer that asks to wait is obeyed."""


class Budget(Struct, frozen=True):
    """At most `calls` in any `seconds`."""

    calls: int
    seconds: float

    @property
    def words(self) -> str:
        return f"{count_text(self.calls, 'call')} in {self.seconds:g} s"


PUBLISHED: Mapping[str, Budget] = {
    "cosmos_reads": Budget(400, 300.0),
    "cosmos_updates": Budget(25, 300.0),
    "log_queries": Budget(160, 30.0),
    "management_reads": Budget(100, 5.0),
    "management_writes": Budget(40, 5.0),
    "metric_batches": Budget(400, 5.0),
    "metric_reads": Budget(9600, 3600.0),
    "service_bus": Budget(50, 5.0),
}
"""By API. Ranges of 5 s spread calls, so that a token bucket never runs empty."""

LIST_FROM = 3
"""From this number of readers with one parent on, a list replaces their reads: a list may take two pages."""

_ENTRY = re.compile(
    r"\s*(?P<api>[a-z_]+)\s*=\s*(?P<calls>\d{1,6})\s*/\s*(?P<seconds>\d{1,5}(\.\d+)?)\s*s?\s*"
)


def budgets_of(settings: Mapping[str, str]) -> dict[str, Budget]:
    """The budgets of one process. Raises SettingsError naming the setting that is wrong, and what is accepted."""
    share = _share(settings)
    budgets = dict(PUBLISHED)
    for entry in filter(str.strip, settings.get(BUDGETS, "").split(",")):
        match = _ENTRY.fullmatch(entry)
        if (
            match is None
            or match["api"] not in PUBLISHED
            or not int(match["calls"])
            or not float(match["seconds"])
        ):
            raise SettingsError(
                f"{BUDGETS}: found '{shorten(entry.strip(), 60)}'; accepted is API=CALLS/SECONDS, comma-separated, such as "
                f"management_reads=50/5, of {', '.join(PUBLISHED)}"
            )
        budgets[match["api"]] = Budget(int(match["calls"]), float(match["seconds"]))
    return {api: Budget(max(int(budget.calls * share), 1), budget.seconds) for api, budget in budgets.items()}


def _share(settings: Mapping[str, str]) -> float:
    text = settings.get(SHARE, "").strip()
    workers = settings.get(WORKERS, "").strip()
    if not text:
        return 1.0 / max(int(workers), 1) if workers.isdecimal() and workers.isascii() else 1.0
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not isfinite(share) or not 0.0 < share <= 1.0:
        raise SettingsError(
            f"{SHARE} is '{shorten(text, 40)}'; accepted is a number above 0, and up to 1, such as 0.25"
        )
    return share


class Call(Struct, frozen=True):
    """One call: its `scopes`, from one resource to everything behind the host, each of which may ask callers to wait; its
    `charges`, the budgets it counts for as (API, scope); and `who` makes it: method and path.
    """

    scopes: tuple[str, ...]
    charges: tuple[tuple[str, str], ...]
    who: str


_SUBSCRIPTION = re.compile(r"/subscriptions/([^/]+)(/|$)", re.IGNORECASE)
_ACCOUNT = re.compile(
    r"/microsoft\.documentdb/databaseaccounts/([^/]+)/.*/throughputsettings/", re.IGNORECASE
)
_LOG_QUERY = re.compile(r"/v1/(workspaces|subscriptions)/.*/query", re.IGNORECASE)
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


def call_of(method: str, url: str, api: str = "") -> Call:
    """The scopes and charges of a request: those of `api` where the sender names it, else by the path, because hosts have
    other names behind private links. Resource Manager and each provider throttle reads and writes separately.
    """
    parts = urlsplit(url)
    host, path = parts.netloc.rpartition("@")[2].casefold(), parts.path.casefold()
    subscription = _SUBSCRIPTION.match(path)
    place = f"{host}/{subscription[1]}" if subscription else host
    charges = (
        ((api, place),)
        if api
        else tuple(_charges(method.upper(), host, path, place, subscription is not None))
    )
    if charges[0][0] in {"management_reads", "management_writes"}:
        scopes = _management_scopes(method.upper(), host, path, place)
    else:
        scopes = (f"{host}?{path}", place)  # only the part before '?' is shown: a path may hold a secret
        if charges == ((OTHER, host),):
            # A gateway has many services behind one name, and a service may throttle one query alone.
            scopes = (f"{host}?{path}?{parts.query}", f"{host}?{path}")
    return Call(scopes, charges, f"{method.upper()} {host}{path}")


def _management_scopes(method: str, host: str, path: str, place: str) -> tuple[str, ...]:
    """The scopes in the order of `throttling.Scope`. A path without a provider is Microsoft.Resources'."""
    _, _, resource_path = path.rpartition("/providers/")
    provider, *names = (
        resource_path.strip("/").split("/") if "/providers/" in path else ["microsoft.resources"]
    )
    types = "/".join([provider, *names[::2]])
    # Cosmos DB counts the calls of each account: see `cosmos_reads`.
    counted = "/".join([provider, *names[:2], *names[2::2]]) if provider == "microsoft.documentdb" else types
    kind = "" if method in _READS else " (writes)"
    form = " (lists)" if len(names) % 2 else " (single)"
    narrow = (f"{host}{path}", f"{place}/{counted}{form}", f"{place}/{types}", f"{place}/{provider}")
    return tuple(f"{scope}{kind}" for scope in (*narrow, place, host))


def _charges(method: str, host: str, path: str, place: str, of_subscription: bool) -> list[tuple[str, str]]:  # noqa: FBT001
    if _LOG_QUERY.fullmatch(path):
        return [("log_queries", host)]
    if not of_subscription:
        return [(OTHER, host)]
    if path.endswith("/metrics:getbatch"):
        return [("metric_batches", place)]
    if method not in _READS:
        return [("management_writes", place)]
    charges = [("management_reads", place)]
    if path.endswith("/providers/microsoft.insights/metrics"):
        charges.append(("metric_reads", place))
    if (account := _ACCOUNT.search(path)) is not None:
        charges.append(("cosmos_reads", account[1]))
    return charges
