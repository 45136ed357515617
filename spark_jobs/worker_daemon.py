"""The process that Spark's Python workers are forked from, in local mode.

Spark puts its own archive of pyspark in front of the package that is installed. Python keeps nothing compiled of what is in
archives: a second of processor time in every session, for the same source.
"""

import os
import sys
from importlib import import_module

sys.path.sort(key=lambda path: path.endswith("pyspark.zip"))  # to the end; the others stay as they are

from pyspark.daemon import manager

if __name__ == "__main__":
    for name in (
        "pyarrow.parquet",
        "pandas",
    ):  # pyarrow loads it for the first array: here once, else in every worker
        import_module(name)
    try:
        manager()
    except SystemExit as end:
        # Its workers are told to end. To take pandas down would take longer than Java's own end.
        os._exit(end.code if isinstance(end.code, int) else 1)
