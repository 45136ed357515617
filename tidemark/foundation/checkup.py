"""What the doctor tries, what a check says, and what all of them say together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum, StrEnum, auto
from typing import Any

from msgspec import Struct

from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.wording import count_text


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, and will not for long, or not as somebody expects
    FAILED = "failed"
    UNKNOWN = "unknown"  # no answer: nothing may be concluded

    @property
    def is_bad(self) -> bool:
        """Whether a deployment is not to be trusted with it."""
        return self in {Verdict.FAILED, Verdict.UNKNOWN}


class Finding(Struct, frozen=True):
    """What one check found about `subject`; `remedy` says what to do about whatever is not OK.

    Raises ValueError for a finding without a remedy that needs one: a person reads it who did not write this.
    """

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
        """One line, without secrets: texts of services and of the user's own code are in it."""
        done = f" -> {self.remedy}" if self.remedy else ""
        return sanitize_line(f"{self.check} {self.subject}: {self.found}{done}")


class Checkup(Struct, frozen=True):
    """All findings, in the order of the checks. `left` are calls that went on when nobody waited for them any more."""

    findings: tuple[Finding, ...]
    left: int = 0

    @property
    def is_healthy(self) -> bool:
        return not any(finding.verdict.is_bad for finding in self.findings)

    @property
    def summary(self) -> str:
        """`9 checks: 7 ok, 1 warning, 1 failed`."""
        told = [f"{count} {verdict}" for verdict in Verdict if (count := self._count(verdict))]
        return f"{count_text(len(self.findings), 'check')}: {', '.join(told)}"

    def document(self) -> dict[str, object]:
        """As JSON has it, worst first."""
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

    def _count(self, verdict: Verdict) -> int:
        return sum(finding.verdict is verdict for finding in self.findings)


def ok(check: str, subject: str, found: str) -> Finding:
    return Finding(check, subject, Verdict.OK, found)


def warning(check: str, subject: str, found: str, remedy: str) -> Finding:
    return Finding(check, subject, Verdict.WARNING, found, remedy)


def failed(check: str, subject: str, found: str, remedy: str) -> Finding:
    return Finding(check, subject, Verdict.FAILED, found, remedy)


def unknown(check: str, subject: str, found: str, remedy: str) -> Finding:
    return Finding(check, subject, Verdict.UNKNOWN, found, remedy)


def storage(subject: str, *, absent: bool, check: str = "storage") -> Finding:
    """What a read and a deletion of nothing in a table, queue or container told."""
    there = "not there yet, it is made by its first use" if absent else "there"
    return ok(check, subject, f"{there}; reading and writing are allowed")


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """In the order in which somebody should read them; those of one verdict stay as they are."""
    order = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.WARNING, Verdict.OK)
    return sorted(findings, key=lambda finding: order.index(finding.verdict))


class Trouble(Enum):
    """Why a call has no answer, by who must act."""

    REFUSED = auto()  # a role is missing
    NO_IDENTITY = auto()  # no token could be had
    ABSENT = auto()  # there is nothing of that name
    SETTINGS = auto()  # a setting is missing or malformed
    BUSY = auto()  # the service throttles or does not serve for now
    SILENT = auto()  # no answer in time
    UNREACHABLE = auto()  # no connection
    DISABLED = auto()  # there, but switched off
    OTHER = auto()


class Needs(Struct, frozen=True):
    """What a call takes: the `role` and on what (`place`), as a person finds them in the portal."""

    role: str
    place: str


class TriedError(Exception):
    """A call without an answer whose maker knows why; the text is the story."""

    def __init__(self, trouble: Trouble, story: str) -> None:
        super().__init__(story)
        self.trouble = trouble


Call = Callable[[], Coroutine[Any, Any, Sequence[Finding]]]


class Check(Struct, frozen=True):
    """One thing to try. What `call` raises is told with what the call `needs`."""

    name: str
    subject: str
    needs: Needs
    call: Call
