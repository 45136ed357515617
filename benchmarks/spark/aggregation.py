"""Telemetry aggregation against DuckDB, Polars and Spark's own `groupBy` on the same Parquet files, each cell in a process of its
own.

    python -m benchmarks.spark.aggregation [--rows 50000000 ...] [--rounds 3] [--cache DIR] [--kinds sums] [--engines duckdb tidemark]
        [--spark-rows 6000000]

`sums`: count, sum, mean, minimum and maximum per series and minute. `percentiles`: count, p50, p95 and p99 per series and hour;
DuckDB's and Polars's are exact, ours within the stated bound, which is checked. A day of 800 series (100 targets of 8 metrics); 50
million rows are 43 samples a minute. The peers are written as their best users write them: DuckDB groups by whole numbers and keeps no
order. `tidemark` is the command `tidemark telemetry-aggregation` without its page. It makes all columns of the table gauges in both rows,
for the one window (`--windows`), and drops duplicates, of which the data has none; the peers make what was named.

`Spark`: what a user types, `tidemark spark telemetry-aggregation --metrics`, which lets its driver aggregate files of this machine: all
three windows, the table quality, the page, and what makes the results appear together. Then the same samples through Spark, as on a
platform: one shuffle and the kernel (`shuffle`), against what a user of Spark would write, copies dropped by `groupBy`, then per window
`groupBy` with percentile_approx, the first and the last sample (`groupBy`). Both write all three windows.

CPU seconds are user and system time of the whole process tree, `start` and `work`: the start of Python and Java, imports and the session,
and what follows. A cell on one core is confined to it by the operating system, with all its threads. What two cores gain at
best on this machine is measured beside it: by two processes that share nothing, each on a core of its own. Figures are medians of the
rounds, in each of which every cell runs once; those of Spark are of one round. `load` is the machine's, the mean number of runnable tasks
in the minute before the cell: above the number of cores, compare nothing but CPU seconds. Python finds all its files compiled, as pip
leaves them, for each engine has run once on little before.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.spark.usage import cpu_seconds, peak_megabytes

MINUTE = 60_000_000
FILES = 16
SERIES = 800
KINDS = ("sums", "percentiles")
PEERS = ("duckdb", "polars")
WINDOW = {"sums": "1m", "percentiles": "1h"}


def generate(folder: Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    rng = np.random.default_rng(20261120)
    targets = pa.array([f"plan-{index:03d}" for index in range(SERIES // 8)])
    metrics = pa.array([f"queue-{index}.backlog" for index in range(8)])
    schema = pa.schema(
        [
            ("target", pa.string()),
            ("metric", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("value", pa.float64()),
        ]
    )
    begin, day = 1_795_132_800_000_000, 1440 * MINUTE  # 2026-11-20
    for number in range(FILES):
        count = rows // FILES
        step = day // FILES // count  # no two at the same time: ours would drop one of them
        at = begin + number * day // FILES + np.arange(count) * step + rng.integers(0, step, count)
        series = rng.integers(0, SERIES, count)
        value = np.floor(np.exp(rng.normal(4 + series % 8 * 0.5, 1.0, count)))
        columns = [
            pa.DictionaryArray.from_arrays(pa.array(series // 8, pa.int32()), targets).cast(pa.string()),
            pa.DictionaryArray.from_arrays(pa.array(series % 8, pa.int32()), metrics).cast(pa.string()),
            pa.array(at, schema.field("at").type),
            pa.array(value),
        ]
        pq.write_table(pa.table(columns, schema=schema), folder / f"{number:02d}.parquet", compression="zstd")


def data_of(cache: Path, rows: int) -> Path:
    folder = cache / f"samples-{rows}"
    if not folder.exists():
        staging = cache / f".samples-{rows}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        generate(staging, rows)
        staging.rename(folder)
    return folder


# -- the cells: each starts what it needs, tells when it has, and writes its result as Parquet


def duckdb_cell(kind: str, data: Path, result: Path, cores: int) -> tuple[float, float]:
    import duckdb

    connection = duckdb.connect(config={"threads": cores})
    connection.execute("set preserve_insertion_order = false")
    started = cpu_seconds(), time.perf_counter()
    width, columns = {
        "sums": (MINUTE, "sum(value) as total, avg(value) as mean, min(value) as min, max(value) as max"),
        "percentiles": (60 * MINUTE, "quantile_disc(value, [0.5, 0.95, 0.99]) as p"),
    }[kind]
    connection.execute(
        f"""copy (select target, metric, epoch_us("at") // {width} * {width} as start, count(*) as samples, {columns}
        from '{data}/*.parquet' group by target, metric, start) to '{result}.parquet' (format parquet)"""
    )
    return started


def polars_cell(kind: str, data: Path, result: Path, cores: int) -> tuple[float, float]:
    import polars as pl

    assert pl.thread_pool_size() == cores
    started = cpu_seconds(), time.perf_counter()
    value = pl.col("value")
    columns = {
        "sums": [
            value.sum().alias("total"),
            value.mean().alias("mean"),
            value.min().alias("min"),
            value.max().alias("max"),
        ],
        "percentiles": [value.quantile(q, "nearest").alias(f"p{q}") for q in (0.5, 0.95, 0.99)],
    }[kind]
    rows = pl.scan_parquet(f"{data}/*.parquet")
    keys = [pl.col("target"), pl.col("metric"), pl.col("at").dt.truncate(WINDOW[kind]).alias("start")]
    grouped = rows.group_by(keys).agg(pl.len().alias("samples"), *columns)
    grouped.collect(engine="streaming").write_parquet(f"{result}.parquet")
    return started


def tidemark_cell(kind: str, data: Path, result: Path, cores: int) -> tuple[float, float]:
    """Its work begins when it looks for the files: what reads the options is loaded with the command, as an engine is."""
    from unittest import mock

    from typer.testing import CliRunner

    from spark_jobs.telemetry_aggregation import local
    from tidemark.__main__ import PARTS, command_line

    started: list[tuple[float, float]] = []

    def run(*given: Any, aggregate: Any = local.run, **options: Any) -> Any:
        started.append((cpu_seconds(), time.perf_counter()))
        return aggregate(*given, **options)

    app = command_line({"spark": PARTS["spark"]})
    argv = ["telemetry-aggregation", "--metrics", str(data), "--output", f"{result}.tables"]
    argv += ["--no-page", "--windows", WINDOW[kind], "--cores", str(cores)]
    with mock.patch.object(local, "run", run):
        done = CliRunner().invoke(app, argv)
    assert done.exit_code == 0, done.output
    Path(f"{result}.tables/gauges.parquet").replace(f"{result}.parquet")
    return started[0]


def spark_cell(_kind: str, data: Path, result: Path, cores: int) -> tuple[float, float]:
    """The command as it is typed; it finds the session that is there."""
    from typer.testing import CliRunner

    from spark_jobs.platform.session import prepared_session
    from tidemark.__main__ import PARTS, command_line

    app = command_line({"spark": PARTS["spark"]})
    prepared_session("benchmark", cores=cores)
    started = cpu_seconds(), time.perf_counter()
    argv = ["spark", "telemetry-aggregation", "--metrics", str(data), "--output", str(result)]
    done = CliRunner().invoke(app, [*argv, "--cores", str(cores)])
    assert done.exit_code == 0, done.output
    return started


def shuffle_cell(_kind: str, data: Path, result: Path, cores: int) -> tuple[float, float]:
    from spark_jobs.platform.session import prepared_session
    from spark_jobs.telemetry_aggregation.gauges import gauges, large_batches
    from spark_jobs.telemetry_aggregation.transforms import samples_of_metrics

    spark = prepared_session("benchmark", cores=cores)
    started = cpu_seconds(), time.perf_counter()
    with large_batches(spark):
        frame = spark.read.parquet(str(data))
        table = gauges(samples_of_metrics(frame), frame.count(), distinct=True)
        table.write.mode("overwrite").parquet(f"{result}.parquet")
    return started


def group_by_cell(_kind: str, data: Path, result: Path, cores: int) -> tuple[float, float]:
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from spark_jobs.platform.session import prepared_session

    spark = prepared_session("benchmark", cores=cores)
    started = cpu_seconds(), time.perf_counter()
    once = spark.read.parquet(str(data)).groupBy("target", "metric", "at").agg(F.max("value").alias("value"))
    columns = [
        F.count("*").alias("samples"),
        *(function("value").alias(function.__name__) for function in (F.avg, F.min, F.max)),
        F.percentile_approx("value", [0.5, 0.95, 0.99], 10_000).alias("p"),
        *(F.min("at").alias("first_at"), F.min_by("value", "at").alias("first")),
        *(F.max("at").alias("last_at"), F.max_by("value", "at").alias("last")),
    ]
    windows = [
        once.groupBy("target", "metric", F.date_trunc(unit, "at").alias("window_start"))
        .agg(*columns)
        .withColumn("window", F.lit(unit))
        for unit in ("minute", "hour", "day")
    ]
    reduce(DataFrame.unionByName, windows).write.mode("overwrite").parquet(f"{result}.parquet")
    return started


CELLS = {"duckdb": duckdb_cell, "polars": polars_cell, "tidemark": tidemark_cell}
SPARK_CELLS = {"Spark": spark_cell, "shuffle": shuffle_cell, "groupBy": group_by_cell}


def run_cell(engine: str, kind: str, data: Path, result: Path, cores: int) -> None:
    begun, load = time.perf_counter(), os.getloadavg()[0]
    cpu_started, started = {**CELLS, **SPARK_CELLS}[engine](kind, data, result, cores)
    ended, cpu = time.perf_counter(), cpu_seconds()
    measured = {"wall": ended - begun, "wall_work": ended - started, "cpu": cpu, "work": cpu - cpu_started}
    print(json.dumps({**measured, "mb": peak_megabytes(), "load": load}))


def measure(engine: str, kind: str, data: Path, scratch: Path, cores: int) -> dict[str, float]:
    result = scratch / f"{engine}-{kind}-{cores}"
    shutil.rmtree(f"{result}.parquet", ignore_errors=True)  # of the round before
    return told_by(started_cell(engine, kind, data, result, range(cores)))


def started_cell(
    engine: str, kind: str, data: Path, result: Path, cores: Sequence[int]
) -> subprocess.Popen[str]:
    """On these cores alone, by their place among those that this process may use."""
    argv = [sys.executable, "-m", "benchmarks.spark.aggregation", "--cell", engine, kind]
    argv += ["--data", str(data), "--result", str(result), "--cores", str(len(cores))]
    environment = {**os.environ, "POLARS_MAX_THREADS": str(len(cores)), "PYTHONDONTWRITEBYTECODE": ""}
    all_cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [all_cores[core] for core in cores])  # inherited, by Java's compiler, too
    try:
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
    finally:
        os.sched_setaffinity(0, all_cores)


def told_by(cell: subprocess.Popen[str]) -> dict[str, float]:
    output, _ = cell.communicate()
    if cell.returncode:
        raise subprocess.CalledProcessError(cell.returncode, cell.args)
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def machine_gain(kind: str, data: Path, scratch: Path) -> float:
    """How much more than one process on one core two of them do on two that share nothing but the machine."""

    def slowest(cores: Sequence[int]) -> float:
        cells = [
            started_cell("tidemark", kind, data, scratch / f"alone-{core}", range(core, core + 1))
            for core in cores
        ]
        return max(told_by(cell)["wall"] for cell in cells)

    alone = (slowest([0]) + slowest([1])) / 2
    return 2 * alone / slowest([0, 1])


# -- the comparison


def check(kind: str, own_engine: str, scratch: Path, cores: int) -> str:
    """Compares the results; raises AssertionError where they differ, returns what was found."""
    import duckdb

    def table(engine: str) -> str:
        path = scratch / f"{engine}-{kind}-{cores}.parquet"
        return f"'{path}/*.parquet'" if path.is_dir() else f"'{path}'"

    connection = duckdb.connect()
    peer, ours = table("duckdb"), table(own_engine)
    join = f"from {peer} d full join {ours} t on d.target = t.subject and d.metric = t.metric and d.start = epoch_us(t.window_start)"
    if kind == "sums":
        wrong = connection.execute(
            f"select count(*), count(*) filter (d.samples is distinct from t.samples"
            f" or d.min is distinct from t.min or d.max is distinct from t.max or abs(d.mean - t.mean) > 1e-9 * t.mean) {join}"
        ).fetchone()
        assert wrong is not None
        assert wrong[1] == 0, wrong
        return f"{wrong[0]:,} groups, all equal"
    errors = connection.execute(
        "select count(*), "
        + ", ".join(
            f"max(abs(d.p[{n}] - t.p{p}) / greatest(d.p[{n}], 1e-300))"
            for n, p in ((1, 50), (2, 95), (3, 99))
        )
        + f", count(*) filter (t.p50 is null or d.p is null) {join}"
    ).fetchone()
    assert errors is not None
    assert errors[4] == 0, errors
    assert max(errors[1:4]) <= 0.01 * (1 + 1e-9), errors
    return f"{errors[0]:,} groups; largest relative error of a percentile {max(errors[1:4]):.4f}, the bound is 0.01"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000_000])
    parser.add_argument("--engines", nargs="+", choices=CELLS, default=[*CELLS], help="duckdb has to be one")
    parser.add_argument(
        "--spark-rows", type=int, default=6_000_000, help="of the cells on Spark; 0 leaves them out"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--cache", type=Path, help="where the data is kept for the next run")
    parser.add_argument("--cores", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--cell", nargs=2, metavar=("ENGINE", "KIND"), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        engine, kind = given.cell
        run_cell(engine, kind, given.data, given.result, given.cores)
        return
    with tempfile.TemporaryDirectory() as scratch:
        for rows in given.rows:
            compare(data_of(given.cache or Path(scratch), rows), rows, Path(scratch), given)
        if given.spark_rows:
            data = data_of(given.cache or Path(scratch), given.spark_rows)
            compare_on_spark(data, Path(scratch), given.spark_rows)


def compare(data: Path, rows: int, scratch: Path, given: argparse.Namespace) -> None:
    size = sum(file.stat().st_size for file in data.iterdir()) / 1e6
    print(
        f"\n{rows:,} rows, {size:.0f} MB of Parquet; CPU seconds of the whole process tree, medians of {given.rounds}"
    )
    os.environ["PYTHONPYCACHEPREFIX"] = str(scratch / "compiled")  # of all cells
    for engine in given.engines:
        measure(engine, KINDS[0], data_of(scratch, FILES * 1_000), scratch, 1)
    for kind in given.kinds:
        measured: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
        for _ in range(given.rounds):
            for engine in given.engines:
                for cores in (2, 1):
                    measured[engine, cores].append(measure(engine, kind, data, scratch, cores))
            checked = check(kind, "tidemark", scratch, 2)
        print(f"\n{kind}: {checked}")
        medians = {cell: median(of) for cell, of in measured.items()}
        print_cells({engine: medians[engine, 2] for engine in given.engines})
        print_scaling(medians)
        gain = machine_gain(kind, data, scratch)
        print(f"  two processes that share nothing do {gain:.2f} times the work of one", flush=True)


def compare_on_spark(data: Path, scratch: Path, rows: int) -> None:
    """On two cores, all three windows. The fastest peer on files of this machine makes one window, of minutes."""
    cells = {engine: measure(engine, KINDS[0], data, scratch, 2) for engine in (*CELLS, *SPARK_CELLS)}
    print(f"\nSpark, {rows:,} rows")
    print_cells(cells)
    share = cells["shuffle"]["work"] / cells["groupBy"]["work"]
    print(f"  the shuffle takes {share:.2f} times the work of groupBy", flush=True)


def median(cells: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(cell[name] for cell in cells) for name in cells[0]}


def print_cells(cells: dict[str, dict[str, float]]) -> None:
    peers = [cells[peer] for peer in PEERS if peer in cells]
    fastest, fastest_work = (min(peer[name] for peer in peers) for name in ("cpu", "work"))
    print(
        f"  {'':10}{'start':>9}{'work':>9}{'ratio':>8}{'both':>9}{'ratio':>8}{'wall s':>9}{'peak MB':>9}{'load':>7}"
    )
    for engine, cell in cells.items():
        start, ratios = cell["cpu"] - cell["work"], (cell["work"] / fastest_work, cell["cpu"] / fastest)
        print(
            f"  {engine:10}{start:9.2f}{cell['work']:9.2f}{ratios[0]:8.2f}{cell['cpu']:9.2f}{ratios[1]:8.2f}{cell['wall']:9.1f}{cell['mb']:9.0f}{cell['load']:7.1f}",
            flush=True,
        )


def print_scaling(cells: dict[tuple[str, int], dict[str, float]]) -> None:
    for engine in dict.fromkeys(engine for engine, _ in cells):
        one, two = cells[engine, 1], cells[engine, 2]
        gain, gain_work = (one[name] / two[name] for name in ("wall", "wall_work"))
        print(
            f"  {engine} on 1 core: {one['wall']:.1f} s of wall time, {one['wall_work']:.1f} of them work;"
            f" 2 cores are {gain:.2f} times as fast, {gain_work:.2f} times in the work",
            flush=True,
        )


if __name__ == "__main__":
    main()
