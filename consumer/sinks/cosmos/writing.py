"""Writes the records of a batch, round by round: each round sends one operation per record, until each record has a result."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from consumer.model import Operation, Outcome, Record, WriteResult
from consumer.sinks.cosmos.answers import (
    Answer,
    doubted,
    may_be_of_container,
    refused,
    result_of,
    result_of_request,
    unclear_refusal,
)
from consumer.sinks.cosmos.requests import Sent, parts
from consumer.sinks.cosmos.steps import UPSERT, Known, Rules, Step, first_step, next_step, stamp_of, unknown
from consumer.sinks.evidence import Evidence
from tidemark.foundation.wording import count_text

LOG_EVERY = 10.0
"""Seconds between two log lines about answers that cannot be understood."""

MOST_KNOWN = 100_000
"""Documents whose ETag is remembered, about 35 MB with ids of 40 characters. Chosen: four windows of CONSUMER_HIGH_EVENTS."""

_READ_FIRST_ABOVE = 0.5
"""Share of unknown documents that exist, above which they are read first: reading, then replacing is one operation less for an
update, creating at once one less for a new document."""
_NEWEST = 0.02  # the weight of the latest document in that share, so of about the last 50

_log = logging.getLogger(__name__)

Send = Callable[[Sequence[Sent]], Awaitable[Answer]]


class RecordWriter:
    """What the sink has learnt about documents and errors, and the rounds of its writes. `name` is for the log."""

    def __init__(self, name: object) -> None:
        self.rules = Rules()
        self._name = name
        self._evidence = Evidence()
        self._known: dict[str, Known] = {}
        self._share_there = 0.0
        self._log_at = -math.inf

    async def write(
        self,
        records: Sequence[Record],
        indices: Sequence[int],
        send: Send,
        results: list[WriteResult],
        *,
        atomic: bool,
    ) -> None:
        """Stores the result of each record at its index as soon as it is known.

        `atomic`: a request that `send` sends takes place as a whole or not at all.
        """
        steps = {index: self._first(records[index]) for index in indices}
        if all(step is UPSERT for step in steps.values()):  # the hot path
            for part in list(parts(records, indices)):
                await self._settle(records, part, steps, send, results)
        while steps:
            for part in _requests(records, steps, atomic=atomic):
                await self._settle(records, part, steps, send, results)

    def _first(self, record: Record) -> Step:
        if record.change is None:
            return first_step(record, None)
        mostly_there = self._share_there > _READ_FIRST_ABOVE
        return first_step(record, self._known.get(record.key), mostly_there=mostly_there)

    async def _settle(
        self,
        records: Sequence[Record],
        part: Sequence[int],
        steps: dict[int, Step],
        send: Send,
        results: list[WriteResult],
    ) -> None:
        """Sends the operations at `part`, and stores the result or the next step of each.

        A request that is refused as a whole for its content is halved until only the records at fault are refused.
        """
        trial = self._evidence.begin()
        for index in part:  # for the case that the deadline passes before the answer
            results[index] = unknown(records[index], results[index])
        answer = await send([(records[index], steps[index]) for index in part])
        operations = answer.operations
        if operations is not None and len(operations) == len(part):
            self._take_answers(records, part, steps, operations, results, trial)
            return
        place = _place(records[part[0]])
        if len(part) > 1 and (
            answer.divisible
            or (answer.unclear and self._evidence.failed(("request", *place), answer.unclear))
        ):
            middle = len(part) // 2
            await self._settle(records, part[:middle], steps, send, results)
            await self._settle(records, part[middle:], steps, send, results)
            return
        result = result_of_request(answer)
        if len(part) == 1:
            if answer.unclear and self._evidence.failed(place, answer.unclear):
                result = refused(result, answer.message)
            elif self._is_doubtful(place, result, 1):
                result = doubted(result)
        if answer.unreadable:
            self._log_unreadable(answer.unreadable)
        elif operations is not None:
            self._log_unreadable(
                f"the answer has {count_text(len(operations), 'result')} for {count_text(len(part), 'operation')}"
            )
        for index in part:
            step = steps.pop(index)
            results[index] = unknown(records[index], structs.replace(result, request_units=step.charge))

    def _take_answers(
        self,
        records: Sequence[Record],
        part: Sequence[int],
        steps: dict[int, Step],
        operations: Sequence[Mapping[str, Any]],
        results: list[WriteResult],
        trial: int,
    ) -> None:
        if self._take_upserts(part, steps, operations, results):
            self._evidence.all_passed(trial, (_place(records[index]) for index in part))
        else:
            done = self._take(records, part, steps, operations, results)
            self._judge(records, done, trial, operations, results)

    def _take_upserts(
        self,
        part: Sequence[int],
        steps: dict[int, Step],
        operations: Sequence[Mapping[str, Any]],
        results: list[WriteResult],
    ) -> bool:
        """Stores the results of plain upserts that all took place, as `_take` and `_judge` do; False if there is anything else."""
        written: list[WriteResult] = []
        for index, operation in zip(part, operations, strict=True):
            status = operation.get("statusCode")
            if steps[index] is not UPSERT or status not in _UPSERTED:
                return False
            written.append(
                WriteResult(Outcome.WRITTEN, status, "", None, operation.get("requestCharge", 0.0))
            )
        for index, result in zip(part, written, strict=True):
            results[index] = result
            del steps[index]
        return True

    def _take(
        self,
        records: Sequence[Record],
        part: Sequence[int],
        steps: dict[int, Step],
        operations: Sequence[Mapping[str, Any]],
        results: list[WriteResult],
    ) -> dict[int, int]:
        """Stores results and next steps; returns where in the answer those are that have a result now, by index."""
        done = {}
        conditional = any(operation.get("statusCode") in _TOLD_BY_CONDITION for operation in operations)
        for position, (index, operation) in enumerate(zip(part, operations, strict=True)):
            record, step = records[index], steps[index]
            result = result_of(operation)
            if record.change is not None and record.change.stamp is not None:
                self._learn(record, step, result, operation)
            following: Step | WriteResult = result
            is_victim = result.status == _FAILED_DEPENDENCY and conditional
            if (is_victim or (result.status == _TOO_LARGE and step.verb == "Read")) and len(part) > 1:
                following = structs.replace(step, alone=True)
            elif result.outcome is not Outcome.WRITTEN or step.verb == "Read":
                following = next_step(record, step, operation, self.rules)
            elif step.charge:
                following = structs.replace(result, request_units=result.request_units + step.charge)
            if isinstance(following, Step):
                steps[index] = following
            else:
                results[index] = unknown(record, following)
                del steps[index]
                done[index] = position
        return done

    def _learn(self, record: Record, step: Step, result: WriteResult, operation: Mapping[str, Any]) -> None:
        """Remembers the document that was written, and how often unknown documents exist."""
        key, etag = record.key, operation.get("eTag")
        self._known.pop(key, None)
        if result.outcome is Outcome.WRITTEN and step.verb in {"Create", "Replace"} and isinstance(etag, str):
            self._known[key] = Known(etag, stamp_of(record), record.operation is Operation.DELETE)
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        if step.count == 1 and step.verb in {"Create", "Read"} and result.status in _TOLD:
            is_there = _TOLD[result.status]
            self._share_there += _NEWEST * (is_there - self._share_there)

    def _judge(
        self,
        records: Sequence[Record],
        done: Mapping[int, int],
        trial: int,
        operations: Sequence[Mapping[str, Any]],
        results: list[WriteResult],
    ) -> None:
        """Decides whether unlisted refusals are the fault of the records themselves."""
        some_passed = any(results[index].outcome is Outcome.WRITTEN for index in done)
        if some_passed:
            self._evidence.passed(trial)
        alike = sum(may_be_of_container(results[index]) for index in done)
        for index, position in done.items():
            operation = operations[position]
            place, result = _place(records[index]), results[index]
            if not some_passed and self._is_doubtful(place, result, alike):
                results[index] = doubted(result)
                continue
            if result.outcome is not Outcome.RETRY:
                self._evidence.settled(place)
            elif code := unclear_refusal(result.status, operation.get("subStatusCode", 0)):
                if self._evidence.failed(place, code):
                    results[index] = refused(result, operation.get("message", "") or code)
            elif not result.status:
                self._log_unreadable(f"an operation's answer has no status, but {sorted(operation)[:10]}")

    def _is_doubtful(self, place: tuple[str, int, int], result: WriteResult, alike: int) -> bool:
        return may_be_of_container(result) and self._evidence.is_doubtful(place, str(result.status), alike)

    def _log_unreadable(self, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY
            _log.warning("%r: %s; what was sent is tried again", self._name, why)


_TOLD: Mapping[int, float] = {200: 1.0, 409: 1.0, 201: 0.0, 404: 0.0}
"""Whether a document exists, by the status of the first attempt to create or read it."""

_UPSERTED = frozenset({200, 201})
_FAILED_DEPENDENCY, _TOO_LARGE = 424, 413
_TOLD_BY_CONDITION = frozenset({404, 409, 412})
"""Statuses of an operation that are about its document: the others of its atomic batch are sent again alone, at once. After any
other failure (throttled, away) they wait with it.
"""


def _requests(
    records: Sequence[Record], steps: Mapping[int, Step], *, atomic: bool
) -> Iterable[Sequence[int]]:
    """Which operations share a request. Reads are apart, because only their answers have a body; in an atomic request they are
    alone, because one document that does not exist would fail the others.
    """
    reads = [index for index, step in steps.items() if step.verb == "Read"]
    together = [index for index in reads if not (atomic or steps[index].alone)]
    writes = [index for index, step in steps.items() if step.verb != "Read" and not step.alone]
    alone = [index for index, step in steps.items() if step.alone or (atomic and step.verb == "Read")]
    return [*parts(records, writes), *parts(records, together), *([index] for index in alone)]


def _place(record: Record) -> tuple[str, int, int]:
    return record.event.partition, *record.number
