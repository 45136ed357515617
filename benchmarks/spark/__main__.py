"""All Spark benchmarks, one after the other, each in a process of its own: `python -m benchmarks.spark [name ...]`."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("aggregation", "backtest", "capture")

for name in sys.argv[1:] or BENCHMARKS:
    if Path(__file__).with_name(f"{name}.py").exists():
        print(f"\nbenchmarks.spark.{name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.spark.{name}"], check=True)
    else:
        sys.exit(f"no benchmark named {name}; there are {', '.join(BENCHMARKS)}")
