"""What a process is told that makes rows of samples."""

from __future__ import annotations

import sys

import numpy as np


def keep_memory() -> None:
    """Glibc gives freed memory back and asks for it again, zeroed, unless it has seen a large piece freed: a fifth of the time."""
    np.empty(31 << 20, np.uint8)


class _NoPandas:
    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("left out", name=name)


def without_pandas() -> None:
    """Pyarrow imports pandas to see whether it was given any of its values: half a second, for nothing."""
    sys.meta_path.insert(0, _NoPandas)
