"""What is sent for a record, operation by operation, until the record has a result. Pure.

An operation without a guard is mostly one step. Under the guard a document is only replaced where its ETag shows that it is
still the one that was compared: with a remembered ETag that is one step, else the document is created, or read, compared
and replaced.

    record, remembered -> first_step -> Step -> (the service's answer) -> next_step -> Step or WriteResult
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, structs

from consumer.mapping.operations import IfMissing
from consumer.model import Operation, Outcome, Record, Rejection, WriteResult
from consumer.sinks.cosmos.answers import after_conflict, result_of
from consumer.versions import (
    DELETED,
    SUPERSEDED,
    IncomparableError,
    Stamp,
    is_patched_after,
    is_patched_by,
    stored_stamp,
)

Verb = Literal["Upsert", "Create", "Replace", "Delete", "Patch", "Read"]

MOST_STEPS = 8
"""Of one record in one write; then it waits as after any concurrent write. Three are enough unless others write the
document at the same time."""

EXISTS, ABSENT = "exists", "absent"
"""Reasons of results, besides SUPERSEDED: what is there already, and what is gone already."""

_NOT_FOUND, _CONFLICT, _PRECONDITION = 404, 409, 412
_CONCURRENT = 449


class Step(Struct, frozen=True, gc=False):
    """One operation on a record's document."""

    verb: Verb
    etag: str = ""
    """The operation takes place only if the document still has this ETag."""
    created: bool = False
    """Whether what is written is the document that a patch creates."""
    tombstone: Stamp | None = None
    """The stamp of the tombstone in whose place that document is written: it keeps what is older away from it."""
    conflict: WriteResult | None = None
    """Of a read: the answer to the create that it explains."""
    charge: float = 0.0
    """Request units of the steps before."""
    count: int = 1
    alone: bool = False
    """Whether it must not share a transactional batch, because another operation of it failed before."""


class Known(Struct, frozen=True, gc=False):
    """A document as it was last written or read."""

    etag: str
    stamp: Stamp | None
    is_tombstone: bool = False


class Rules(Struct, frozen=True):
    """What the sink knows about its container and its options."""

    unique_keys: bool = False
    """Whether something besides the id must be unique."""
    if_missing: IfMissing | None = None
    """What becomes of a patch or replacement of a document that does not exist; None: patches create it, replacements are
    rejected."""
    version_field: tuple[str, ...] | None = None
    tombstones: bool = True

    def when_missing(self, record: Record) -> IfMissing:
        if self.if_missing is not None:
            return self.if_missing
        return "create" if kind_of(record) is Operation.PATCH else "reject"


UPSERT = Step("Upsert")
"""The only step of a record that asks for nothing else."""

_FIRST: Mapping[Operation, Step] = {
    Operation.UPSERT: UPSERT,
    Operation.CREATE: Step("Create"),
    Operation.REPLACE: Step("Replace"),
    Operation.DELETE: Step("Delete"),
    Operation.PATCH: Step("Patch"),
}
_CREATE, _READ = Step("Create"), Step("Read")


def stamp_of(record: Record) -> Stamp | None:
    return record.change.stamp if record.change is not None else None


def kind_of(record: Record) -> Operation:
    """What is done to the document: a delete that has a payload writes a tombstone."""
    is_tombstone = record.operation is Operation.DELETE and record.payload
    return Operation.UPSERT if is_tombstone else record.operation


def first_step(record: Record, known: Known | None, *, mostly_there: bool = False) -> Step:
    """`mostly_there`: documents that are not known mostly exist, so that reading first saves the attempt to create."""
    stamp, operation = stamp_of(record), kind_of(record)
    if stamp is None or operation in {Operation.PATCH, Operation.CREATE}:
        return _FIRST[operation]
    replaces_nothing = known is not None and known.is_tombstone and operation is Operation.REPLACE
    if known is not None and not replaces_nothing and _is_after(stamp, known.stamp) is True:
        return Step("Delete" if operation is Operation.DELETE else "Replace", known.etag)
    if operation is Operation.UPSERT and known is None and not mostly_there:
        return _CREATE
    return _READ


def next_step(record: Record, step: Step, answer: Mapping[str, Any], rules: Rules) -> Step | WriteResult:
    """What follows an answer that is no success of a plain operation: `answer` is that of the operation."""
    result = result_of(answer)
    status = result.status
    if step.verb == "Read":
        following = _after_read(record, step, answer, result, rules)
    elif status == _CONFLICT and step.verb == "Create":
        following = _after_conflict(record, result, rules)
    elif status == _NOT_FOUND and not answer.get("subStatusCode"):
        following = _after_not_found(record, step, result, rules)
    elif status == _PRECONDITION:
        following = _after_precondition(record, step, rules, result)
    else:
        following = result
    charge = step.charge + result.request_units
    if isinstance(following, WriteResult):
        return structs.replace(following, request_units=charge)
    if step.count >= MOST_STEPS:
        return WriteResult(Outcome.RETRY, _CONCURRENT, "concurrent_write", request_units=charge)
    return structs.replace(following, charge=charge, count=step.count + 1, alone=step.alone)


def _after_conflict(record: Record, result: WriteResult, rules: Rules) -> Step | WriteResult:
    """A create met a document of its id, or one with an equal unique key."""
    if stamp_of(record) is not None or rules.unique_keys:
        return Step("Read", conflict=result)
    return _there(record, result)


def _there(record: Record, result: WriteResult) -> Step | WriteResult:
    """Without a guard: the document exists."""
    return _written(result, EXISTS) if kind_of(record) is Operation.CREATE else _FIRST[kind_of(record)]


def _after_not_found(record: Record, step: Step, result: WriteResult, rules: Rules) -> Step | WriteResult:
    """404 without a sub-status: the document does not exist."""
    if kind_of(record) is Operation.DELETE:
        return _written(result, ABSENT)
    if kind_of(record) is Operation.UPSERT:
        # Under the guard it was there a moment ago. Without it, it is on its way out (time to live).
        return _CREATE if step.verb == "Replace" else result
    return _when_missing(record, result, rules)


def _when_missing(
    record: Record, result: WriteResult, rules: Rules, etag: str = "", stamp: Stamp | None = None
) -> Step | WriteResult:
    """`etag` and `stamp` are those of the tombstone, if one is there."""
    match rules.when_missing(record):
        case "ignore":
            return _written(result, ABSENT)
        case "reject":
            return _rejected(result, "missing", f"there is no document of that id to {kind_of(record)}")
        case _:
            created = kind_of(record) is Operation.PATCH
            return Step("Replace" if etag else "Create", etag, created=created, tombstone=stamp)


def _after_precondition(record: Record, step: Step, rules: Rules, result: WriteResult) -> Step | WriteResult:
    if step.verb == "Patch":
        # The mark in the document is of this event or a later one. Under the guard the document may be a tombstone.
        if stamp_of(record) is not None and rules.tombstones:
            return _READ
        return _written(result, SUPERSEDED)
    return _READ if step.etag else result


def _after_read(
    record: Record, step: Step, answer: Mapping[str, Any], result: WriteResult, rules: Rules
) -> Step | WriteResult:
    if result.outcome is not Outcome.WRITTEN:
        if result.status != _NOT_FOUND or answer.get("subStatusCode"):
            return after_conflict(step.conflict, answer) if step.conflict is not None else result
        if step.conflict is not None and rules.unique_keys:
            return after_conflict(step.conflict, answer)
        missing = kind_of(record) in {Operation.UPSERT, Operation.CREATE}
        return _CREATE if missing else _after_not_found(record, step, result, rules)
    stamp = stamp_of(record)
    if stamp is None:
        return _there(record, step.conflict or result)
    return _compared(record, stamp, answer, result, rules)


def _compared(
    record: Record, stamp: Stamp, answer: Mapping[str, Any], result: WriteResult, rules: Rules
) -> Step | WriteResult:
    """After the document was read."""
    document = answer.get("resourceBody")
    etag = answer.get("eTag") or (document.get("_etag") if isinstance(document, dict) else None)
    if not isinstance(document, dict) or not isinstance(etag, str):
        return structs.replace(result, outcome=Outcome.RETRY, reason="the answer to a read has no document")
    stored = stored_stamp(document, rules.version_field)
    if stored is not None and stored.is_same(stamp):
        return _written(result, EXISTS)
    is_after = _is_after(stamp, stored)
    if isinstance(is_after, str):
        return _rejected(result, "version", is_after)
    if is_patched_by(document, stamp):
        return _written(result, EXISTS)
    # Patches of several sources do not undo each other; anything else undoes them all.
    by_others = kind_of(record) is not Operation.PATCH
    if not is_after or (
        rules.version_field is None and is_patched_after(document, stamp, by_others=by_others)
    ):
        return _written(result, SUPERSEDED)
    is_deleted = document.get(DELETED) is True
    if kind_of(record) is Operation.DELETE:
        return Step("Delete", etag)
    if kind_of(record) is Operation.CREATE and not is_deleted:
        return _written(result, EXISTS)
    if kind_of(record) in {Operation.REPLACE, Operation.PATCH} and is_deleted:
        return _when_missing(record, result, rules, etag, stored)
    return _FIRST[Operation.PATCH] if kind_of(record) is Operation.PATCH else Step("Replace", etag)


def _is_after(new: Stamp, old: Stamp | None) -> bool | str:
    """A text says why nobody can tell."""
    try:
        return new.is_after(old)
    except IncomparableError as error:
        return str(error)


def _written(result: WriteResult, reason: str) -> WriteResult:
    return WriteResult(Outcome.WRITTEN, result.status, reason)


def _rejected(result: WriteResult, reason: str, detail: str) -> WriteResult:
    return WriteResult(
        Outcome.REJECT, result.status, f"{reason}: {detail}", rejection=Rejection(reason, detail)
    )


def unknown(record: Record, result: WriteResult) -> WriteResult:
    """The result where it is unknown whether the service did anything: a retry, unless sending again could do it twice."""
    if result.outcome is not Outcome.RETRY or record.change is None or record.change.is_repeatable:
        return result
    if result.status and result.status != 408 and result.status < 500:
        return result
    detail = (
        f"it is unknown whether the patch took place ({result.reason}); without a mark it is not sent again"
    )
    rejected = _rejected(result, "unknown_outcome", detail)
    return structs.replace(rejected, request_units=result.request_units)
