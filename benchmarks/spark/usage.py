"""CPU seconds and memory of this process and all it started, from /proc (Linux)."""

import os
from pathlib import Path


def tree() -> list[int]:
    """This process and its descendants, those of processes that ended without being waited for excepted."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
        mine |= more
    return sorted(mine)


def cpu_seconds() -> float:
    """User and system time, that of children already waited for included."""
    ticks = 0
    for pid in tree():
        if stat := _read(Path(f"/proc/{pid}/stat")):
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_megabytes() -> float:
    """The sum of each process's own peak: an upper bound of the tree's."""
    total = 0
    for pid in tree():
        for line in (_read(Path(f"/proc/{pid}/status")) or "").splitlines():
            if line.startswith("VmHWM"):
                total += int(line.split()[1])
    return total / 1024


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:  # it ended in between
        return None
