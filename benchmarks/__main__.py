"""`make bench`: all benchmarks, one after the other; or those that are named: `python -m benchmarks consumer`."""

import os
import subprocess
import sys

BENCHMARKS = (
    "decisions",
    "function_path",
    "consumer",
    "consumer.decoders",
    "publisher",
    "service_bus_sender",
    "spark",
    "autoscaling",
)

for name in sys.argv[1:] or BENCHMARKS:
    # A loaded machine flatters ratios: what it did before the benchmark stands beside its figures.
    print(f"\nbenchmarks.{name}: load {os.getloadavg()[0]:.2f} before, {os.cpu_count()} cores", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
