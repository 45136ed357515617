"""Which folders are listed for a stretch of time, and large files read in pieces: all of it once, none of it whole."""

import fnmatch
import gzip
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.sources.capture import files as capture_files
from spark_jobs.sources.capture.files import CaptureFiles
from spark_jobs.sources.capture.layout import DEFAULT, EARLY, CaptureLayout
from spark_jobs.sources.files.path_times import FileFilter
from spark_jobs.sources.records.app_insights import AppInsightsSource
from spark_jobs.sources.records.record_files import RecordFiles
from spark_jobs.sources.records.telemetry import ConsumerTelemetrySource
from tests.support.servers.capture_files import avro, record
from tests.unit.spark_jobs.sources.test_source_records import CHECKPOINT
from tidemark.analysis.errors import InputError

DAY = datetime(2026, 3, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 21, tzinfo=UTC)
LAYOUTS = (DEFAULT, "{EventHub}-{PartitionId}/{Year}-{Month}-{Day}/{Hour}{Minute}{Second}")


def path_of(layout, root, hub, partition, at):
    names = {"Namespace": "ns", "EventHub": hub, "PartitionId": partition}
    units = zip(
        ("Year", "Month", "Day", "Hour", "Minute", "Second"), f"{at:%Y %m %d %H %M %S}".split(), strict=True
    )
    return Path(root, layout.format(**names, **dict(units)) + ".avro")


def wanted_of(**options):
    return msgspec.json.encode(FileFilter(**options)).decode()


def listed(monkeypatch):
    """The folders that are listed from now on."""
    folders = []
    for name in ("ls", "find"):
        original = getattr(LocalFileSystem, name)

        def told(self, path, *arguments, original=original, name=name, **options):
            folders.append((name, path))
            return original(self, path, *arguments, **options)

        monkeypatch.setattr(LocalFileSystem, name, told)
    return folders


def place_of(each):
    """Of one partition the files lie deeper than those of others."""
    return "deep/er" if each[1] == "10" else "deep"


TIMES = st.datetimes(datetime(2025, 12, 30), datetime(2026, 3, 3), timezones=st.just(UTC))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.sets(st.tuples(st.sampled_from(["orders", "bills"]), st.sampled_from(["0", "1", "10"]), TIMES), min_size=1, max_size=8),
    st.one_of(st.none(), TIMES),
    st.one_of(st.none(), TIMES),
    st.sampled_from([None, "ORDERS"]),
    st.sampled_from([(), ("1", "10")]),
)  # fmt: skip
def test_files_that_may_hold_what_is_wanted_are_found_and_no_others(
    tmp_path_factory, layout, places, since, until, hub, partitions
):
    root = tmp_path_factory.mktemp("lake")
    for place in places:
        file = path_of(layout, root / place_of(place), *place)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    wanted = wanted_of(since=since, until=until, hub=hub, partitions=partitions, lag=3600.0)

    tasks = CaptureFiles.of({"path": str(root), "layout": layout, "wanted": wanted}).tasks()

    def is_wanted(name, partition, at):
        hour = at.replace(minute=0, second=0, microsecond=0)
        return (
            (hub is None or name == "orders")
            and (not partitions or partition in partitions)
            and (since is None or hour + timedelta(hours=1) + EARLY > since)
            and (until is None or hour - timedelta(hours=1) < until)
        )

    expected = {str(path_of(layout, root / place_of(place), *place)) for place in places if is_wanted(*place)}
    found = {file.name for task in tasks for file in task}
    alike = len({place_of(place) for place in places}) == 1
    assert found == expected if alike else found >= expected


def test_a_day_of_two_years_lists_the_folders_of_that_day(tmp_path, monkeypatch):
    for partition in ("0", "1"):
        for day in range(730):
            file = path_of(DEFAULT, tmp_path, "orders", partition, DAY - timedelta(days=day, hours=-12))
            file.parent.mkdir(parents=True)
            file.touch()
    folders = listed(monkeypatch)
    wanted = wanted_of(since=DAY, until=DAY + timedelta(days=1), hub="orders", lag=3600.0)
    files = CaptureFiles.of({"path": str(tmp_path), "wanted": wanted})

    files.check()
    found = [file.name for task in files.tasks() for file in task]

    assert [name.rsplit("/")[-7] for name in found] == ["0", "1"]
    # Down to any file twice, to learn the depth; then two partitions with two months of two years.
    assert len(folders) < 60
    assert not [
        path for name, path in folders if name == "find" and path.count("/") < found[0].count("/") - 3
    ]


def test_a_folder_with_files_of_other_hubs_only_is_told(tmp_path):
    file = path_of(DEFAULT, tmp_path, "bills", "0", DAY)
    file.parent.mkdir(parents=True)
    file.touch()
    files = CaptureFiles.of({"path": str(tmp_path), "wanted": wanted_of(since=NOW, hub="orders")})

    with pytest.raises(InputError, match="are of the hub 'bills', none is of 'orders'"):
        files.check()
    CaptureFiles.of({"path": str(tmp_path), "wanted": wanted_of(since=NOW, hub="BILLS")}).check()


def test_telemetry_is_listed_by_the_hours_of_its_records(tmp_path, monkeypatch):
    for hour in range(48):
        at = DAY + timedelta(hours=hour)
        folder = tmp_path / f"date={at:%Y-%m-%d}" / f"hour={at:%H}"
        folder.mkdir(parents=True)
        (folder / "a-1.jsonl").touch()
    folders = listed(monkeypatch)
    wanted = wanted_of(since=DAY + timedelta(hours=3, minutes=20), until=DAY + timedelta(hours=5))

    tasks = RecordFiles.of(ConsumerTelemetrySource, {"path": str(tmp_path), "wanted": wanted}).tasks()

    assert [file.name.split("/")[-2] for task in tasks for file in task] == ["hour=03", "hour=04"]
    assert {path.rpartition("/")[2] for _, path in folders} == {
        *(tmp_path.name, "date=2026-03-01", "hour=03", "hour=04")
    }
    nowhere = {"path": str(tmp_path / "no"), "wanted": wanted_of(since=DAY)}
    with pytest.raises(InputError, match="there is no folder"):
        RecordFiles.of(ConsumerTelemetrySource, nowhere).tasks()
    with pytest.raises(InputError, match="of the time asked for"):
        RecordFiles.of(
            ConsumerTelemetrySource,
            {"path": str(tmp_path), "wanted": wanted_of(since=DAY + timedelta(days=9))},
        ).tasks()


@given(TIMES, st.integers(0, 24 * 500), st.sampled_from(LAYOUTS), st.integers(-48, 24 * 500))
def test_patterns_for_spark_cover_what_the_walk_takes(since, hours, layout, offset):
    wanted = FileFilter(since, since + timedelta(hours=hours), "Orders", ("0", "7"), lag=7200.0)
    at = since + timedelta(hours=offset)
    patterns = CaptureLayout(layout).globs(wanted, NOW)
    path = path_of(layout, "", "oRDERS", "7", at).as_posix()

    def matches(pattern):
        text = re.sub(r"\{([^}]*)\}", lambda found: "[" + found[1].replace(",", "") + "]", pattern)
        return fnmatch.fnmatchcase("/".join(path.split("/")[: text.count("/") + 1]), text)

    begun = since.replace(minute=0, second=0, microsecond=0) - EARLY <= at
    covered = begun and at < since + timedelta(hours=hours + 2)
    if covered or not any(map(matches, patterns)):
        assert covered == any(map(matches, patterns))
    assert len(patterns) < 6 * 120  # hours, days and months at both ends, from six depths


def test_a_year_is_one_pattern_and_without_a_time_there_is_none():
    year = FileFilter(datetime(2025, 1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))

    assert CaptureLayout().globs(year, NOW) == [
        *("*/*/*/*/*/2025", "*/*/*/*/2025", "*/*/*/2025"),
        *("*/*/2025", "*/2025", "2025"),
    ]
    assert CaptureLayout().globs(FileFilter(hub="orders"), NOW) == []


# -- pieces


def rows_of(files):
    return [row for task in files.tasks() for batch in files.batches(task) for row in batch.to_pylist()]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 120),
    st.integers(20, 900),
    st.integers(100, 5_000),
    st.sampled_from(["null", "deflate"]),
)
def test_a_capture_file_in_pieces_gives_every_event_once(tmp_path_factory, count, block, size, codec):
    root = tmp_path_factory.mktemp("lake")
    file = path_of(DEFAULT, root, "orders", "0", DAY)
    file.parent.mkdir(parents=True)
    file.write_bytes(avro([record(n, body=bytes(n)) for n in range(count)], block=block, codec=codec))
    options = {"path": str(root), "columns": "sequence_number,body"}

    found = rows_of(CaptureFiles.of({**options, "partitionBytes": str(size)}))

    assert found == rows_of(CaptureFiles.of(options))
    assert [row["sequence_number"] for row in found] == list(range(count))


def test_a_task_reads_only_its_piece_of_a_large_file(tmp_path, monkeypatch):
    """What one task decodes is bounded by partitionBytes, however large the file."""
    file = path_of(DEFAULT, tmp_path, "orders", "0", DAY)
    file.parent.mkdir(parents=True)
    file.write_bytes(avro([record(n, body=bytes(400)) for n in range(2_000)], block=2_000))
    decoded = []
    original = capture_files.decode_file

    def told(data, *arguments):
        decoded.append(data.nbytes)
        return original(data, *arguments)

    monkeypatch.setattr(capture_files, "decode_file", told)
    files = CaptureFiles.of({"path": str(tmp_path), "partitionBytes": "100000"})

    assert len(rows_of(files)) == 2_000
    assert len(decoded) == file.stat().st_size // 100_000 >= 8
    assert max(decoded) < 130_000


def test_of_a_large_damaged_file_the_piece_is_set_aside_and_the_rest_is_read(tmp_path):
    lake, aside = tmp_path / "lake", tmp_path / "aside"
    file = path_of(DEFAULT, lake, "orders", "0", DAY)
    file.parent.mkdir(parents=True)
    data = bytearray(avro([record(n, body=bytes(100)) for n in range(1_000)], block=1_000, codec="deflate"))
    damaged = len(data) // 2
    data[damaged : damaged + 4] = b"\xff\xff\xff\xff"
    file.write_bytes(bytes(data))
    options = {"path": str(lake), "partitionBytes": str(len(data) // 8)}
    with pytest.raises(InputError, match=r"00\.avro', its bytes \d+ \d+ cannot be read"):
        rows_of(CaptureFiles.of(options))

    found = [
        row["sequence_number"] for row in rows_of(CaptureFiles.of({**options, "quarantine": str(aside)}))
    ]

    [reason] = [msgspec.json.decode(path.read_bytes()) for path in aside.rglob("*.reason.json")]
    assert len(found) + reason["events"] >= 1_000 - 40  # blocks behind the damage cannot be counted
    assert 700 < len(found) < 1_000
    assert reason["file"] == str(file)
    [copy] = aside.rglob("*.avro")
    assert re.search(r"00\.bytes-\d+-\d+\.avro$", copy.name)
    assert copy.stat().st_size < len(data) // 4


def test_a_large_file_without_a_header_is_set_aside_whole_and_once(tmp_path):
    lake, aside = tmp_path / "lake", tmp_path / "aside"
    file = path_of(DEFAULT, lake, "orders", "0", DAY)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no avro" * 1_000)
    options = {"path": str(lake), "partitionBytes": "1000"}

    assert rows_of(CaptureFiles.of({**options, "quarantine": str(aside)})) == []
    [copy] = aside.rglob("*.avro")
    assert copy.read_bytes() == file.read_bytes()
    with pytest.raises(InputError, match="begins with"):
        rows_of(CaptureFiles.of(options))


LINES = st.lists(st.one_of(st.just(b"{}"), st.just(b""), st.binary(max_size=40)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(LINES, st.integers(10, 400), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_lines_of_a_file_in_pieces_are_each_read_once(tmp_path_factory, lines, size, end, packed):
    root = tmp_path_factory.mktemp("lake")
    good = msgspec.json.encode(CHECKPOINT)
    texts = [good if line == b"{}" else b"x" + line.replace(b"\n", b" ") if line else b"" for line in lines]
    (root / "in").mkdir()
    whole = end.join(texts)
    (root / "in" / f"a.jsonl{'.gz' * packed}").write_bytes(gzip.compress(whole) if packed else whole)
    options = {"path": str(root / "in"), "quarantine": str(root / "aside"), "partitionBytes": str(size)}

    found = rows_of(RecordFiles.of(ConsumerTelemetrySource, options)) if texts else []

    rejected = b"".join(path.read_bytes() for path in root.rglob("*.rejects")).split(b"\n")[:-1]
    assert len(found) == lines.count(b"{}")
    told = [text for text in texts if text.strip() and text != good]
    assert sorted(rejected) == sorted(text.rstrip(b"\r\n") for text in told)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", " [" + ",".join(['{"timestamp":"2026-11-20T08:00:00Z","name":"E","itemCount":1}'] * 50) + "]"),
        ("a.csv", "timestamp,name,itemCount\n" + "2026-11-20T08:00:00Z,E,1\n" * 50),
        (
            "a.json",
            '\ufeff{"tables":[{"columns":[{"name":"timestamp"},{"name":"name"},{"name":"itemCount"}],"rows":['
            + ",\n".join(['["2026-11-20T08:00:00Z","E",1]'] * 50)
            + "]}]}",
        ),
        ("PT1H.json", '{"timestamp":"2026-11-20T08:00:00Z","name":"E","itemCount":1}\n' * 50),
    ],
)  # fmt: skip
def test_what_is_no_lines_is_one_tasks_and_read_once(tmp_path, name, text):
    """One task's is a file, but not all that it holds at once: a list of a gigabyte makes twenty of rows."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / f"small-{name}").write_text("")
    files = RecordFiles.of(AppInsightsSource, {"path": str(tmp_path), "partitionBytes": "200"})

    assert len(rows_of(files)) == 100
    assert max(batch.num_rows for task in files.tasks() for batch in files.batches(task)) < 6


def test_files_are_one_tasks_together_by_what_is_in_them(tmp_path):
    for name, size in {"a.csv": 10, "b.csv.gz": 100, "c.csv": 700, "d.csv": 20, "e.csv": 20}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    files = RecordFiles.of(AppInsightsSource, {"path": str(tmp_path), "partitionBytes": "400"})

    tasks = [[Path(file.name).name for file in task] for task in files.tasks()]

    assert tasks == [["a.csv"], ["b.csv.gz"], ["c.csv"], ["d.csv", "e.csv"]]


def test_an_option_that_is_none_is_told():
    with pytest.raises(InputError, match="the option wanted is"):
        CaptureFiles.of({"path": "x", "wanted": '{"since": "yesterday"}'})
