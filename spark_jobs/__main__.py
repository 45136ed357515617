"""`python -m spark_jobs <job> ...`: the same as `tidemark spark <job> ...`."""

from spark_jobs.cli import main

if __name__ == "__main__":
    main()
