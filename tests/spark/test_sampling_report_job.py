"""The article's story as an export: from its files to the findings, the tables and the page."""

import json
import re
import uuid
from datetime import UTC, date, datetime, timedelta

import duckdb
import numpy as np
import pytest

from spark_jobs.cli import run_command
from spark_jobs.sampling_report import job
from spark_jobs.sampling_report.job import Settings, command, run
from spark_jobs.sampling_report.verdicts import Kind
from spark_jobs.sources.records.app_insights import read_app_insights
from spark_jobs.tables.results import result_table
from tests.spark.conftest import EAST, WEST
from tests.spark.result_files import files
from tidemark.analysis.errors import InputError

pytestmark = pytest.mark.timeout(600)

FIRST = datetime(2017, 5, 6, tzinfo=UTC)  # a Saturday
WEEK = [0.3, 0.25, 1.0, 1.05, 1.02, 1.0, 0.95]
UPGRADE, HOLIDAY = 14, 19  # days after the first


def story(seed, *, rate=0.3):
    """Events of 22 days; from the upgrade of the SDK on, each operation is kept with probability `rate`."""
    rng = np.random.default_rng(seed)
    rows = []
    for day in range(22):
        count = 220 * WEEK[day % 7] * (0.35 if day == HOLIDAY else 1) * np.exp(rng.normal(0, 0.03))
        new = day >= UPGRADE
        weight = round(1 / rate) if new else 1
        for place in np.flatnonzero(rng.random(round(count)) < 1 / weight):
            at = FIRST + timedelta(days=day, seconds=int(rng.integers(86_400)))
            rows.append(
                (
                    at,
                    weight,
                    float(rng.integers(1, 9)),
                    f"{day}-{place}",
                    "dotnet:2.3.0" if new else "dotnet:2.1.0",
                )
            )
    return rows


def classic(rows):
    return [
        {
            "timestamp": at.isoformat(),
            "name": "EventXReceived",
            "itemCount": weight,
            "customMeasurements": {"EventXReceived_Count": value},
            "customDimensions": {"region": "eu"},
            "operation_Id": operation,
            "sdkVersion": sdk,
            "cloud_RoleName": "ingest",
        }
        for at, weight, value, operation, sdk in rows
    ]


def workspace(rows):
    return [
        {
            "TimeGenerated": at.isoformat(),
            "Name": "EventXReceived",
            "ItemCount": weight,
            "Measurements": {"EventXReceived_Count": value},
            "Properties": {"region": "eu"},
            "OperationId": operation,
            "SDKVersion": sdk,
            "AppRoleName": "ingest",
            "Type": "AppEvents",
        }
        for at, weight, value, operation, sdk in rows
    ]


def export(folder, records):
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def test_the_article_is_told_again_from_an_export(spark, tmp_path, capsys):
    """Counts as DuckDB has them, the upgrade as the day and as the cause, the queries beside the plots."""
    rows = story(1)
    source = export(tmp_path / "export", classic(rows))
    output = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        run_command(
            command,
            [
                *("--input", source, "--measurement", "EventXReceived_Count", "--output", str(output)),
                *(
                    "--from",
                    "2017-05-06",
                    "--to",
                    "2017-05-28",
                    "--allow",
                    "lost=0",
                    "--allow",
                    "sampled=10%",
                ),
            ],
        )
    told = capsys.readouterr().err
    assert ended.value.code == 3, told
    assert re.search(
        r"^check failed: sampled [\d,]+ of [\d,]+, allowed 0\.1 of all; report: ", told, re.MULTILINE
    )

    [finding] = duckdb.sql(f"SELECT day, kind, changed FROM '{files(output, 'findings')[0]}'").fetchall()
    assert finding[:2] == ("2017-05-20", "sampled")
    assert finding[2].startswith(
        "sdk_version changed from 'dotnet:2.1.0' to 'dotnet:2.3.0' for 100 % of the events"
    )

    expected = duckdb.sql(f"""
        SELECT date_trunc('day', "timestamp"::TIMESTAMP) AS day, count(*), sum("itemCount"), 100 / avg("itemCount"),
            sum("customMeasurements"."EventXReceived_Count"),
            sum("itemCount" * "customMeasurements"."EventXReceived_Count")
        FROM read_json('{source}/*.jsonl', format = 'newline_delimited') GROUP BY day ORDER BY day
        """).fetchall()
    columns = "bin_start::TIMESTAMP, rows, corrected_count, sampling_rate, raw_sum, corrected_sum"
    found = duckdb.sql(
        f"SET TimeZone = 'UTC'; SELECT {columns} FROM '{files(output, 'bins')[0]}' ORDER BY 1"
    ).fetchall()
    assert len(found) == 22
    for one, other in zip(found, expected, strict=True):
        assert one[0].date() == other[0].date()
        assert one[1:] == pytest.approx(other[1:])

    page = (output / "sampling-report-eventxreceived.html").read_text()
    assert "Saturday, May 20, 2017: the sampling rate fell to " in page
    assert "sampled, nothing lost" in page
    assert "todouble(customMeasurements[&quot;EventXReceived_Count&quot;]) * itemCount" in page
    assert "todouble(Measurements[&quot;EventXReceived_Count&quot;]) * ItemCount" in page
    assert {"count.png", "sum.png", "sampling-rate.png"} <= {file.name for file in output.iterdir()}


@pytest.mark.usefixtures("without_pictures")
def test_lost_events_of_a_workspace_are_lost_and_hours_are_bins_as_well(spark, tmp_path, set_zone):
    """The same raw counts, but nothing tells of sampling."""
    set_zone(EAST)
    rows = [(at, 1, value, operation, "2.3") for at, _, value, operation, _ in story(2)]
    source = export(tmp_path / "export", workspace(rows))
    settings = Settings(
        input=source,
        bin=timedelta(hours=6),
        since=FIRST,
        until=FIRST + timedelta(days=22),
        output=str(tmp_path / "out"),
    )
    findings, path = run(settings, spark)

    assert [(finding.day, finding.kind) for finding in findings.analysis.findings] == [
        (date(2017, 5, 20), Kind.LOST)
    ]
    assert findings.rows == len(rows)
    [(bins, counted)] = duckdb.sql(
        f"SELECT count(*), sum(rows) FROM '{files(tmp_path / 'out', 'bins')[0]}'"
    ).fetchall()
    last = max(row[0] for row in rows)  # where the export ends, even if --to is later
    assert (bins, counted) == ((last - FIRST) // timedelta(hours=6) + 1, len(rows))
    page = (tmp_path / "out" / "sampling-report-eventxreceived.html").read_text()
    assert "bin(TimeGenerated, 6h)" in page
    assert "events are missing" in page

    set_zone(WEST)
    again, place = run(settings, spark)
    assert (again.rows, again.analysis.findings, place) == (findings.rows, findings.analysis.findings, path)


def counting(folder):
    """`read_app_insights` whose tasks tell in the folder how many rows they have parsed."""
    folder.mkdir()

    def told(batches):
        for batch in batches:
            (folder / uuid.uuid4().hex).write_text(str(batch.num_rows))
            yield batch

    def read(*given, **options):
        frame = read_app_insights(*given, **options)
        return frame.mapInArrow(told, frame.schema)

    return read


@pytest.mark.usefixtures("without_pictures")
def test_files_that_overlap_give_what_they_give_without_the_overlap_and_each_is_parsed_once(
    spark, tmp_path, capsys, monkeypatch
):
    records = [{**record, "itemId": f"i{place}"} for place, record in enumerate(classic(story(4)))]
    source = export(tmp_path / "export", records[:2000])
    export(tmp_path / "export" / "more", records[1500:])
    once = export(tmp_path / "once", records)
    output = tmp_path / "out"
    assert len(records) > 2000

    parsed = tmp_path / "parsed"
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(job, "read_app_insights", counting(parsed))
        run_command(command, ["--input", source, "--output", str(output)])
    assert sum(int(file.read_text()) for file in parsed.iterdir()) == len(records) + 500
    told = capsys.readouterr().out
    alone, _ = run(Settings(input=once, output=str(tmp_path / "alone")), spark)

    assert "500 rows are in more than one file of the export; each counts once" in told
    assert f"{date(2017, 5, 20)}  sampled\n" in told
    assert "copies left out" in (output / "sampling-report-eventxreceived.html").read_text()
    assert (alone.rows, alone.copies) == (len(records), 0)
    rows, expected = (
        sorted(result_table(spark, str(folder), "bins").collect()) for folder in (output, tmp_path / "alone")
    )
    assert len(rows) == 22
    assert rows == expected


def test_what_is_not_in_the_export_is_named_with_what_is(spark, tmp_path):
    records = classic(story(3)[:5])
    records[0]["name"] = "Other"
    source = export(tmp_path / "export", records)
    output = str(tmp_path / "out")

    with pytest.raises(InputError, match=r"--event is not given; .* holds 2: 'EventXReceived', 'Other'"):
        run(Settings(input=source, output=output), spark)
    with pytest.raises(InputError, match=r"--event 'X' is not there"):
        run(Settings(input=source, event="X", output=output), spark)
    with pytest.raises(
        InputError, match=r"--measurement 'points' is in no event; there are: 'EventXReceived_Count'"
    ):
        run(Settings(input=source, event="Other", measurement="points", output=output), spark)
    with pytest.raises(InputError, match="none of the events between --from and --to"):
        run(Settings(input=source, event="Other", since=FIRST + timedelta(days=99), output=output), spark)
    with pytest.raises(InputError, match=r"--bin 0:00:01 gives .* bins; at most 20,000"):
        run(
            Settings(
                input=source,
                event="Other",
                bin=timedelta(seconds=1),
                until=FIRST + timedelta(days=9),
                output=output,
            ),
            spark,
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bin", "often"], "--bin: found 'often'"),
        (["--from", "May"], "--from is 'May'"),
        (["--from", "2026-02-01", "--to", "2026-01-01"], "--to .* must be after --from"),
        (["--ignore", "25.12."], "--ignore is '25.12.'"),
        (["--least-change", "2"], "--least-change is 2.0"),
        (["--minimum-days", "1"], "--minimum-days is 1"),
        (["--format", "csv"], "--format .* is 'csv'"),
    ],
)
def test_an_option_at_fault_is_told_before_anything_is_read(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command(command, ["--input", "nowhere", *arguments])

    assert ended.value.code == 1
    assert re.search(message, capsys.readouterr().err)
