"""`tidemark telemetry-aggregation`: what it reads, leaves out, writes and refuses. Its numbers are tested with the tasks'."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from spark_jobs.telemetry_aggregation import local
from tidemark.__main__ import PARTS, command_line
from tidemark.analysis.errors import InputError, JobError

START = datetime(2026, 11, 20, 8, tzinfo=UTC)
KINDS = {
    "target": pa.string(),
    "metric": pa.string(),
    "at": pa.timestamp("us", "UTC"),
    "value": pa.float64(),
}


def write(path, seconds, value=1.0, *, kinds=KINDS, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "target": ["plan"] * len(seconds),
        "metric": ["backlog"] * len(seconds),
        "at": [START + timedelta(seconds=second) for second in seconds],
        "value": [value] * len(seconds),
    }
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in kinds.items()})
    pq.write_table(table, path, **options)


def test_what_is_ahead_of_the_clock_or_no_number_is_left_out_and_counted(tmp_path):
    write(tmp_path / "in" / "a.parquet", [0, 1, 61, 3000])
    write(tmp_path / "in" / "b.parquet", [1, 2], float("inf"))
    write(tmp_path / "in" / "_temporary" / "c.parquet", [5])

    counts = local.run(tmp_path / "in", tmp_path / "out", latest=START + timedelta(seconds=100))

    assert counts == local.Counts(read=6, duplicates=0, late=0, ahead=1, invalid=2)
    gauges = pq.read_table(tmp_path / "out" / "gauges.parquet").to_pylist()
    assert [(row["window"], row["samples"]) for row in gauges] == [("1m", 2), ("1m", 1), ("1h", 3), ("1d", 3)]
    assert pq.read_table(tmp_path / "out" / "quality.parquet").to_pylist() == [
        {"input": "metrics", **counts._asdict()}
    ]


def test_a_file_without_statistics_is_read_and_the_time_is_bounded(tmp_path):
    write(tmp_path / "a.parquet", range(300), write_statistics=False)

    counts = local.run(
        tmp_path / "a.parquet",
        tmp_path / "out",
        since=START + timedelta(seconds=60),
        until=START + timedelta(seconds=180),
        latest=START + timedelta(days=1),
        windows={"1h": local.WINDOWS["1h"]},
    )

    assert counts.read == 120
    rows = pq.read_table(tmp_path / "out" / "gauges.parquet").to_pylist()
    assert [(row["window"], row["first_at"]) for row in rows] == [("1h", START + timedelta(seconds=60))]


def test_int96_times_without_statistics_give_the_same_tables_and_wait_for_no_later_file(tmp_path):
    for number in range(4):
        write(tmp_path / "plain" / f"{number}.parquet", range(number * 600, number * 600 + 600, 10))
        at = tmp_path / "int96" / f"{number}.parquet"
        write(at, range(number * 600, number * 600 + 600, 10), use_deprecated_int96_timestamps=True)
    counts = [
        local.run(tmp_path / kind, tmp_path / f"{kind}-out", latest=START + timedelta(days=1))
        for kind in ("plain", "int96")
    ]

    tables = [pq.read_table(tmp_path / f"{kind}-out" / "gauges.parquet") for kind in ("plain", "int96")]
    assert (counts[0], tables[0]) == (counts[1], tables[1])
    spans = [[group.times for group in local.row_groups_of(tmp_path / kind)] for kind in ("plain", "int96")]
    assert spans[0] == spans[1]


def far(path, *micros, options=None):
    write(path, [0] * len(micros))
    table = pq.read_table(path)
    at = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(table.set_column(2, "at", at), path, **(options or {}))


NOW = round(START.timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("micros", "ahead", "invalid"),
    [
        ((NOW, (1 << 62) + 5), 1, 0),
        ((NOW, (1 << 63) - 1), 1, 0),
        ((NOW, 1 << 62, (1 << 62) - 1), 2, 0),
        ((NOW, -(1 << 62) - 5), 0, 1),
        ((NOW, -(1 << 63) + 1), 0, 1),
        ((NOW, -(1 << 63) + 1, None), 0, 2),
        ((NOW, None), 0, 1),
    ],
)
@pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
def test_a_time_that_no_calendar_has_is_counted(tmp_path, micros, ahead, invalid, options):
    far(tmp_path / "a.parquet", *micros, options=options)

    counts = local.run(tmp_path / "a.parquet", tmp_path / "out", latest=START + timedelta(days=1))

    assert counts == local.Counts(read=len(micros), ahead=ahead, invalid=invalid)


@pytest.mark.parametrize("other", [NOW + 10**12, -(1 << 62) - 5, None])
def test_samples_without_a_time_are_counted_also_in_files_of_which_nothing_else_is_read(tmp_path, other):
    far(tmp_path / "in" / "a.parquet", NOW)
    far(tmp_path / "in" / "b.parquet", other, None)

    counts = local.run(tmp_path / "in", tmp_path / "out", latest=START + timedelta(days=1))

    ahead = int(other == NOW + 10**12)
    assert counts == local.Counts(read=3, ahead=ahead, invalid=2 - ahead)


def test_a_year_that_nanoseconds_do_not_hold_is_no_other_year(tmp_path):
    far(
        tmp_path / "a.parquet",
        NOW,
        NOW + 700 * 365 * 86_400 * 1_000_000,
        options={"use_deprecated_int96_timestamps": True},
    )

    counts = local.run(tmp_path / "a.parquet", tmp_path / "out", latest=START + timedelta(days=1))

    assert counts == local.Counts(read=2, ahead=1)


@pytest.mark.parametrize("more", [1, -1])
def test_a_row_group_that_does_not_have_the_rows_that_it_says_is_refused(tmp_path, monkeypatch, more):
    write(tmp_path / "a.parquet", [0, 1, 2])
    [group] = local.row_groups_of(tmp_path / "a.parquet")
    monkeypatch.setattr(local, "row_groups_of", lambda _: [group._replace(rows=3 + more)])

    with pytest.raises(
        InputError, match=f"is damaged: row group 0 has {3 + more} rows, of which 3 can be read"
    ):
        local.run(tmp_path / "a.parquet", tmp_path / "out", latest=START + timedelta(days=1))
    assert not list((tmp_path / "out").glob("*"))


def test_rows_that_are_in_no_count_publish_nothing(tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", [0, 1, 2])
    monkeypatch.setattr(local, "count_within", lambda *_: 1)

    with pytest.raises(
        JobError, match=r"3 rows were read, and the counts are of 4 \(counted 4\): nothing is published"
    ):
        local.run(tmp_path / "a.parquet", tmp_path / "out", latest=START + timedelta(days=1))
    assert not list((tmp_path / "out").glob("*"))


def test_of_times_in_nanoseconds_microseconds_are_taken(tmp_path):
    write(tmp_path / "a.parquet", [0, 1])
    table = pq.read_table(tmp_path / "a.parquet")
    micros = [int(moment.timestamp()) * 1_000_000 for moment in table.column("at").to_pylist()]
    nanos = pa.array([micro * 1000 + 700 for micro in micros], pa.timestamp("ns", "UTC"))
    pq.write_table(table.set_column(2, "at", nanos), tmp_path / "a.parquet")

    for latest in (
        START + timedelta(days=1),
        START + timedelta(seconds=1),
    ):  # the second sample is ahead of the clock
        counts = local.run(tmp_path / "a.parquet", tmp_path / "out", latest=latest)

        assert counts.read == 2
        first = pq.read_table(tmp_path / "out" / "gauges.parquet").to_pylist()[0]
        assert (first["samples"], first["first_at"]) == (2 - counts.ahead, START)


def test_names_that_are_all_missing_are_counted_as_invalid_beside_others(tmp_path):
    write(tmp_path / "in" / "a.parquet", [0, 1])
    table = pq.read_table(tmp_path / "in" / "a.parquet")
    nameless = table.set_column(0, "target", pa.nulls(2, pa.string()))
    pq.write_table(nameless, tmp_path / "in" / "b.parquet")

    counts = local.run(tmp_path / "in", tmp_path / "out", latest=START + timedelta(days=1))

    assert counts == local.Counts(read=4, invalid=2)


def test_a_time_in_which_there_is_nothing_is_refused(tmp_path):
    write(tmp_path / "in" / "a.parquet", [0])

    with pytest.raises(InputError, match="no valid record in the time asked for"):
        local.run(
            tmp_path / "in",
            tmp_path / "out",
            since=START + timedelta(days=2),
            latest=START + timedelta(days=9),
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_a_run_that_fails_leaves_the_tables_of_the_one_before(tmp_path):
    write(tmp_path / "in" / "a.parquet", [0])
    local.run(tmp_path / "in", tmp_path / "out", latest=START + timedelta(days=1))
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    (tmp_path / "in" / "b.parquet").write_bytes(b"PAR1 no footer")

    with pytest.raises(InputError, match=r"b\.parquet' cannot be read"):
        local.run(tmp_path / "in", tmp_path / "out", latest=START + timedelta(days=1))

    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda folder: folder.mkdir(), "holds no Parquet files"),
        (lambda folder: (folder / "_delta_log").mkdir(parents=True), "is a Delta table"),
        (lambda folder: write(folder / "a.parquet", [0], kinds={"at": KINDS["at"]}), "'target': 'missing'"),
        (lambda folder: write(folder / "a.parquet", []), "no valid record"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_by_name(tmp_path, made, told):
    made(tmp_path / "in")

    with pytest.raises(InputError, match=told):
        local.run(tmp_path / "in", tmp_path / "out", latest=START)


def test_the_command_needs_no_other_part_and_refuses_windows_there_are_not(tmp_path):
    write(tmp_path / "in" / "a.parquet", [0])
    app = command_line({"spark": PARTS["spark"]})
    argv = ["telemetry-aggregation", "--metrics", str(tmp_path / "in"), "--output", str(tmp_path / "out")]

    done = CliRunner().invoke(app, [*argv, "--no-page"])
    refused = CliRunner().invoke(app, [*argv, "--windows", "1m,2h"])

    assert (done.exit_code, "read 1," in done.output) == (0, True)
    assert not list(tmp_path.rglob("*.html"))
    assert refused.exit_code == 1
    assert "--windows is '1m,2h'; accepted: one or more of 1m, 1h, 1d" in refused.output


@pytest.mark.parametrize(
    ("windows", "by", "first"), [("1m,1h,1d", "day", "2026-11-20"), ("1h", "hour", "2026-11-20 08:00")]
)
def test_the_page_shows_the_highest_series_and_what_to_run_next_and_the_check_fails(
    tmp_path, windows, by, first
):
    for number in range(6):
        kinds = {**KINDS, "target": pa.dictionary(pa.int32(), pa.string())}
        write(tmp_path / "in" / f"{number}.parquet", range(number, 600, 30), float(number), kinds=kinds)
        file = tmp_path / "in" / f"{number}.parquet"
        table = pq.read_table(file)
        names = pa.array([f"plan-{number}"] * len(table)).dictionary_encode()
        pq.write_table(table.set_column(0, "target", names), file)
    write(tmp_path / "in" / "bad.parquet", [1], float("nan"))
    app = command_line({"spark": PARTS["spark"]})

    done = CliRunner().invoke(
        app,
        [
            *("telemetry-aggregation", "--metrics", str(tmp_path / "in"), "--output", str(tmp_path / "out")),
            *("--windows", windows, "--allow", "invalid=0"),
        ],
    )

    assert done.exit_code == 3, done.output
    page = tmp_path / "out" / "telemetry-aggregation.html"
    assert f"check failed: invalid 1, allowed 0; report: {page}" in done.output
    assert (
        f"next: tidemark spark telemetry-aggregation --metrics {tmp_path / 'in'} --decisions" in done.output
    )
    text = page.read_text()
    assert "2026-11-20 08:00 to 2026-11-20 08:" in text
    assert f"<th>{by}</th>" in text
    assert f"<td>{first}</td><td>plan-5</td>" in text
    assert "The 4 series with the highest peaks" in text
    assert (tmp_path / "out" / "backlogs.png").stat().st_size > 1000


def test_a_sample_that_no_plot_can_show_costs_no_table_and_no_check(tmp_path):
    write(tmp_path / "in" / "a.parquet", [0], 1.797e308)
    write(tmp_path / "in" / "b.parquet", [90], float("nan"))
    argv = ["telemetry-aggregation", "--metrics", str(tmp_path / "in"), "--output", str(tmp_path / "out")]

    done = CliRunner().invoke(command_line({"spark": PARTS["spark"]}), [*argv, "--allow", "invalid=0"])

    assert done.exit_code == 3, done.output
    assert f"its tables in {tmp_path / 'out'} are complete" in " ".join(done.output.split())
    assert f"check failed: invalid 1, allowed 0; report: {tmp_path / 'out'}" in done.output
    assert len(pq.read_table(tmp_path / "out" / "gauges.parquet")) == 3


TEXT_DICTIONARY = pa.dictionary(pa.int32(), pa.large_string())
ACCEPTED = {
    "large text": {"kinds": {"target": pa.large_string(), "metric": pa.large_string()}},
    "views": {"kinds": {"target": pa.string_view()}},
    "dictionaries": {"kinds": {"target": TEXT_DICTIONARY, "metric": pa.dictionary(pa.int8(), pa.string())}},
    "milliseconds": {"kinds": {"at": pa.timestamp("ms", "UTC")}},
    "nanoseconds of a place": {"kinds": {"at": pa.timestamp("ns", "Europe/Berlin")}},
    "float32": {"kinds": {"value": pa.float32()}},
    "integers": {"kinds": {"value": pa.int64()}},
    "small integers": {"kinds": {"value": pa.uint8()}},
    "int96": {"kinds": {}, "use_deprecated_int96_timestamps": True},
    "no statistics": {"kinds": {}, "write_statistics": False},
    "the name of its folder": {"kinds": {"target": None}, "name": "target=pl%61n/part-0.parquet"},
    "two names of folders": {
        "kinds": {"target": None, "metric": None},
        "name": "target=plan/metric=backlog/b",
    },
    "no ending": {"kinds": {}, "name": "part-0"},
    "in a folder": {"kinds": {}, "name": "day=1/b.parquet"},
}
REFUSED = {
    "times without a zone": ({"kinds": {"at": pa.timestamp("us")}}, r"'at': 'timestamp\[us\]'.*accepted:.*at a timestamp with a zone"),
    "texts of numbers": ({"kinds": {"value": pa.string()}}, r"'value': 'string'.*value a number"),
    "truth values": ({"kinds": {"value": pa.bool_()}}, r"'value': 'bool'"),
    "no metric": ({"kinds": {"metric": None}}, r"'metric': 'missing'"),
    "a folder that says otherwise": ({"kinds": {}, "name": "target=other/b.parquet"}, "has the column target, and so has its folder"),
    "no Parquet": ({"kinds": None, "name": "readme.txt"}, r"readme\.txt' cannot be read.*begin with _ or"),
}  # fmt: skip


def laid(folder, case):
    """A plain file, and one of the case."""
    kinds, name = case["kinds"], case.get("name", "b.parquet")
    options = {key: value for key, value in case.items() if key not in ("kinds", "name")}
    write(folder / "a.parquet", range(0, 600, 30), 1.0)
    if kinds is None:
        (folder / name).write_text("hello")
        return folder
    mixed = {key: kind for key, kind in {**KINDS, **kinds}.items() if kind is not None}
    one = {pa.string(): "1.0", pa.bool_(): True}.get(mixed["value"], 1)
    write(folder / name, range(15, 600, 30), one, kinds=mixed, **options)
    return folder


@pytest.mark.parametrize("case", ACCEPTED)
def test_each_type_that_is_accepted_gives_the_rows_of_the_plain_one(tmp_path, case):
    laid(tmp_path / "plain", {"kinds": {}})
    laid(tmp_path / "in", ACCEPTED[case])

    for kind in ("plain", "in"):
        local.run(tmp_path / kind, tmp_path / f"{kind}-out", latest=START + timedelta(days=1))

    one, other = (pq.read_table(tmp_path / f"{kind}-out" / "gauges.parquet") for kind in ("plain", "in"))
    assert one == other


@pytest.mark.parametrize("case", REFUSED)
def test_each_other_type_is_refused_by_file_and_column(tmp_path, case):
    layout, told = REFUSED[case]

    with pytest.raises(InputError, match=told):
        local.run(laid(tmp_path / "in", layout), tmp_path / "out", latest=START + timedelta(days=1))


def test_of_two_runs_into_one_folder_the_one_that_ends_last_stays_whole(tmp_path, monkeypatch):
    write(tmp_path / "one.parquet", range(60))
    write(tmp_path / "two.parquet", range(180))
    latest, count_within = START + timedelta(days=1), local.count_within

    def meanwhile(*arguments):
        """While the first is at work a second one begins and ends."""
        monkeypatch.setattr(local, "count_within", count_within)
        local.run(tmp_path / "two.parquet", tmp_path / "out", latest=latest)
        return count_within(*arguments)

    monkeypatch.setattr(local, "count_within", meanwhile)
    local.run(tmp_path / "one.parquet", tmp_path / "out", latest=latest)

    gauges = pq.read_table(tmp_path / "out" / "gauges.parquet").to_pylist()
    assert [(row["window"], row["samples"]) for row in gauges] == [("1m", 60), ("1h", 60), ("1d", 60)]
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"gauges.parquet", "quality.parquet"}
