"""The doctor's check of call budgets: whether they suffice for the configuration, and did so in the last hour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing

from scaling.analysis.calls import short_budgets
from scaling.calls.budgets import budgets_of
from scaling.calls.usage import CallsSeen, seen
from scaling.service.autoscaler import Autoscaler
from scaling.storage.documents import TableCallCounts
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.azure.trials import table_absent
from tidemark.foundation.checkup import Check, Finding, Needs, ok, warning
from tidemark.foundation.wording import count_text

NAME = "calls"
_REMEDY = (
    "let the app's identity list what it reads ('Reader' on the resource groups), evaluate targets less often (`interval`), run"
    " their checks less often (VERIFY_SCHEDULE), or"
    " spread them over subscriptions, namespaces and accounts: docs/calls.md"
)


def checks_of(settings: Settings, autoscaler: Autoscaler) -> Iterator[Check]:
    """One, of all processes together."""
    noting, clock = autoscaler.ports.calls, autoscaler.clock
    if noting is None:
        return

    async def call() -> list[Finding]:
        expected = short_budgets(autoscaler.config, budgets_of(settings))
        warnings = [
            warning(NAME, "expected", shortage.text.removeprefix(f"{NAME}: "), _REMEDY)
            for shortage in expected
        ]
        async with aclosing(noting):
            absent = await table_absent(settings, STORAGE, TableCallCounts.TABLE, write=False)
            counts = () if absent else await noting.counts.read()
        return [*warnings, *verdicts(seen(counts, clock()))]

    needs = Needs("the 'Storage Table Data Reader' role", f"the storage account of {STORAGE}")
    yield Check(NAME, "budgets", needs, call)


def verdicts(calls: CallsSeen) -> list[Finding]:
    """A warning for each budget that did not suffice, by API and scope; else how near the nearest came."""
    findings, shares = [], list[tuple[float, str]]()
    for process in calls.processes:
        for usage in process.calls:
            subject = f"{usage.api} of {usage.scope}"
            if usage.refused_hour:
                made = f"{usage.refused_hour} of {count_text(usage.last_hour + usage.refused_hour, 'call')} of the last hour were"
                text = f"{made} refused in process {process.process}: the budget of {usage.budget_text} does not suffice"
                findings.append(warning(NAME, subject, text, _REMEDY))
            elif usage.budget and usage.seconds:
                most = usage.budget * 60.0 / usage.seconds
                shares.append(
                    (usage.last_minute / most, f"{subject}, {usage.last_minute} of {most:g} a minute")
                )
    if not findings:
        nearest = f"the most used: {max(shares)[1]}" if shares else "nothing was called within the last hour"
        findings.append(ok(NAME, "budgets", f"they suffice; {nearest}"))
    return findings
