"""Samples in memory: columns of numbers, the series as numbers, too. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise, product
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark_jobs.telemetry_aggregation.kernel.buckets import Doubles, Longs
from spark_jobs.telemetry_aggregation.kernel.columns import array_of, numbers_of, texts_of
from tidemark.analysis.arrow_columns import arrow_columns

MICROS = 1_000_000
MINUTE = 60 * MICROS
HOUR = 60 * MINUTE
WINDOWS: dict[str, int] = {"1m": MINUTE, "1h": HOUR, "1d": 24 * HOUR}
"""Name to microseconds. Each is a multiple of a minute and begins at a multiple of itself since the epoch, in UTC."""

SERIES = ("subject", "part", "metric")

SAMPLES = arrow_columns("subject text, part text, metric text, at long, value double")
"""`at` in microseconds since the epoch."""

_LOOKED_UP = 16  # rows per combination of names from which all combinations are numbered, whether met or not


class Series:
    """The series that were met, numbered from 0. `lock` is held when one gets its number, for threads that share it."""

    def __init__(self, lock: AbstractContextManager[Any] | None = None) -> None:
        self._lock = lock or nullcontext()
        self._numbers: dict[tuple[str, ...], int] = {}

    def numbers(self, table: pa.Table) -> NDArray[np.int32]:
        """The series of each row of a table with the columns of SERIES, none of them null; new ones get a number."""
        columns = [_encoded(table.column(name)) for name in SERIES]
        sizes = [len(column.dictionary) for column in columns]
        combinations = np.prod(sizes, dtype=float)
        kind: Any = np.int32 if combinations < np.iinfo(np.int32).max else np.int64
        codes = np.zeros(len(table), kind)
        for column, size in zip(columns, sizes, strict=True):
            if size > 1:
                codes *= size
                codes += numbers_of(pa.chunked_array([column.indices]))
        names = [column.dictionary.to_pylist() for column in columns]
        if combinations * _LOOKED_UP <= len(table):
            return self._numbered(product(*names))[codes]
        met, places = np.unique(codes, return_inverse=True)
        picked = (
            [texts[code] for code in codes_met.tolist()]
            for texts, codes_met in zip(names, np.unravel_index(met, sizes), strict=True)
        )
        return self._numbered(zip(*picked, strict=True))[places]

    def _numbered(self, texts: Iterable[tuple[str, ...]]) -> NDArray[np.int32]:
        known = self._numbers
        with self._lock:
            return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)

    def columns(self, numbers: NDArray[np.int32]) -> list[pa.DictionaryArray]:
        """The columns of SERIES for these numbers."""
        with self._lock:
            met = list(self._numbers)
        texts = zip(*met, strict=True) if met else [()] * len(SERIES)
        arrays = []
        for text in texts:
            encoded = texts_of(text).dictionary_encode()
            indices = encoded.indices.take(array_of(numbers))
            arrays.append(pa.DictionaryArray.from_arrays(indices, encoded.dictionary))
        return arrays


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if column.num_chunks == 1:  # then nothing is copied
        return column.chunk(0)
    return column.unify_dictionaries().combine_chunks()


class Samples(NamedTuple):
    """Valid samples. `series` are numbers of a Series, `at` is in microseconds since the epoch."""

    series: NDArray[Any]
    at: Longs
    value: Doubles

    @classmethod
    def of(cls, table: pa.Table, series: Series) -> tuple[Self, int]:
        """The valid ones of SAMPLES (names may be dictionaries), and how many are not: without a name, a time or a finite
        number.
        """
        valid = _valid(table)
        if valid is not None:
            table = table.filter(array_of(valid))
        invalid = 0 if valid is None else len(valid) - len(table)
        if not len(table):
            return cls(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0)), invalid
        samples = cls(
            series.numbers(table), numbers_of(table.column("at")), numbers_of(table.column("value"))
        )
        return samples, invalid

    def in_order(self) -> bool:
        """Of time."""
        return bool((self.at[1:] >= self.at[:-1]).all())

    def between(self, begin: int, end: int) -> Self:
        """Those of a time (microseconds) from `begin` until before `end`."""
        if self.in_order():
            return self.at_rows(*np.searchsorted(self.at, (begin, end)))
        inside = (self.at >= begin) & (self.at < end)
        return type(self)(self.series[inside], self.at[inside], self.value[inside])

    def at_rows(self, begin: int, end: int) -> Self:
        return type(self)(self.series[begin:end], self.at[begin:end], self.value[begin:end])


def parts(samples: Iterable[Samples]) -> Iterator[Samples]:
    """The samples in consecutive parts of about as many, no minute in two of them; one part if times are mixed."""
    given = list(samples)
    ends = [(block.at[0], block.at[-1]) for block in given if len(block.at)]
    if not all(block.in_order() for block in given) or any(b < a for (_, a), (b, _) in pairwise(ends)):
        yield together(given)
        return
    left: list[Samples] = []
    for block in given:
        if not len(block.at):
            continue
        if left and block.at[0] // MINUTE > left[-1].at[-1] // MINUTE:
            yield together(left)
            left = []
        last = np.searchsorted(block.at, block.at[-1] // MINUTE * MINUTE)
        if last:
            yield together([*left, block.at_rows(0, last)])
            left = []
        left.append(block.at_rows(last, len(block.at)))
    if left:
        yield together(left)


def together(samples: Sequence[Samples]) -> Samples:
    if len(samples) == 1:
        return samples[0]
    columns: Any = (np.concatenate(columns) for columns in zip(*samples, strict=True))
    return Samples(*columns)


def _valid(table: pa.Table) -> NDArray[np.bool_] | None:
    """None if all are."""
    known = np.isfinite(numbers_of(table.column("value")))
    for column in table.columns:
        if column.null_count:
            known &= numbers_of(column.is_valid())
    return None if known.all() else known
