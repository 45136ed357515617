"""What Spark's workers do: files of exports to charges; one target's log and charges to its account. No Spark here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import structs

from tidemark.analysis.arrow_columns import arrow_columns
from tidemark.analysis.cost import tables
from tidemark.analysis.cost.account import Account, Billed, account
from tidemark.analysis.cost.charges import Charge
from tidemark.analysis.cost.files import read_export
from tidemark.analysis.cost.spans import CapacityEntry
from tidemark.analysis.cost.targets import Options, unnamed

CHARGES = """
    resource text, day long, amount double, quantity double, currency text, usage flag, request_units flag, autoscale flag,
    region text
"""
"""As `charges.Charge`."""

SOURCED = f"{CHARGES}, source text"
"""With the first file of its source."""

SEEN = """
    at double, kind text, current long, desired long, outcome text, reached long, reason text, line text, shadow long, used double
"""
"""As `spans.CapacityEntry`; `used` is the metric of that name."""

ROWS = {name: pa.struct(list(arrow_columns(text))) for name, text in tables.ALL.items()}

ACCOUNTS = pa.schema(
    [
        ("target", pa.string()),
        ("account", pa.binary()),
        ("whole", pa.binary()),
        ("entries", pa.int64()),
        ("charges", pa.int64()),
        *((name, pa.list_(row)) for name, row in ROWS.items()),
    ]
)
"""An account without what goes on for days, the whole of it, and the rows of its tables; none of these for a target whose log
has no capacity. `entries` of the log and `charges` are those of the target.
"""

account_of: Callable[[bytes], Account] = msgspec.msgpack.Decoder(Account).decode


def charges_in(
    batches: Iterable[pa.RecordBatch], wanted: frozenset[str], amount: str | None, sources: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: path and content in, SOURCED out. `sources` are those of the paths. Raises InputError for what is no
    export.
    """
    schema = arrow_columns(SOURCED)
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            name, data = path.as_py(), memoryview(content.as_buffer()).cast("B")
            charges = read_export(name, data, wanted, amount)
            rows = [{**structs.asdict(charge), "source": sources[name]} for charge in charges]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def accounts_in(
    batches: Iterable[pa.RecordBatch], billed: Mapping[str, Billed], options: Options, last_day: int | None
) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: rows by target, each a day of its log or of its charges, in; ACCOUNTS out. One target is held at a time;
    one without a capacity in the log has no account.
    """
    days = (row for batch in batches for row in batch.to_pylist())
    for target, days_of_target in groupby(days, key=itemgetter("target")):
        seen: list[CapacityEntry] = []
        charges: list[Charge] = []
        for day in days_of_target:
            seen += [_seen(row, options.used) for row in day["seen"] or ()]
            charges += [Charge(**row) for row in day["charges"] or ()]
        taken = {"target": target, "entries": len(seen), "charges": len(charges)}
        if all(entry.capacity is None for entry in seen):
            yield pa.RecordBatch.from_pylist([taken], schema=ACCOUNTS)
            continue
        joined = account(billed.get(target) or unnamed(target, options), seen, charges, last_day)
        short = structs.replace(joined, days=[], hours=[], changes=[])
        row = {
            **taken,
            "account": _encoded(short),
            "whole": _encoded(joined),
            **tables.rows_of(joined),
        }
        yield pa.RecordBatch.from_pylist([row], schema=ACCOUNTS)


_encoded = msgspec.msgpack.Encoder().encode


def _seen(row: dict[str, Any], used: str | None) -> CapacityEntry:
    value = row.pop("used")
    return CapacityEntry(**row, metrics={} if used is None or value is None else {used: value})
