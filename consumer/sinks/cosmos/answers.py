"""Maps an answer of Cosmos DB to the result for a record. Pure.

Only a success status means WRITTEN, and only a refusal of this very record means REJECT. Everything else is retried: no
record is given up because of the service. For a refusal that is not listed here consumer.sinks.evidence decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from consumer.core.charging import CAPPED
from consumer.model import Outcome, WriteResult


class Meaning(Struct, frozen=True):
    """`reason` is one word for counting. A `retry_after` of 0 means at once; None means that the retry rule decides."""

    outcome: Outcome
    reason: str
    rerouted: bool = False
    retry_after: float | None = None


RETRY, REJECT, WRITTEN = Outcome.RETRY, Outcome.REJECT, Outcome.WRITTEN

_SPLIT = Meaning(RETRY, "range_moved", rerouted=True)
_RECREATED = Meaning(RETRY, "container_recreated", rerouted=True)

# By status and sub-status; None stands for every other sub-status.
MEANINGS: Mapping[tuple[int, int | None], Meaning] = {
    (400, 0): Meaning(REJECT, "bad_request"),
    (400, 1001): Meaning(REJECT, "bad_request"),  # the partition key is another one than the document's
    (400, 1024): _RECREATED,  # the container is another one than at open()
    (401, None): Meaning(RETRY, "unauthorized"),  # a key rotated; the record is not to blame
    (403, None): Meaning(RETRY, "forbidden"),  # firewall, role, write region moved (3)
    (403, 1014): Meaning(REJECT, "partition_full"),  # 20 GB under one partition key: waiting cannot help
    (404, None): Meaning(
        RETRY, "not_found"
    ),  # an upsert that met an item on its way out (time to live); else steps
    (404, 1003): Meaning(RETRY, "container_missing", rerouted=True),
    (408, None): Meaning(RETRY, "timeout"),
    (409, 0): Meaning(REJECT, "conflict"),  # of an upsert: a unique key policy
    (410, None): _SPLIT,  # 1002 range gone, 1007 completing split, 1008 completing migration
    (410, 1000): _RECREATED,  # the name now means another container
    (412, None): Meaning(REJECT, "precondition"),  # where none was asked for; see consumer.sinks.cosmos.steps
    (413, 0): Meaning(REJECT, "too_large"),
    (413, 3402): Meaning(RETRY, "response_too_large", retry_after=0.0),
    (424, None): Meaning(RETRY, "failed_dependency", retry_after=0.0),  # of an atomic batch that sank
    (429, None): Meaning(RETRY, "throttled"),
    (429, 3212): Meaning(RETRY, CAPPED),  # the limit of its throughput bucket
    (449, None): Meaning(RETRY, "concurrent_write"),
}
_SERVER_ERROR = Meaning(RETRY, "server_error")
_UNEXPECTED = Meaning(RETRY, "unexpected")
_BAD_REQUEST = 400
_CLIENT_ERRORS = range(400, 500)
"""Only these say that something is wrong with what was sent."""
_OF_THE_ACCOUNT = {0, 3, 1008}
"""Sub-statuses of 403: a firewall or a role, a region that is not written to, an account that is not there."""

NO_ANSWER = WriteResult(Outcome.RETRY, reason="no_answer")
"""The connection was lost, or the deadline passed: it is unknown whether the service wrote anything."""


class Answer(Struct, frozen=True):
    """The answer to one request: one answer per operation, or one status for all of them.

    `status` 0 means that there was no answer, or none that can be understood. `retry_after` is in seconds.
    """

    operations: Sequence[Mapping[str, Any]] | None = None
    status: int = 0
    sub_status: int = 0
    message: str = ""
    retry_after: float | None = None
    by_sdk: bool = False
    """Whether the SDK's own code failed."""
    unsent: bool = False
    """Whether nothing was sent, because the SDK failed on the documents."""

    @property
    def divisible(self) -> bool:
        """Whether a smaller request may succeed: one bad operation can fail all (400), and a request can be too large (413)."""
        if self.status not in {400, 413}:
            return False
        return meaning(self.status, self.sub_status).outcome is REJECT or self.unclear != ""

    @property
    def unclear(self) -> str:
        """`unclear_refusal` of the whole request."""
        if self.by_sdk and self.unsent:
            return f"unsent: {self.message.partition('(')[0]}"
        return unclear_refusal(self.status, self.sub_status)

    @property
    def unreadable(self) -> str:
        """Why the answer cannot be understood; '' if it can."""
        return self.message if self.by_sdk and not self.unsent else ""


def meaning(status: int, sub_status: int) -> Meaning:
    known = MEANINGS.get((status, sub_status)) or MEANINGS.get((status, None))
    if known is not None:
        return known
    return _SERVER_ERROR if status >= 500 else _UNEXPECTED


def unclear_refusal(status: int, sub_status: int) -> str:
    """A code for a refusal that may be the record's fault or not; '' for any other status."""
    if status not in _CLIENT_ERRORS or (status, sub_status) in MEANINGS:
        return ""
    is_listed = (status, None) in MEANINGS and not (status == 403 and sub_status not in _OF_THE_ACCOUNT)
    return "" if is_listed else f"{status}/{sub_status}"


def refused(result: WriteResult, message: str) -> WriteResult:
    """The rejection of a record that evidence found at fault."""
    reason = f"refused: {message or result.reason} (again, while other records were accepted)"
    return structs.replace(result, outcome=REJECT, reason=reason)


def may_be_of_container(result: WriteResult) -> bool:
    """Whether a rejection may be caused by the container instead: then every record is refused alike."""
    return result.outcome is REJECT and result.status == _BAD_REQUEST


def doubted(result: WriteResult) -> WriteResult:
    """The rejection as a retry, until another record is accepted."""
    reason = f"{result.reason} (nothing else was accepted: the container may be at fault)"
    return structs.replace(result, outcome=RETRY, reason=reason)


def result_of(operation: Mapping[str, Any]) -> WriteResult:
    """The result of one operation's answer in a batch."""
    status = operation.get("statusCode", 0)
    charge = operation.get("requestCharge", 0.0)
    if 200 <= status < 300:
        return WriteResult(WRITTEN, status, "", None, charge)
    milliseconds = operation.get("retryAfterMilliseconds")
    retry_after = milliseconds / 1000 if isinstance(milliseconds, int | float) else None
    sub_status = operation.get("subStatusCode", 0)
    return _result(status, sub_status, operation.get("message", ""), retry_after, charge)


def after_conflict(conflict: WriteResult, reading: Mapping[str, Any]) -> WriteResult:
    """The result of a create that met a conflict, by the answer to reading the document.

    If the document is there, most likely from an earlier delivery, it counts as written. If not, another document has
    the value that must be unique.
    """
    read = result_of(reading)
    charge = conflict.request_units + read.request_units
    if read.outcome is WRITTEN:
        return WriteResult(WRITTEN, conflict.status, "exists", None, charge)
    if read.status == 404 and not reading.get("subStatusCode"):
        return WriteResult(REJECT, conflict.status, f"unique_key: {conflict.reason}", None, charge)
    return structs.replace(read, outcome=RETRY, reason=f"conflict, not explained: {read.reason}")


def result_of_request(answer: Answer) -> WriteResult:
    """The result of every operation of a request with one answer for all of them."""
    if not answer.status:
        return WriteResult(RETRY, reason=answer.message or NO_ANSWER.reason)
    return _result(answer.status, answer.sub_status, answer.message, answer.retry_after, 0.0)


def _result(
    status: int, sub_status: int, message: str, retry_after: float | None, charge: float
) -> WriteResult:
    meant = meaning(status, sub_status)
    reason = meant.reason
    if meant.outcome is REJECT and message:
        reason = f"{reason}: {message}"
    wait = retry_after if retry_after is not None else meant.retry_after
    return WriteResult(meant.outcome, status, reason, wait, charge, rerouted=meant.rerouted)
