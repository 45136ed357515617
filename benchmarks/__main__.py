"""`make bench`: all benchmarks, one after the other; or those that are named: `python -m benchmarks consumer`."""

import subprocess
import sys

BENCHMARKS = ("decisions", "function_path", "consumer", "publisher", "service_bus_sender", "spark")

for name in sys.argv[1:] or BENCHMARKS:
    print(f"\nbenchmarks.{name}")
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
