"""What spark-submit is given: `spark-submit --py-files tidemark.whl entry_point.py <job> ...`."""

from spark_jobs.cli import main

if __name__ == "__main__":
    main()
