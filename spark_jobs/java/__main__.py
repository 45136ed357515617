"""`python -m spark_jobs.java` finds or installs a Java."""

import sys

from spark_jobs.errors import JobError
from spark_jobs.java.home import ensure_java


def main() -> None:
    """Says in one line what Spark will run on, or why it cannot."""
    try:
        print(f"Java: {ensure_java()}")  # noqa: T201 - this is what the command is for
    except JobError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
