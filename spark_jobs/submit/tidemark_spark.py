"""What spark-submit is given, where the wheel is installed: `spark-submit tidemark_spark.py <job> ...`."""

from spark_jobs.cli import main

if __name__ == "__main__":
    main()
