"""The process that Spark's Python workers are forked from, in local mode.

Spark puts its own archive of pyspark in front of the package that is installed. Python keeps nothing compiled of what is in
archives: a second of processor time in every session, for the same source.
"""

import gc
import os
import sys
from importlib import import_module

sys.path.sort(key=lambda path: path.endswith("pyspark.zip"))  # to the end; the others stay as they are

from pyspark.daemon import manager


def serve(*modules: str) -> None:
    """Serves until Spark has no more need of workers; they have these modules, loaded once."""
    for name in ("pyspark.worker", *modules):
        import_module(name)
    gc.freeze()  # what is collected is written to: else every worker would have a copy of it all
    try:
        manager()
    except SystemExit as end:
        # Its workers are told to end. To take pandas down would take longer than Java's own end.
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    serve("pyarrow.parquet", "pandas")  # which pyarrow loads for the first array
