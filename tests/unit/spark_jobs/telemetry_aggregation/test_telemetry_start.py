"""What the start of the aggregation costs: nothing is loaded that it does not need."""

import subprocess
import sys


def test_nothing_that_starts_an_aggregation_loads_pandas():
    """It takes longer to load than all else together; tasks and the command leave it out before they make a table."""
    modules = "spark_jobs.telemetry_aggregation.local, spark_jobs.telemetry_aggregation.sample_files, tidemark.__main__"
    code = f"import sys, {modules}; print('pandas' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout.strip() == "False"
