"""What the start of the aggregation costs: nothing is loaded that it does not need."""

import subprocess
import sys

from tests.unit.spark_jobs.telemetry_aggregation.test_telemetry_local import write


def test_no_aggregation_loads_pandas(tmp_path):
    """It takes longer to load than a million samples to aggregate. Dictionaries, times of seconds and missing names are among
    what is read.
    """
    write(tmp_path / "in" / "a.parquet", range(0, 600, 30))
    write(tmp_path / "in" / "b.parquet", [7], float("nan"))
    code = (
        "import sys; from pathlib import Path; from datetime import UTC, datetime; import tidemark.__main__;"
        "from spark_jobs.telemetry_aggregation import local; local.run(Path(sys.argv[1]), Path(sys.argv[2]),"
        " latest=datetime.now(UTC)); print('pandas' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "in"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert told.stdout.strip() == "False"
