"""Columns of numbers and texts between numpy and Arrow, without pandas. Pure.

`pyarrow.array`, `pyarrow.scalar` and `Array.to_numpy` import pandas to see whether they were given any of its values, which
takes half a second of the processor: as long as to aggregate a million samples. Buffers need none of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray


def array_of(numbers: NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """The numbers as Arrow has them, of the type `kind` (the same width). NaN is null."""
    if numbers.dtype == bool:
        packed = pa.py_buffer(np.packbits(numbers, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(numbers), [None, packed])
    known = None
    if numbers.dtype == np.float64 and (missing := np.isnan(numbers)).any():
        known = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(kind or pa.from_numpy_dtype(numbers.dtype), len(numbers), [known, data])


def texts_of(texts: Sequence[str]) -> pa.Array:
    """The texts as Arrow has them."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    )


def numbers_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """The numbers or flags of a column, copied only where it has several chunks. A null in doubles is NaN; other nulls mean
    nothing.
    """
    parts = [_numbers(chunk) for chunk in column.chunks if len(chunk)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0)])


def _numbers(array: pa.Array) -> NDArray[Any]:
    begin, end = array.offset, array.offset + len(array)
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")
        return bits[begin:end].astype(bool)
    kind = "f" if pa.types.is_floating(array.type) else "i"
    numbers: NDArray[Any] = np.frombuffer(array.buffers()[1], f"{kind}{array.type.bit_width // 8}")[begin:end]
    if array.null_count and kind == "f":
        return np.where(numbers_of(pa.chunked_array([array.is_valid()])), numbers, np.nan)
    return numbers
