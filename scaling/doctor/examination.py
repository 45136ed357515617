"""The examination as a whole: for the command, and as the app's own function."""

from __future__ import annotations

import os
import time

from foundation.app_settings import ROOT
from foundation.http.answers import Response, json_response
from scaling.doctor.checks import Case, checks_of
from scaling.doctor.model import Checkup, Verdict
from scaling.doctor.running import run


async def examine(case: Case) -> Checkup:
    """Makes all checks. Raises ValueError for a target that is not configured."""
    return await run(checks_of(case))


async def examined() -> tuple[Response, list[str]]:
    """The answer of the function, by the app's own settings; and a line for the log of each finding that is not OK."""
    case = Case(dict(os.environ), ROOT, time.time)
    checkup = await examine(case)
    lines = [
        f"doctor: {each.verdict}: {each.line}" for each in checkup.findings if each.verdict is not Verdict.OK
    ]
    return json_response(checkup.document()), lines
