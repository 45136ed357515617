"""`python -m spark_jobs <job> ...`; and what spark-submit is given, as `dist/tidemark_spark.py` (make dist). It is not started
from this folder: a `platform` beside a script hides Python's own.
"""

from spark_jobs.cli import main

if __name__ == "__main__":
    main()
