"""As spark_jobs.worker_daemon, for a session whose tasks know nothing of pandas."""

from spark_jobs.worker_daemon import serve

if __name__ == "__main__":
    from spark_jobs.telemetry_aggregation.stretches.process import without_pandas

    without_pandas()
    serve("spark_jobs.telemetry_aggregation.stretches.task", "pyarrow.compute")  # which a first table loads
