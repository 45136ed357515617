"""`make bench`: all benchmarks, one after the other."""

import subprocess
import sys

for module in ("benchmarks.decisions", "benchmarks.function_path"):
    print(f"\n{module}")
    subprocess.run([sys.executable, "-m", module], check=True)
