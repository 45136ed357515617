"""The checks of the doctor, their findings, and the summary of all findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum, StrEnum, auto
from typing import Any

from msgspec import Struct

from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.wording import count_text


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works now, but not for long or not as expected
    FAILED = "failed"
    UNKNOWN = "unknown"  # no answer: nothing may be concluded

    @property
    def is_bad(self) -> bool:
        """Whether the deployment cannot be relied on."""
        return self in {Verdict.FAILED, Verdict.UNKNOWN}


class Finding(Struct, frozen=True):
    """The result of one check of `subject`. `remedy` says what to do unless the verdict is OK; without it, ValueError is raised."""

    check: str
    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.verdict is not Verdict.OK and not self.remedy:
            raise ValueError(f"{self.check}: a finding that is {self.verdict} says what to do")

    @property
    def line(self) -> str:
        """The finding as one line without secrets, because it contains texts of services and of the user's own code."""
        done = f" -> {self.remedy}" if self.remedy else ""
        return sanitize_line(f"{self.check} {self.subject}: {self.found}{done}")


class Checkup(Struct, frozen=True):
    """All findings, in the order of the checks. `left` is how many calls were abandoned and still run."""

    findings: tuple[Finding, ...]
    left: int = 0

    @property
    def is_healthy(self) -> bool:
        return not any(finding.verdict.is_bad for finding in self.findings)

    @property
    def summary(self) -> str:
        """`9 checks: 7 ok, 1 warning, 1 failed`."""
        counts = Counter(finding.verdict for finding in self.findings)
        by_verdict = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        return f"{count_text(len(self.findings), 'check')}: {by_verdict}"

    def document(self) -> dict[str, object]:
        """The findings for JSON, worst first."""
        return {
            "healthy": self.is_healthy,
            "summary": self.summary,
            "checks": [
                {
                    "check": finding.check,
                    "subject": sanitize_line(finding.subject),
                    "verdict": str(finding.verdict),
                    "found": sanitize_line(finding.found),
                    "remedy": sanitize_line(finding.remedy),
                }
                for finding in worst_first(self.findings)
            ],
        }


def ok(check: str, subject: str, result: str) -> Finding:
    return Finding(check, subject, Verdict.OK, result)


def warning(check: str, subject: str, result: str, remedy: str) -> Finding:
    return Finding(check, subject, Verdict.WARNING, result, remedy)


def failed(check: str, subject: str, result: str, remedy: str) -> Finding:
    return Finding(check, subject, Verdict.FAILED, result, remedy)


def unknown(check: str, subject: str, result: str, remedy: str) -> Finding:
    return Finding(check, subject, Verdict.UNKNOWN, result, remedy)


def storage(subject: str, *, absent: bool, check: str = "storage") -> Finding:
    """The finding after a successful read, and a deletion of nothing, in a table, queue or container."""
    there = "not there yet, it is created by its first use" if absent else "there"
    return ok(check, subject, f"{there}; reading and writing are allowed")


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """The findings in the order in which to read them. Within a verdict the order stays."""
    order = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.WARNING, Verdict.OK)
    return sorted(findings, key=lambda finding: order.index(finding.verdict))


class Trouble(Enum):
    """Why a call has no answer: one member for each person who must act."""

    REFUSED = auto()  # a role is missing
    NO_IDENTITY = auto()  # no token could be had
    ABSENT = auto()  # nothing has that name
    SETTINGS = auto()  # a setting is missing or malformed
    BUSY = auto()  # the service throttles, or is down for now
    SILENT = auto()  # no answer in time
    UNREACHABLE = auto()  # no connection
    DISABLED = auto()  # it exists, but is switched off
    OTHER = auto()


class Needs(Struct, frozen=True):
    """What a call needs: the `role`, and its scope (`place`), as the portal shows them."""

    role: str
    place: str


class TriedError(Exception):
    """A call has no answer, and its code knows the reason, which is the text."""

    def __init__(self, trouble: Trouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble


Call = Callable[[], Coroutine[Any, Any, Sequence[Finding]]]


class Check(Struct, frozen=True):
    """One check. An error of `call` is reported together with what the call `needs`."""

    name: str
    subject: str
    needs: Needs
    call: Call
