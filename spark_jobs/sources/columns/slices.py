"""Arrow columns of pieces of one buffer. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark_jobs.sources.columns.avro_container import CorruptFileError


def slices(data: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64], kind: Any) -> pa.Array:
    """The pieces as strings or binaries. They are in order and do not overlap: pieces and the gaps between them are one
    array over the buffer as it is, of which Arrow copies every second element.
    """
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + sizes
    offsets[-1] = offsets[-2] if count else 0
    pieces = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def text_slices(data: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """Raises CorruptFileError for what is not UTF-8."""
    return checked_text(slices(data, starts, sizes, pa.string()))


def checked_text(texts: pa.Array) -> pa.Array:
    """Raises CorruptFileError for what is not UTF-8."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFileError(f"a text is not UTF-8: {error}") from error
    return texts
