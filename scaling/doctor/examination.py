"""The examination as a whole: for the command, and as the app's own function."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from scaling.doctor import sign_in
from scaling.doctor.calls import knocked
from scaling.doctor.checks import Case, checks_of
from scaling.doctor.running import run
from tidemark.foundation.app_settings import ROOT
from tidemark.foundation.checkup import Check, Checkup, Finding, Needs, Verdict, warning
from tidemark.foundation.http.answers import Response, error_response, json_response
from tidemark.foundation.http.deployed_app import DeployedApp
from tidemark.foundation.version import install_hint

PATIENCE = 230.0
"""Seconds for an app's answer: all of its checks, and a cold start. The platform cuts an answer then."""


CONSUMED = "EVENTHUB_NAME"
"""A setting of the consumer's, without which there is none."""
LEGACY_HUB, HUB = "EVENTHUB_CONNSTRING", "EventHubConnection"
"""Settings of the consumer's that connect its hub; the first one counts where it is set."""


async def examine(case: Case) -> Checkup:
    """Makes all checks: those of the consumer too, unless targets are named. Raises ValueError for a target that is not
    configured.
    """
    return await run([*checks_of(case), *([] if case.only else _of_consumer(case))])


def _of_consumer(case: Case) -> Sequence[Check]:
    """Its packages are an extra of their own, and many; a command of the autoscaler's must do without."""
    try:
        from consumer.doctor import checks as consumer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not case.settings.get(CONSUMED, "").strip():
            return []
        missing = str(error.name)

        async def call() -> list[Finding]:
            remedy = f"{install_hint('consumer')}; or ask the app itself: tidemark doctor --app"
            return [
                warning("configuration", "consumer", f"is not examined: '{missing}' is not installed", remedy)
            ]

        return [Check("configuration", "consumer", Needs("nothing", "this machine"), call)]
    return consumer.checks_of(case.settings, case.root)


class _Document(Struct, frozen=True):
    """What the function answers, as far as it is read back."""

    checks: tuple[Finding, ...]


async def examine_deployed(
    app: DeployedApp, settings: Mapping[str, str], targets: Sequence[str] = ()
) -> Checkup:
    """What a deployed app finds by itself, with its own rights; and from here, whom it lets in. `settings` are those of
    whoever asks. Raises AppError.
    """
    access = app.access
    only = ",".join(targets) or None
    document = await app.get(("scaling", "doctor"), _Document, within=PATIENCE, target=only)
    host = access.address.partition("://")[2]
    if access.address.startswith("http:"):  # a host on this machine, which nobody else reaches
        return Checkup(document.checks)
    try:
        answers = await knocked(access.address, settings)
    except OSError as error:
        outside = [sign_in.unreached(host, error)]
    else:
        signing_in = True if access.client_id else None
        outside = sign_in.by_answers(f"{host} from here", *answers, sign_in=signing_in)
    return Checkup((*document.checks, *outside))


async def examined(targets: str = "") -> tuple[Response, list[str]]:
    """The answer of the function, by the app's own settings; and a line for the log of each finding that is not OK.

    `targets` are names with commas between them; '' is all.
    """
    only = tuple(name.strip() for name in targets.split(",") if name.strip())
    try:
        checkup = await examine(Case(dict(os.environ), ROOT, time.time, only))
    except ValueError as error:
        return error_response(400, str(error)), []
    lines = [
        f"doctor: {finding.verdict}: {finding.line}"
        for finding in checkup.findings
        if finding.verdict is not Verdict.OK
    ]
    return json_response(checkup.document()), lines
