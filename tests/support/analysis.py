"""What tests of advice, backtests and costs share: a configuration, and files of an input."""

import gzip

import pyarrow as pa
from pyarrow import parquet

MONDAY = 1_799_625_600.0

CONFIG = """
version = 1

[targets.plan]
scaler = "app_service_plan"
resource_id = "%PLAN_ID%"
minimum = 2
maximum = 12
dry_run = true

[targets.plan.metrics.backlog]
collector = "service_bus_queue"
connection = "Bus"
queue = "orders"
window = "5m"

[[targets.plan.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = 100
"""


def write_files(folder, files):
    """Text by path, in the format of its ending."""
    for name, text in files.items():
        path, rows = folder / name, [line.split(",") for line in text.splitlines()]
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            parquet.write_table(
                pa.Table.from_pylist([dict(zip(rows[0], row, strict=True)) for row in rows[1:]]), path
            )
        else:
            path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder
