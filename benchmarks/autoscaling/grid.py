"""`service_level` and its peers in many worlds: python -m benchmarks.autoscaling.grid

One cell, quickly (five traces, the first day of each):

    python -m benchmarks.autoscaling.grid --world 0.5/16 --sense "+ takes" --quick

Every option of a cell takes several values, and all their combinations are replayed: --world --times --policy --sense --look
--wait --start-up --load --limit, and --halves. `--whole` is the grid that the README shows: what its file has of the present code is
not replayed again, so the run can be ended and continued; options of a cell then restrict it.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from hashlib import sha256
from itertools import product
from math import exp, isnan, log
from pathlib import Path
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import asdict, replace
from rich.console import Console
from rich.progress import Progress

from benchmarks.autoscaling import cells, traces
from benchmarks.autoscaling.cells import BURSTS, SENSES, TIMES, WORLDS, Cell, Loads, Played
from scaling.scalers.app_service.scaler import CHANGES_PER_HOUR

RESULTS = Path(__file__).parent / "results.csv"

QUICK = ("fb_hadoop_2010", "alibaba18_diskio", "wc98_may_spikes", "aws_elb_requests", "nasa95_web")
QUICK_HOURS = 24

ROOT = Path(__file__).parents[2]
RULE, SIMULATION = ROOT / "scaling/rules/service_level", ROOT / "tidemark/analysis/simulation"
MODEL = [SIMULATION / "world.py", SIMULATION / "times.py", SIMULATION / "load.py"]


class Row(Struct, frozen=True):
    """A cell over its traces, the first `hours` of each or all: `cost` and `work` are geometric means (`cells.Played`), `late` and
    `aborted` means in per cent, `highest` that of the trace with most late messages, `kept` how many of the `traces` have at
    most 1 %. `code` is of the code that decided.
    """

    traces: int
    hours: int
    cost: float
    work: float
    late: float
    highest: float
    kept: int
    changes_per_hour: float
    aborted: float
    code: str

    def __str__(self) -> str:
        cost = "" if isnan(self.cost) else f"{self.cost:.2f}x of the bound, "
        return (
            f"{cost}{self.work:.2f}x of the work, {self.late:.2f} % late (highest {self.highest:.1f} %, "
            f"{self.kept} of {self.traces} at most 1 %), {self.changes_per_hour:.1f} changes/h, {self.aborted:.2f} % aborted"
        )


def describe(cell: Cell) -> str:
    """The world, the times and who decides; of the rest, what differs from the base cell."""
    texts = {
        "look": "look {} s",
        "wait": "wait {} s",
        "start_up": "start-up {} s",
        "load": "{}",
        "options": "{}",
        "limit": "at most {} changes an hour",
    }
    values = {name: getattr(cell, name) for name in texts}
    others = [texts[name].format(value) for name, value in values.items() if value != getattr(Cell(), name)]
    halves = ["rate halves"] if cell.halves else []
    return ", ".join([cell.world, cell.times, cell.sense or cell.policy, *others, *halves])


def row_of(policy: str, hours: int, played: Sequence[Played]) -> Row:
    late = [100.0 * each.late for each in played]
    return Row(
        len(played),
        hours,
        exp(_mean([log(each.cost) for each in played])),
        exp(_mean([log(each.work) for each in played])),
        _mean(late),
        max(late),
        sum(each <= 1.0 for each in late),
        _mean([each.changes_per_hour for each in played]),
        100.0 * _mean([each.aborted for each in played]),
        code(policy),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@lru_cache
def code(policy: str) -> str:
    """Of the files that decide a row of a policy: rows of other code are out of date."""
    ours = [SIMULATION / "driving.py", *sorted(RULE.glob("*.py"))]
    ours.remove(RULE / "report.py")  # it decides nothing
    peers = [SIMULATION / "peers.py", Path(__file__).parent / "peers.py"]
    files = MODEL + (ours if policy == "service_level" else peers)
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


# -- the file: a row per cell


def read(path: Path) -> dict[Cell, Row]:
    """Nothing where there is no file."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return {convert(line, Cell, strict=False): convert(line, Row, strict=False) for line in lines}


def write(path: Path, rows: Mapping[Cell, Row]) -> None:
    """In the order of the cells, so that a row that is replayed again changes one line."""
    texts = [{**asdict(cell), **asdict(row)} for cell, row in sorted(rows.items())]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*Cell.__struct_fields__, *Row.__struct_fields__], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(value) for name, value in text.items()} for text in texts)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# -- the whole grid

USUAL = ("+ concurrency", "+ takes", "late counts", "oldest age", "exact counts")
SLOW = tuple(world for world in WORLDS if world != "(1/150)/2")
SHARES = ("0.6", "0.75", "0.9", "1")
"""Targets that are tried for a peer, as shares of what an instance holds: it is given the best one of each world."""
LONG_SHARES = ("2", "5", "20")
"""And where messages may wait for many minutes."""
PEERS = (
    *(f"KEDA {share}" for share in SHARES),
    *(f"Functions {share}" for share in SHARES),
    "AzureMonitor 0.875",
)
SERVICES = (("Event Hubs", 15), ("storage queue", 15), ("Service Bus", 60))
"""With what a user gets, as often as their counts may be read."""
PLAN = CHANGES_PER_HOUR
"""Changes an hour of an App Service plan. Our rule alone is replayed with it: peers do not know of it."""


SLICES: tuple[dict[str, Any], ...] = (
    *({"times": times} for times in TIMES),
    *({"wait": wait} for wait in (10, 1200, 7200)),
    *({"look": look} for look in (30, 60)),
    *({"start_up": start_up} for start_up in (30, 180, 300)),
    {"halves": True},
)
"""What differs from the base cell, in every world and for everybody."""


def whole() -> Iterator[Cell]:
    """Every cell of the grid, what says most first."""
    field = [*(Cell(sense=sense) for sense in USUAL), *(Cell(policy=policy) for policy in PEERS)]
    for world, (service, look), times in product(SLOW, SERVICES, ("fixed", "log-normal")):
        yield Cell(world, times, sense=service, look=look)
    for world, (service, look) in product(SLOW, SERVICES):
        yield Cell(world, sense=service, look=look, limit=PLAN)
    for world, start_up, sense in product(SLOW, (90, 30), USUAL):
        yield Cell(world, sense=sense, start_up=start_up, limit=PLAN)
    for changes, world, each in product(SLICES, SLOW, field):
        yield replace(each, world=world, **changes)
    for world, wait, peer, share in product(SLOW, (1200, 7200), ("KEDA", "Functions"), LONG_SHARES):
        yield Cell(world, policy=f"{peer} {share}", wait=wait)
    for world, sense in product(SLOW, ("backlog", "oldest age alone", "active age")):
        yield Cell(world, sense=sense)
    bursts = [("1/16", load) for load in BURSTS if not load.startswith("600")] + [
        ("(1/150)/2", "600 once a day")
    ]
    for (world, load), wait, each in product(bursts, (1200, 7200), field):
        yield replace(each, world=world, load=load, wait=wait)


# -- the command


def chosen(asked: argparse.Namespace) -> list[Cell]:
    """All combinations of what is asked for; of the whole grid, the cells that have it."""
    names = ("world", "times", "policy", "sense", "look", "wait", "start_up", "load", "options", "limit")
    given = {name: value for name in names if (value := getattr(asked, name))}
    if asked.whole:
        cells = (cell for cell in dict.fromkeys(whole()) if cell.halves or not asked.halves)
        return [cell for cell in cells if all(getattr(cell, name) in value for name, value in given.items())]
    given.setdefault("sense", ["+ concurrency"])
    found = (
        Cell(**dict(zip(given, values, strict=True)), halves=asked.halves)
        for values in product(*given.values())
    )
    return list(
        dict.fromkeys(c if c.policy == "service_level" else replace(c, sense="", options="") for c in found)
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="benchmarks.autoscaling.grid",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--world", nargs="+", choices=WORLDS)
    made.add_argument("--times", nargs="+", choices=TIMES)
    made.add_argument("--policy", nargs="+", help=f"service_level, or a peer: {', '.join(PEERS)}")
    made.add_argument("--sense", nargs="+", choices=SENSES, help="of service_level")
    made.add_argument("--options", nargs="+", help="more of its options, such as 'start_up=90s late=0.1%%'")
    for name in ("--look", "--wait", "--start-up"):
        made.add_argument(name, nargs="+", type=int, metavar="S", help="seconds")
    made.add_argument("--limit", nargs="+", type=int, metavar="N", help="changes an hour; 0: any number")
    made.add_argument("--halves", action="store_true", help="the service rate halves every other two hours")
    made.add_argument("--load", nargs="+", choices=["traces", *BURSTS])
    made.add_argument("--traces", type=Path, default=traces.FOLDER, help="folder of NAME.csv.gz: t, arrivals")
    made.add_argument("--only", nargs="+", default=(), help="names of traces")
    made.add_argument("--hours", type=int, default=0, help="of each trace, from its begin; 0: all")
    made.add_argument(
        "--quick", action="store_true", help=f"{len(QUICK)} traces, {QUICK_HOURS} hours of each"
    )
    made.add_argument("--by-trace", action="store_true", help="a line for each trace")
    made.add_argument("--whole", action="store_true", help="the grid of the README; cells restrict it")
    made.add_argument("--file", type=Path, help=f"where rows are kept; with --whole {RESULTS.name}")
    made.add_argument("--workers", type=int, default=1)
    return made


def main(arguments: Sequence[str]) -> None:
    asked = parser().parse_args(arguments)
    loads = Loads(asked.traces, tuple(asked.only), asked.hours)
    if asked.quick:
        loads = Loads(asked.traces, tuple(asked.only) or QUICK, asked.hours or QUICK_HOURS)
    if unknown := [name for name in loads.names if name not in traces.names(loads.folder)]:
        parser().error(
            f"--only: no {unknown[0]}.csv.gz in {loads.folder}; {', '.join(traces.names(loads.folder))} are there"
        )
    path = asked.file or (RESULTS if asked.whole else None)
    rows = read(path) if path is not None else {}
    todo = [cell for cell in chosen(asked) if not _is_current(rows.get(cell), cell, loads)]
    jobs = [(cell, name) for cell in todo for name in loads.of(cell)]
    played: dict[Cell, list[Played]] = defaultdict(list)
    with Progress(console=Console(stderr=True)) as progress, _pool(asked.workers) as run:
        task = progress.add_task(f"{len(todo)} cells", total=len(jobs))
        for (cell, _), found in zip(jobs, run(partial(_play, loads), jobs), strict=True):
            played[cell].append(found)
            progress.advance(task)
            if len(played[cell]) < len(loads.of(cell)):
                continue
            rows[cell] = row_of(cell.policy, loads.hours, played[cell])
            print(f"{describe(cell)}: {rows[cell]}", flush=True)
            for each in played[cell] if asked.by_trace else ():
                print(f"    {each.trace}: {row_of(cell.policy, loads.hours, [each])}", flush=True)
            if path is not None:
                write(path, rows)


def _is_current(row: Row | None, cell: Cell, loads: Loads) -> bool:
    return row is not None and (row.code, row.hours) == (code(cell.policy), loads.hours)


def _play(loads: Loads, job: tuple[Cell, str]) -> Played:
    return cells.play(job[0], loads, job[1])


@contextmanager
def _pool(workers: int) -> Iterator[Callable[..., Iterable[Played]]]:
    """Results come in the order of the jobs."""
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers) as pool:
        yield pool.map


if __name__ == "__main__":
    main(sys.argv[1:])
