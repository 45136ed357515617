"""Many operations in one request: transactional batch and non-atomic bulk.

Both take the same JSON array and give one result per operation, in order. A batch belongs to
one logical partition and happens entirely or not at all; bulk belongs to one physical
partition, and each of its operations stands for itself.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw, Struct

from devstack.cosmos.partitions.keys import check_id
from devstack.cosmos.partitions.ranges import Range
from devstack.cosmos.protocol.errors import CosmosError, bad_request
from devstack.cosmos.store.container import ANY, Condition, Container, Outcome, Partition

MAX_OPERATIONS = 100
MAX_REQUEST = 2 * 1024 * 1024  # bytes
_NOTHING = Raw(b"")


class Operation(Struct, rename="camel", gc=False):
    operation_type: str
    partition_key: str | None = None
    id: str | None = None
    resource_body: Raw = _NOTHING
    if_match: str | None = None
    if_none_match: str | None = None


class Result(Struct, rename="camel", omit_defaults=True, gc=False):
    status_code: int
    request_charge: float
    sub_status_code: int = 0
    e_tag: str | None = None
    resource_body: Raw | None = None
    retry_after_milliseconds: int | None = None
    message: str | None = None


Sabotage = Callable[[Operation], CosmosError | None]
"""A fault for one operation of a bulk request; None lets it pass."""

_operations = msgspec.json.Decoder(list[Operation])


def parse_operations(body: bytes) -> list[Operation]:
    """Raises CosmosError: 400 for what cannot be read or is too many, 413 for too large a request."""
    if len(body) > MAX_REQUEST:
        raise CosmosError(413, f"Request size is too large: {len(body)} bytes, accepted: {MAX_REQUEST}")
    try:
        operations = _operations.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(f"The operations are not valid: {error}") from None
    if not 1 <= len(operations) <= MAX_OPERATIONS:
        raise bad_request(f"The request has {len(operations)} operations, accepted: 1 to {MAX_OPERATIONS}")
    return operations


def run_bulk(
    container: Container,
    holder: Range,
    operations: Sequence[Operation],
    now: float,
    *,
    minimal: bool,
    sabotage: Sabotage | None = None,
) -> list[Result]:
    """Each operation for itself. Raises CosmosError (400) for a key that cannot be one: no operation is done then."""
    partitions = [container.partition(operation.partition_key) for operation in operations]
    results: list[Result] = []
    for operation, partition in zip(operations, partitions, strict=True):
        try:
            fault = sabotage(operation) if sabotage is not None else None
            if fault is not None:
                raise fault
            current = partition if partition.documents else container.partition_of(partition.key)
            if current.range is not holder:
                raise bad_request(
                    f"Partition key {operation.partition_key} belongs to range {current.range.id}, not {holder.id}",
                    substatus=1001,
                )
            container.admit(holder, now)
            results.append(_result(container, _apply(container, current, operation, now), minimal=minimal))
        except CosmosError as error:
            results.append(_refusal(error))
    return results


def run_batch(
    container: Container, partition: Partition, operations: Sequence[Operation], now: float, *, minimal: bool
) -> list[Result]:
    """All or none: if one operation fails, all others are answered with 424.

    Raises CosmosError (429) for the whole batch if the range has nothing left.
    """
    container.admit(partition.range, now)
    before = dict(partition.documents)
    results: list[Result] = []
    for index, operation in enumerate(operations):
        try:
            outcome = _apply(container, partition, operation, now)
            results.append(_result(container, outcome, minimal=minimal))
        except CosmosError as error:
            container.restore(partition, before)
            failed = [Result(424, 0.0) for _ in operations]
            failed[index] = _refusal(error)
            return failed
    return results


def _apply(container: Container, partition: Partition, operation: Operation, now: float) -> Outcome:
    verb, name = operation.operation_type, operation.id
    if operation.if_match is None and operation.if_none_match is None:
        condition = ANY
    else:
        condition = Condition(operation.if_match, operation.if_none_match)
    if verb in ("Upsert", "Create"):
        return container.write(verb, partition, None, operation.resource_body, condition, now)
    name = check_id(name)
    if verb == "Replace":
        return container.write(verb, partition, name, operation.resource_body, condition, now)
    if verb == "Read":
        return container.read(partition, name, condition)
    if verb == "Delete":
        return container.delete(partition, name, condition)
    if verb == "Patch":
        return container.patch(partition, name, operation.resource_body, condition, now)
    raise bad_request(f"operationType is {verb!r}, accepted: Create, Upsert, Read, Replace, Delete, Patch")


def _result(container: Container, outcome: Outcome, *, minimal: bool) -> Result:
    document = outcome.document
    if document is None:
        return Result(outcome.status, outcome.charge)
    body = None if minimal else Raw(container.full(document))
    return Result(outcome.status, outcome.charge, e_tag=document.etag, resource_body=body)


def _refusal(error: CosmosError) -> Result:
    return Result(
        error.status,
        error.charge,
        sub_status_code=error.substatus,
        retry_after_milliseconds=error.retry_after_ms,
        message=error.message,
    )
