"""The data pipeline on Spark: telemetry, sampling, reconciliation, backtests and backfill."""
