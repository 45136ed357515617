"""Spark's daemon of Python workers, from the installed package: `spark.python.daemon.module` in local mode.

Spark puts its pyspark.zip first on the path of its workers. Modules in there are compiled anew in every process: 1.5 s of
processor time for each kind of worker (and a job has five), 0.3 s for the same modules where pip put them.
"""

import runpy
import sys

_ZIPS = ("pyspark.zip", "-src.zip")  # the second is py4j's


def main() -> None:
    """Becomes the daemon; its arguments are what Spark gave this module."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(_ZIPS)]
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
