"""The aggregation against independent computations (DuckDB, plain Python) on random records."""

import math
import random
import re
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.cli import _shown
from spark_jobs.platform.classic import SPARK_ERRORS
from spark_jobs.schemas import DECISIONS, METRICS, TELEMETRY
from spark_jobs.tables.merging import read_parquet_or_delta
from spark_jobs.tables.results import result_table
from spark_jobs.telemetry_aggregation import job, local
from spark_jobs.telemetry_aggregation.datasets import decisions, telemetry
from spark_jobs.telemetry_aggregation.gauges import gauges
from spark_jobs.telemetry_aggregation.incremental import Incremental, latest_mark, records_of_days, sources
from spark_jobs.telemetry_aggregation.inputs import Inputs
from spark_jobs.telemetry_aggregation.kernel.buckets import RELATIVE_ERROR
from spark_jobs.telemetry_aggregation.kernel.samples import MICROS
from spark_jobs.telemetry_aggregation.pages import page
from spark_jobs.telemetry_aggregation.schemas import FLOWS, GAUGES, SAMPLES, SCALING
from spark_jobs.telemetry_aggregation.tables import records_once, table_of, tables_of
from tests.unit.spark_jobs.telemetry_aggregation.test_telemetry_local import ACCEPTED, REFUSED, laid
from tidemark.analysis.errors import CheckFailedError, InputError
from tidemark.analysis.limits import Limit

START = datetime(2026, 11, 20, 22, 57, tzinfo=UTC)  # a day and an hour end within the data
HOLD = 900
NO_PRICES = job.Settings(inputs=Inputs())
EVER = 1 << 62  # no clock is ahead of this one


def rows_of(schema: StructType, records: list[dict]) -> list[tuple]:
    return [tuple(record.get(name) for name in schema.names) for record in records]


def random_samples(rng: random.Random, count: int) -> list[dict]:
    """Eighths, so that sums are exact in any order; zeros, spikes and a constant among them; one time per series once."""
    records = {}
    for _ in range(count):
        target, metric = rng.choice(["plan-a", "plan-b"]), rng.choice(["backlog", "cpu", "flat"])
        at = START + timedelta(milliseconds=rng.randrange(2 * 3600 * 1000))
        value = (
            7.0 if metric == "flat" else math.floor(rng.lognormvariate(4, 2) * 8) / 8 * (rng.random() > 0.1)
        )
        records[target, metric, at] = {"target": target, "metric": metric, "at": at, "value": value}
    return list(records.values())


def test_the_history_of_one_gauge_is_the_work_of_many_tasks(spark) -> None:
    """Forty days of a gauge: no task gets more than its share of the days."""
    day = pa.array([START + timedelta(days=each) for each in range(40)])
    names = [pa.array([name] * 40) for name in ("plan-a", "", "backlog")]
    samples = spark.createDataFrame(pa.table([*names, day, [1.0] * 40], names=SAMPLES.names))
    table = gauges(samples, 12_000_000).where("window = '1d'")

    tasks = table.groupBy(F.spark_partition_id()).count().collect()

    assert sum(task["count"] for task in tasks) == 40
    assert max(task["count"] for task in tasks) <= 20


GAUGES_SQL = """
with w as (select *, 60::bigint s from r union all select *, 3600 from r union all select *, 86400 from r)
select case s when 60 then '1m' when 3600 then '1h' else '1d' end as "window",
  epoch_us("at") // (s * 1000000) * s * 1000000 as start, target, metric, count(*) as samples, avg(value) as mean, min(value) as min,
  quantile_disc(value, 0.5) as p50, quantile_disc(value, 0.95) as p95, quantile_disc(value, 0.99) as p99, max(value) as max,
  arg_min(value, "at") as first, arg_max(value, "at") as last, epoch_us(max("at")) - epoch_us(min("at")) as elapsed
from w group by all order by all
"""


def test_gauges_equal_duckdb_within_the_bound_of_percentiles_without_what_is_ahead_or_invalid(
    spark, tmp_path
) -> None:
    samples = random_samples(random.Random(1), 3000)
    frame = spark.createDataFrame(rows_of(METRICS, [*samples, *samples[:200]]), METRICS)
    ahead = START.replace(year=2099)
    others = [("cpu", START, float("nan")), ("cpu", START, None), ("cpu", ahead, 1.0)]
    frame.union(spark.createDataFrame([("plan-a", *other) for other in others], METRICS)).write.parquet(
        str(tmp_path / "in")
    )
    settings = job.Settings(
        inputs=Inputs(metrics=str(tmp_path / "in")),
        output=str(tmp_path / "out"),
        now=START + timedelta(hours=2),
        allow={"invalid": Limit(count=1)},
    )

    with pytest.raises(CheckFailedError, match="check failed: invalid 2, allowed 1; report: ") as told:
        job.run(spark, settings)

    result = result_table(spark, str(tmp_path / "out"), "gauges")
    rows = result.orderBy("window", "window_start", "subject", "metric").collect()
    table = duckdb.connect()
    table.register("r", pa.Table.from_pylist(samples))
    wanted = sorted(table.execute(GAUGES_SQL).fetchall())
    assert [field.name for field in result.schema] == GAUGES.names
    assert result.schema["p95"].metadata == {"relative_error": RELATIVE_ERROR}
    assert len(wanted) == len(rows) > 500
    for row, peer in zip(rows, wanted, strict=True):
        window, start, target, metric, count, mean, low, p50, p95, p99, high, first, last, elapsed = peer
        exact = (window, start, target, "", metric, count, low, high, first, last)
        start_found = round(row.window_start.timestamp() * 1e6)
        assert exact == (row.window, start_found, row.subject, row.part, row.metric, row.samples, row.min, row.max, row.first, row.last)  # fmt: skip
        assert mean == pytest.approx(row.mean, rel=1e-14)
        for percentile, value in ((row.p50, p50), (row.p95, p95), (row.p99, p99)):
            assert abs(percentile - value) <= RELATIVE_ERROR * value * (1 + 1e-9)
        if elapsed:
            assert (first - last) / (elapsed / 1e6) == pytest.approx(row.drain_per_s)
            drains = last / row.drain_per_s if row.drain_per_s > 0 else None
            assert (0.0 if last == 0 else drains) == row.time_to_drain_s
    flat = {row.p50 for row in rows if row.metric == "flat"}
    assert {7.0} == flat  # the bounds are exact
    quality = result_table(spark, str(tmp_path / "out"), "quality").collect()
    assert [("metrics", len(samples) + 203, 200, 0, 1, 2)] == quality
    assert "Backlogs" in Path(str(told.value).rpartition("report: ")[2]).read_text()


@pytest.fixture
def results_elsewhere(monkeypatch):
    """As where `--output` is not on this machine: tasks read the samples, and a shuffle brings them together."""
    monkeypatch.setattr(job.Results, "scratch", lambda *_: None)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_spark_takes_and_refuses_what_one_machine_does(spark, tmp_path, request, elsewhere) -> None:
    """Where the driver aggregates the files, and where tasks do."""
    if elsewhere:
        request.getfixturevalue("results_elsewhere")
    batch = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    for number, case in enumerate(ACCEPTED.values()):
        name = case.get("name", "b.parquet")
        folder, _, file = name.rpartition("/")
        laid(tmp_path / "one", {**case, "name": f"{folder or 'x'}/{number}-{file}"})
    settings = job.Settings(inputs=Inputs(metrics=str(tmp_path / "one")), output=str(tmp_path / "out"))

    job.run(spark, settings)

    counts = local.run(tmp_path / "one", tmp_path / "here", latest=datetime.now(UTC))
    assert counts.read == 20 * (len(ACCEPTED) + 1)
    here = pq.read_table(tmp_path / "here" / "gauges.parquet")
    found = result_table(spark, settings.output, "gauges").toArrow().select(here.column_names)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, here.to_pylist()))
    [quality] = result_table(spark, settings.output, "quality").collect()
    assert quality == ("metrics", *counts)
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == batch
    for number, (layout, told) in enumerate(REFUSED.values()):
        folder = laid(tmp_path / f"refused-{number}", layout)
        with pytest.raises(InputError, match=told):
            job.run(spark, replace(settings, inputs=Inputs(metrics=str(folder))))


def test_a_file_that_is_no_parquet_is_one_line_wherever_spark_reads(spark, tmp_path) -> None:
    (tmp_path / "readme.txt").write_text("hello")

    with pytest.raises(InputError, match=r"no finished parquet table: .*readme\.txt"):
        read_parquet_or_delta(spark, str(tmp_path)).collect()

    # Of good files and one that is none Spark looks at one: then the action meets the other.
    for name in ("a-readme.txt", "z-readme.txt", "z-damaged.parquet"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        pq.write_table(pa.table({"id": range(9)}), folder / "good.parquet")
        (folder / name).write_bytes(b"hello" if name.endswith("txt") else b"PAR1" + bytes(40) + b"PAR1")
        with pytest.raises((InputError, *SPARK_ERRORS)) as raised:
            read_parquet_or_delta(spark, str(folder)).groupBy("id").count().collect()
        error = _shown(raised.value) or raised.value
        assert name in str(error)
        assert len(str(error).splitlines()) == 1


def random_telemetry(rng: random.Random) -> list[dict]:
    records = []
    for instance, count in (("i1", 400), ("i2", 250)):
        for index in range(count):
            at = START + timedelta(seconds=10 * index + rng.random())
            numbers = {
                name: rng.randrange(100)
                for name in ("received", "written", "dead_letters", "retried", "attempts")
            }
            partitions = [("0", 500, 400, 390, rng.randrange(50), 2), ("1", None, None, None, None, 0)]
            records.append(
                {
                    **numbers,
                    "kind": "interval",
                    "at": at,
                    "consumer": "c",
                    "instance": instance,
                    "hub": "h",
                    "consumer_group": "$Default",
                    "seconds": round(rng.uniform(9, 11), 3),
                    "throttled": rng.randrange(5),
                    "checkpoints": 1,
                    "checkpoints_failed": 0,
                    "request_units": round(rng.uniform(0, 900), 3),
                    "written_units": round(rng.uniform(0, 900), 3),
                    "backlog_count": rng.randrange(1000),
                    "oldest_age_s": 0.5,
                    "paused": rng.random() < 0.2,
                    "partitions": partitions,
                    "rate_limit": None,
                }
            )
        records.append(
            {"kind": "checkpoint", "at": START, "consumer": "c", "instance": instance, "hub": "h"}
            | {"consumer_group": "$Default", "partition": "0", "sequence_number": 5, "left": 7}
        )
    return records


def test_flows_equal_sums_in_plain_python_and_partitions_become_gauges(spark) -> None:
    records = random_telemetry(random.Random(2))
    frame = spark.createDataFrame(rows_of(TELEMETRY, [*records, *records[:50]]), TELEMETRY)

    tables = run_states(telemetry(), frame)

    intervals = [record for record in records if record["kind"] == "interval"]
    assert tables["flows"].schema.names == FLOWS.names
    found = tables["flows"].collect()
    assert len({math.floor(record["at"].timestamp()) // 60 for record in intervals}) == sum(
        r.window == "1m" for r in found
    )
    for row in found:
        seconds = {"1m": 60, "1h": 3600, "1d": 86400}[row.window]
        start = row.window_start.timestamp()
        own = [r for r in intervals if start <= r["at"].timestamp() < start + seconds]
        begin = min(r["at"].timestamp() - r["seconds"] for r in own)
        covered = max(r["at"].timestamp() for r in own) - begin
        assert (len(own), len({r["instance"] for r in own})) == (row.intervals, row.instances)
        for name in ("received", "written", "dead_letters", "attempts", "throttled", "checkpoints"):
            assert sum(r[name] for r in own) == row[name]
        assert round(sum(r["request_units"] for r in own), 3) == row.request_units
        assert sum(r["received"] for r in own) / covered == pytest.approx(row.received_per_s, rel=1e-5)
        attempts, written_ = sum(r["attempts"] for r in own), sum(r["written"] for r in own)
        assert (row.throttled / attempts if attempts else None) == row.throttled_share
        assert (row.written_units / written_ if written_ else None) == row.request_units_per_record
        assert sum(r["paused"] for r in own) / len(own) == row.paused_share
    day = tables["gauges"].where("window = '1d'")
    counted = {
        (r.part, r.metric): r.samples
        for r in day.groupBy("part", "metric").agg(F.sum("samples").alias("samples")).collect()
    }
    assert counted["0", "consumer.lag"] == len(intervals)
    assert ("1", "consumer.lag") not in counted  # not known is no sample
    assert counted["0", "consumer.checkpoint_lag"] == 2
    assert counted["i2", "consumer.backlog"] == 250


def test_the_page_says_of_which_instances_it_does_not_know_the_end(spark) -> None:
    records = random_telemetry(random.Random(3))[:250]
    [instance] = {record["instance"] for record in records if record["kind"] == "interval"}
    killed = [
        {**record, "instance": "killed", "stopping": False, "rate_limit": 100.0} for record in records[:60]
    ]
    orderly = [{**record, "stopping": False} for record in records]
    orderly[-1] = {**orderly[-1], "stopping": True}
    assert orderly[-1]["kind"] == "interval"
    frame = spark.createDataFrame(rows_of(TELEMETRY, [*killed, *orderly]), TELEMETRY)
    tables = {name: table.persist() for name, table in run_states(telemetry(), frame).items()}

    text = page.build(tables, [], "").html()

    assert re.search(r"Without a final report.*?1 of 2 instances", text, re.DOTALL)
    [told] = re.findall(r"<tr>.*?</tr>", text[text.index("What is not known") :], re.DOTALL)[1:2]
    assert "killed" in told
    assert "1,500" in told, "15 s at its rate limit"
    assert instance not in text[text.index("What is not known") : text.index("At most 40 rows, UTC")]

    whole = {
        "gauges": tables["gauges"].where("part != 'killed'"),
        "flows": tables["flows"],
    }
    assert "final report" not in page.build(whole, [], "").html()
    for table in tables.values():
        table.unpersist()


def random_log(rng: random.Random, count: int = 400) -> list[dict]:
    """Decisions every half minute, effects among them, and an hour of silence."""
    records, capacity, at = [], 3, START
    for index in range(count):
        at += timedelta(seconds=3600 if index == count // 2 else rng.uniform(10, 50))
        wanted = max(1, capacity + rng.choice([0, 0, 0, 1, -1]))
        for target in ("plan-a", "db"):
            records.append(
                {"target": target, "at": at, "kind": "decision", "key": "decision", "current": capacity}
                | {"desired": wanted, "metrics": {"backlog": float(index)}}
            )
            if wanted != capacity:
                outcome = rng.choice(["applied", "applied", "failed"])
                reached = wanted if outcome == "applied" else None
                records.append(
                    {"target": target, "at": at + timedelta(seconds=5), "kind": "effect"}
                    | {
                        "key": f"effect-{outcome}-{index}",
                        "outcome": outcome,
                        "from_capacity": capacity,
                        "to_capacity": wanted,
                        "reached": reached,
                        "metrics": {},
                    }
                )
            if (
                wanted != capacity and index % 3 == 0
            ):  # a second delivery of the same action, and a check that finds it
                again = {
                    "outcome": "already_there",
                    "key": f"effect-already_there-{index}",
                    "reached": wanted,
                }
                records += [records[-1] | {"at": at + timedelta(seconds=after)} | again for after in (6, 7)]
        capacity = wanted
    return records


def actions_of(records: list[dict]) -> list[dict]:
    """Of each action's effects the first that moved the target, or else the first."""
    found: dict[tuple, dict] = {}
    order = lambda r: (r["reached"] is None, r["at"])
    for record in sorted((r for r in records if r["kind"] == "effect"), key=order):
        found.setdefault((record["target"], record["key"].rpartition("-")[2]), record)
    return [*found.values()]


def capacity_by_minute(records: list[dict], target: str) -> dict[int, tuple[float, float]]:
    """Seconds known and capacity-seconds per minute."""
    readings = sorted(
        (r["at"].timestamp(), r["current"] if r["kind"] == "decision" else r["reached"])
        for r in records
        if r["target"] == target and (r["current"] if r["kind"] == "decision" else r["reached"]) is not None
    )
    end = max(r["at"].timestamp() for r in records)
    found: dict[int, tuple[float, float]] = {}
    for (at, capacity), (following, _) in pairwise([*readings, (end, 0)]):
        until, now = min(following, at + HOLD, end), at
        while now < until:
            stop = min(until, (now // 60 + 1) * 60)
            known, integral = found.get(int(now // 60), (0.0, 0.0))
            found[int(now // 60)] = (known + stop - now, integral + capacity * (stop - now))
            now = stop
    return found


def test_capacity_hours_equal_a_plain_integral_and_silence_is_unknown(spark) -> None:
    records = random_log(random.Random(3))
    frame = spark.createDataFrame(rows_of(DECISIONS, records), DECISIONS)
    prices = job.Settings(inputs=Inputs(), prices={"db": 0.5}, request_unit_targets=frozenset({"db"}))

    tables = run_states(decisions(hold=HOLD * MICROS, with_samples=True), frame, prices)

    assert tables["scaling"].schema.names == SCALING.names
    found = tables["scaling"].collect()
    for target in ("plan-a", "db"):
        minutes = capacity_by_minute(records, target)
        for row in (row for row in found if row.target == target):
            first = int(row.window_start.timestamp() // 60)
            inside = range(first, first + {"1m": 1, "1h": 60, "1d": 1440}[row.window])
            known = sum(minutes.get(minute, (0, 0))[0] for minute in inside) / 3600
            hours = sum(minutes.get(minute, (0, 0))[1] for minute in inside) / 3600
            assert known == pytest.approx(row.known_hours, abs=1e-8)
            assert hours == pytest.approx(row.capacity_hours or 0.0, abs=1e-8)
            own = [r for r in records if r["target"] == target and int(r["at"].timestamp() // 60) in inside]
            assert sum(r["kind"] == "decision" for r in own) == row.decisions
            assert sum(r["kind"] == "decision" and r["desired"] > r["current"] for r in own) == row.wanted_out
            done = [r for r in actions_of(records) if r in own]
            moved = [r for r in done if r["reached"] is not None]
            assert sum(r["reached"] > r["from_capacity"] for r in moved) == row.scaled_out
            assert sum(r["reached"] < r["from_capacity"] for r in moved) == row.scaled_in
            assert sum(r["outcome"] == "failed" for r in done) == row.failed
            if target == "db" and row.capacity_hours is not None:
                assert (row.unit, row.capacity_hours / 100 * 0.5) == (row.unit, pytest.approx(row.cost))
    assert {(r.unit, r.cost) for r in found if r.target == "plan-a"} == {("instance", None)}
    spanned = (records[-1]["at"] - records[0]["at"]) / timedelta(hours=1)
    known = sum(row.known_hours for row in found if row.window == "1d" and row.target == "db")
    assert 0.74 < spanned - known < 0.76  # 45 minutes of the silent hour
    assert {r.subject for r in tables["gauges"].collect()} == {"plan-a", "db"}


def run_states(dataset, frame, prices=NO_PRICES):
    taken, _ = records_once(dataset, frame, EVER, ExitStack())
    return tables_of([taken], prices)


def test_batches_in_any_split_give_the_minutes_of_one_batch_and_late_records_are_kept(
    spark, tmp_path
) -> None:
    rng = random.Random(4)
    dataset = decisions(hold=HOLD * MICROS, with_samples=True)
    records = random_log(rng, 120)
    records.sort(key=lambda r: r["at"].timestamp() + rng.uniform(0, 300))  # up to five minutes out of order
    cuts = [0, len(records) // 3, 2 * len(records) // 3, len(records)]
    parts = [records[a:b] for a, b in pairwise(cuts)]
    parts[1] += parts[0][-3:]  # copies of open minutes
    straggler = {**min(records, key=lambda r: r["at"]), "at": START - timedelta(hours=1)}
    parts[2].append(straggler)

    stream = Incremental(
        dataset, str(tmp_path / "state"), late=600 * MICROS, latest=lambda: EVER, aside=str(tmp_path)
    )
    for number, part in enumerate(parts):
        batch = spark.createDataFrame(rows_of(DECISIONS, part), DECISIONS)
        stream.step(batch, number)
        if number == 1:
            stream.step(batch, number)  # again, as after a crash

    mark = latest_mark(spark, str(tmp_path / "state"), dataset)
    closed = datetime.fromtimestamp(mark.closed / 1e6, UTC)
    whole = run_states(dataset, spark.createDataFrame(rows_of(DECISIONS, records), DECISIONS))
    for table in dataset.tables:
        days = sources(dataset, table, mark)
        taken = records_of_days(spark, str(tmp_path / "state"), dataset, mark, days, table)
        frame = table_of(table, [taken], NO_PRICES)
        minutes = whole[table].where((F.col("window") == "1m") & (F.col("window_start") < F.lit(closed)))
        wanted = sorted(minutes.collect(), key=str)
        assert wanted == sorted(frame.where("window = '1m'").collect(), key=str)
        assert wanted
    assert (sum(map(len, parts)), 3, 1, 0) == (mark.read, mark.duplicates, mark.late, mark.ahead)
    assert spark.read.parquet(str(tmp_path / "late" / dataset.name)).count() == 1


def test_an_input_without_records_and_one_of_other_columns_are_errors_that_name_it(spark, tmp_path) -> None:
    empty, other = str(tmp_path / "empty"), str(tmp_path / "other")
    spark.createDataFrame([], METRICS).write.parquet(empty)
    spark.range(3).write.parquet(other)
    for path, text in (
        (empty, "--metrics holds no valid record"),
        (other, "missing"),
        (str(tmp_path / "no"), "does not exist; a file or a folder"),
    ):
        with pytest.raises(InputError, match=text):
            job.run(spark, job.Settings(inputs=Inputs(metrics=path), output=str(tmp_path / "out")))
    with pytest.raises(InputError, match="no input"):
        job.run(spark, job.Settings(inputs=Inputs()))


def test_of_a_delta_table_of_samples_only_what_is_live_is_aggregated(spark, tmp_path) -> None:
    path = str(tmp_path / "in")
    rows = [("plan", "backlog", START + timedelta(minutes=minute), float(minute)) for minute in range(5)]
    deltalake.write_deltalake(path, spark.createDataFrame(rows, METRICS).toArrow(), partition_by=["target"])
    deltalake.DeltaTable(path).delete("value >= 3")  # the file with all five stays on disk

    job.run(spark, job.Settings(inputs=Inputs(metrics=path), output=str(tmp_path / "out")))

    [day] = result_table(spark, str(tmp_path / "out"), "gauges").where("window = '1d' and max >= 2").collect()
    assert (day.subject, day.samples, day.max) == ("plan", 3, 2.0)
    with pytest.raises(InputError, match=r"is a Delta table.*leave --checkpoint out"):
        job.run(
            spark,
            job.Settings(
                inputs=Inputs(metrics=path), output=str(tmp_path / "o"), checkpoint=str(tmp_path / "c")
            ),
        )


@pytest.mark.usefixtures("results_elsewhere")
def test_what_became_of_samples_is_counted_where_spark_reads_them_too(spark, tmp_path) -> None:
    path, out = str(tmp_path / "in"), str(tmp_path / "out")
    late, ahead = START + timedelta(minutes=1), START + timedelta(days=2)
    rows = [(START, 1.0), (START, 2.0), (late, 1.0), (late, float("nan")), (None, 1.0), (ahead, 1.0)]
    spark.createDataFrame([("plan", "backlog", *row) for row in rows], METRICS).write.parquet(path)
    settings = job.Settings(inputs=Inputs(metrics=path), output=out, now=START + timedelta(days=1))

    job.run(spark, settings)

    [quality] = result_table(spark, out, "quality").collect()
    assert quality == ("metrics", 6, 1, 0, 1, 2)  # read, duplicates, late, ahead, invalid
    with pytest.raises(InputError, match="--metrics holds no valid record in the time asked for"):
        job.run(spark, replace(settings, since=START + timedelta(days=1)))
    assert result_table(spark, out, "gauges").count() == 4
