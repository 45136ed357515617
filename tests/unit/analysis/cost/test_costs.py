"""What Azure billed, joined with the scaling log: exports of both kinds, prices, and what else would have cost."""

import gzip
import io
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from scaling.log_entry import LogEntry, LogKind, ShadowSaid
from spark_jobs.cost.tasks import charges_in
from tests.support.analysis import write_files
from tidemark.__main__ import command_line
from tidemark.analysis import plots
from tidemark.analysis.cost import page
from tidemark.analysis.cost.account import AUTOSCALE, MANUAL, METERED, REQUEST_UNITS, STATIC, Billed, account
from tidemark.analysis.cost.charges import Charge, billed_id, newest_runs
from tidemark.analysis.cost.files import export_files, read_export, read_exports
from tidemark.analysis.cost.spans import CapacityEntry, Span, changes_of, spans_of
from tidemark.analysis.cost.targets import Options, billed_targets, resources_of
from tidemark.analysis.errors import InputError

DAY0 = 20_454  # 2026-01-01
START = DAY0 * 86_400.0
HOUR = 3600.0
GROUP = "/subscriptions/s/resourceGroups/G/providers"
PLAN = f"{GROUP}/Microsoft.Web/serverfarms/Orders"
OTHER = f"{GROUP}/Microsoft.Web/serverfarms/Other"
ACCOUNT = f"{GROUP}/Microsoft.DocumentDB/databaseAccounts/data"
WANTED = frozenset({billed_id(PLAN), billed_id(f"{ACCOUNT}/sqlDatabases/d/containers/c")})

FOCUS = f"""BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ConsumedQuantity,EffectiveCost,ResourceId,x_SkuMeterName
4.8,EUR,Usage,2026-01-01T00:00Z,24,4.5,{PLAN.lower()},P1 v3 App
0.96,EUR,Usage,2026-01-01T00:00:00Z,120,0.96,{ACCOUNT},100 RU/s
-2,EUR,Adjustment,2026-01-02T00:00Z,,0,{PLAN},
9,EUR,Usage,2026-01-01T00:00Z,1,9,{GROUP}/Microsoft.Web/serverfarms/Other,P1 v3 App
"""
CLASSIC = f"""Date,ResourceId,MeterName,MeterSubCategory,Quantity,CostInBillingCurrency,BillingCurrencyCode,ChargeType
01/01/2026,{PLAN},P1 v3 App,,24,4.8,EUR,Usage
01/01/2026,{ACCOUNT}/,100 RU/s,,120,0.96,EUR,Usage
01/02/2026,{PLAN},,,,-2,EUR,Refund
01/01/2026,{GROUP}/Microsoft.Web/serverfarms/Other,P1 v3 App,,1,9,EUR,Usage
"""
CHARGES = [
    Charge(billed_id(PLAN), DAY0, 4.8, 24.0, "EUR"),
    Charge(ACCOUNT.lower(), DAY0, 0.96, 120.0, "EUR", request_units=True),
    Charge(billed_id(PLAN), DAY0 + 1, -2.0, None, "EUR", usage=False),
]


@pytest.mark.parametrize("text", [FOCUS, CLASSIC])
def test_focus_and_actual_costs_tell_the_same_charges_of_what_is_asked_for(text):
    table = pa.Table.from_pylist(
        [
            dict(zip(text.splitlines()[0].split(","), line.split(","), strict=True))
            for line in text.splitlines()[1:]
        ]
    )
    file = io.BytesIO()
    parquet.write_table(table, file)

    assert read_export("a.csv", b"\xef\xbb\xbf" + text.encode(), WANTED, None) == CHARGES
    assert read_export("a.csv.gz", gzip.compress(text.encode()), WANTED, None) == CHARGES
    assert read_export("a.parquet", file.getvalue(), WANTED, None) == CHARGES


def test_another_column_may_be_the_money():
    charges = read_export("a.csv", FOCUS.encode(), WANTED, "effectivecost")

    assert [charge.amount for charge in charges] == [4.5, 0.96, 0.0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "a,b\n1,2\n",
            r"a\.csv is no cost export: it has the columns a, b; accepted: resource: resourceid or",
        ),
        ("", r"a\.csv is no cost export: it is empty; accepted"),
        (CLASSIC.replace("4.8", "1,5"), r"row 2: it has more cells than the file has columns"),
        (CLASSIC + "01/03/2026,/subscr", r"row 6: it has fewer cells than the file has columns: 2 for 8"),
        (CLASSIC.replace("MeterName", "Date"), r"a\.csv has the column Date twice"),
        (
            CLASSIC.replace("MeterName", "date"),
            r"a\.csv has several columns for the day: \w+, \w+; accepted is",
        ),
        (
            CLASSIC.replace("4.8", "nan"),
            r"row 2, column CostInBillingCurrency: found 'nan'; accepted is a number",
        ),
        (
            CLASSIC.replace("01/01/2026", "31/01/2026"),
            r"row 2, column Date: found '31/01/2026'; accepted are 2026",
        ),
        (
            CLASSIC.replace(f"01/01/2026,{OTHER}", f"31/01/2026,{OTHER}"),
            r"a\.csv, column Date: 31/1 is no month and day, as Azure writes them",
        ),
        (CLASSIC.replace("01/02/2026", "03/02/2026"), r"column Date: 3/2 may not be month and day"),
        (
            f"ResourceId,Cost,Date\n{PLAN},4.8,01/02/2026\n",
            r"column Date: 1/2 may not be.*BillingPeriodEndDate",
        ),
    ],
)
def test_what_is_no_export_is_told_by_file_row_and_column(text, told):
    with pytest.raises(InputError, match=told):
        read_export("a.csv", text.encode(), WANTED, None)


@pytest.mark.parametrize(
    ("rows", "days"),
    [
        ([("01/02/2026", "01/31/2026")], [1]),
        ([("01/02/2026", "01/31/2026"), ("02/01/2026", "02/28/2026")], [1, 31]),
        ([("01/02/2026", ""), ("01/03/2026", "")], [1, 2]),
        ([("02/02/2026", "")], [32]),
        ([("01/02/2026", ""), ("03/14/2026", "")], [1, 72]),
    ],
)
def test_dates_are_month_first_where_the_file_tells(rows, days):
    lines = [f"{PLAN},4.8,{day},{end}" for day, end in rows]
    text = "\n".join(["ResourceId,Cost,Date,BillingPeriodEndDate", *lines, ""])

    assert [charge.day - DAY0 for charge in read_export("a.csv", text.encode(), WANTED, None)] == days


@pytest.mark.parametrize(
    "text",
    [
        FOCUS.replace("BilledCost", "\ufeffBilledCost", 1),
        "\n".join(f"\ufeff\ufeff{line}" for line in FOCUS.splitlines()),
        f"\ufeffResourceId,Cost,Date\n\ufeff{PLAN},4.8,2026-01-01\n",
        f'\ufeffResourceId,Cost,Date\r\n\ufeff"{PLAN}",4.8,2026-01-01\r\n',
    ],
)
def test_byte_order_marks_before_the_first_row_lose_no_charge(text):
    charges = read_export("a.csv", text.encode(), WANTED, None)

    assert (charges[0].resource, charges[0].amount, charges[0].day) == (billed_id(PLAN), 4.8, DAY0)


def test_a_parquet_file_of_which_rows_cannot_be_read_is_refused(monkeypatch):
    file = io.BytesIO()
    parquet.write_table(pa.table({"ResourceId": [PLAN], "Cost": [4.8], "Date": ["2026-01-01"]}), file)
    assert len(read_export("a.parquet", file.getvalue(), WANTED, None)) == 1
    two = property(lambda _: SimpleNamespace(num_rows=2, num_row_groups=1))
    monkeypatch.setattr(parquet.ParquetFile, "metadata", two)

    with pytest.raises(InputError, match=r"a\.parquet is damaged: it has 2 rows, of which 1 can be read"):
        read_export("a.parquet", file.getvalue(), WANTED, None)


AMORTIZED = CLASSIC.replace("4.8", "4.1")
ROWS = FOCUS.splitlines()
HALVES = ["\n".join(ROWS[:2]), "\n".join([ROWS[0], *ROWS[2:]])]
OTHERS = FOCUS.replace("/subscriptions/s/", "/subscriptions/t/")
MONTH, RUN = "20260101-20260131", "202601161527"


def manifest(*names):
    blobs = [{"blobName": f"x/{name}", "byteCount": 1} for name in names]
    return msgspec.json.encode(
        {"runInfo": {"submittedTime": "2026-01-17T15:27:00Z"}, "blobs": blobs}
    ).decode()


ONCE = {
    "one scope beside another": {"a/focus.csv": FOCUS, "b/focus.csv": OTHERS},
    "other days": {"a.csv": FOCUS, "b.csv": CLASSIC.replace("01/0", "02/0")},
    "an older run": {f"a/{MONTH}/{RUN}/x.csv": FOCUS, f"a/{MONTH}/202601151527/x.csv": FOCUS},
    "parts": {f"a/{MONTH}/{RUN}/g/part_{n}_0001.csv": half for n, half in enumerate(HALVES)},
    "parts of a manifest": {
        "1.csv": HALVES[0],
        "2.csv": HALVES[1],
        "manifest.json": manifest("1.csv", "2.csv"),
    },
}
TWICE = {
    "kinds": ({"actual.csv": CLASSIC, "focus.csv": FOCUS}, "actual.csv and in .*focus.csv"),
    "kinds in folders": ({f"{a}/{MONTH}/{RUN}/part_0_0001.csv": each for a, each in (("a", CLASSIC), ("f", FOCUS))},
                         "a/.*part_0_0001.csv and in .*f/.*part_0_0001.csv"),
    "amortized": ({"a/1.csv": CLASSIC, "b/1.csv": AMORTIZED}, "a/1.csv and in .*b/1.csv"),
    "a copy in gzip": ({"a.csv": FOCUS, "a.csv.gz": FOCUS}, "a.csv and in .*a.csv.gz"),
    "capital letters": ({"a.csv": FOCUS, "b.CSV": FOCUS}, "a.csv and in .*b.CSV"),
    "as Parquet, too": ({f"{MONTH}/{RUN}/part_0_0001.{end}": FOCUS for end in ("csv", "parquet")}, "csv and in .*parquet"),
    "periods that overlap": ({f"{each}/{RUN}/1.csv": FOCUS for each in (MONTH, "20260101-20260107")}, "0107/.* and in .*0131/"),
    "a run of the month, and a day": ({f"{MONTH}/{RUN}/1.csv": FOCUS, "20260101.csv": HALVES[0]}, " and in "),
    "runs side by side": ({f"{MONTH}/costs_{n}.csv": FOCUS for n in (1, 2)}, "costs_1.csv and in .*costs_2.csv"),
    "parts that nobody lists": ({f"part_{n}_0001.csv": FOCUS for n in (0, 1)}, "part_0_0001.csv and in .*part_1_0001.csv"),
    "beside what is listed": ({"1.csv": FOCUS, "2.csv": FOCUS, "manifest.json": manifest("1.csv")}, "1.csv and in .*2.csv"),
    "a part that is missing": ({"1.csv": FOCUS, "manifest.json": manifest("1.csv", "2.csv")}, "lists the file 2.csv, which is not"),
}  # fmt: skip


@pytest.mark.parametrize("layout", ONCE)
def test_exports_that_have_no_charge_in_common_are_added_up(tmp_path, layout):
    charges = read_exports(write_files(tmp_path / "costs", ONCE[layout]), WANTED, None)

    assert sum(charge.amount for charge in charges if charge.day < DAY0 + 20) == pytest.approx(4.8 + 0.96 - 2)


@pytest.mark.parametrize("layout", TWICE)
def test_charges_that_two_exports_tell_are_refused_by_two_files(tmp_path, layout):
    files, told = TWICE[layout]

    with pytest.raises(InputError, match=told):
        read_exports(write_files(tmp_path / "costs", files), WANTED, None)


def test_one_of_two_exports_is_accepted_as_the_refusal_says(tmp_path):
    folder = write_files(tmp_path / "costs", TWICE["kinds"][0])

    assert read_exports(folder / "focus.csv", WANTED, None) == CHARGES


@pytest.mark.parametrize(
    ("files", "newest"),
    [
        (
            {"c/M/aa/1.csv": 9.0, "c/M/aa/2.csv": 9.5, "c/M/bb/1.csv": 5.0, "c/0.csv": 1.0},
            ["0", "M/aa/1", "M/aa/2"],
        ),
        ({"M/aa/1.csv": 9.0, "M/bb/1.csv": 5.0}, ["M/aa/1"]),
        # A folder that is a run's time counts more than a file's own, which may be that of a download.
        ({"M/202601161527/5f/p.csv": 9.0, "M/202601171527/0a/p.csv": 5.0}, ["M/202601171527/0a/p"]),
    ],
)
def test_of_an_export_of_the_month_to_date_the_newest_run_counts(files, newest):
    found = newest_runs([(path.replace("M/", f"{MONTH}/"), at) for path, at in files.items()])

    assert [path.replace(MONTH, "M").removeprefix("c/").removesuffix(".csv") for path in found] == newest


@pytest.mark.parametrize(
    ("manifest", "counts"),
    [
        ('{"runInfo": {"runId": "bb", "submittedTime": "2026-01-1%dT15:27:00.2762451Z"}}', "bb"),
        ('{"runInfo": {"submittedTime": "2026-01-1%dT15:27:00"}}', "aa"),  # of which zone?
        ('{"runInfo": %d}', "aa"),
        ("", "aa"),
    ],
)
def test_the_manifest_of_a_run_tells_its_time_and_without_one_the_files_own_counts(
    tmp_path, manifest, counts
):
    for day, run, at in ((6, "aa", 2_000_000_000), (7, "bb", 1_900_000_000)):
        folder = tmp_path / "20260101-20260131" / run
        folder.mkdir(parents=True)
        (folder / "part.csv").touch()
        os.utime(folder / "part.csv", (at, at))
        (folder / "manifest.json").write_text(manifest % day if manifest else "")

    assert [Path(file).parent.name for file in export_files(tmp_path)[0]] == [counts]


def log(*capacities, every=900.0, shadow=None, start=START):
    """Decisions that found these capacities."""
    return [
        CapacityEntry(start + n * every, "decision", each, each, shadow=shadow)
        for n, each in enumerate(capacities)
    ]


def test_a_capacity_holds_until_the_next_reading_and_no_longer_than_told():
    seen = [CapacityEntry(0, "decision", 2), CapacityEntry(60, "effect", outcome="applied", reached=3), CapacityEntry(90, "effect", outcome="failed"),
            CapacityEntry(2000, "decision", 3), CapacityEntry(2000, "decision", 3)]  # fmt: skip

    assert spans_of(reversed(seen), 900.0) == [Span(0, 60, 2), Span(60, 960, 3)]


def test_an_action_with_several_effects_is_one_change_and_costs_once():
    wish, end = (
        CapacityEntry(0, "decision", 2, 3, reason="scale_out", line="why"),
        CapacityEntry(600, "decision", 3),
    )
    outcomes = [(60, "already_there"), (61, "applied"), (62, "applied")]
    effects = [CapacityEntry(at, "effect", outcome=outcome, reached=3) for at, outcome in outcomes]

    one, several = ([wish, *entries, end] for entries in (effects[:1], effects))
    spans = [spans_of(seen, 900.0) for seen in (one, several)]
    sums = [sum(span.capacity * (span.end - span.begin) for span in found) for found in spans]

    assert sums[0] == sums[1] == 2 * 60 + 3 * 540
    assert changes_of(spans[0], one, 900.0) == changes_of(spans[1], several, 900.0)


def test_the_price_is_what_was_billed_by_what_ran_on_days_that_are_known_whole():
    seen = log(*[2] * 96, *[3] * 96, *[2] * 40)
    bill = [
        Charge(billed_id(PLAN), DAY0 + n, amount, currency="EUR") for n, amount in enumerate((9.6, 14.4, 0.1))
    ]
    other = [Charge("/other", DAY0, 99.0)]

    found = account(Billed("orders", resource=billed_id(PLAN)), seen, [*bill, *other], DAY0 + 2)

    assert found.price.value == pytest.approx(0.2)
    assert found.price.days == 2
    assert found.charged == pytest.approx(24.1)
    assert found.units == pytest.approx(2 * 24 + 3 * 24 + 2 * 9.75)
    assert found.money(found.static) == pytest.approx(0.2 * 3 * 57.75)
    assert [day.billed for day in found.days] == [9.6, 14.4, 0.1]
    assert found.notes == ()


def test_a_gap_in_the_log_is_neither_hours_nor_money():
    found = account(Billed("orders", price=1.0), [*log(4, 4), *log(4, 4, start=START + 10 * HOUR)], [], None)

    assert (found.whole, found.known, found.units) == (10.25, 0.75, 3.0)


def test_what_a_change_costs_until_the_next_one():
    seen = [*log(2, 2, 5, 5, 3, 3)]
    seen[1] = msgspec.structs.replace(seen[1], desired=5, reason="above", line="scaling out 2 -> 5")

    first, second = account(Billed("orders", price=1.0), seen, [], None).changes

    assert (first.change.before, first.change.after, first.change.line) == (2, 5, "scaling out 2 -> 5")
    assert first.units == pytest.approx(3 * 0.5)
    assert (second.units, second.change.line) == (pytest.approx(-2 * 0.25), "")


def test_a_change_costs_nothing_through_capacities_that_came_while_the_log_was_silent():
    seen = [*log(2, 5, 5), *log(9, 9, 9, 9, 4, 4, start=START + 10 * HOUR)]

    first, second = account(Billed("o", price=1.0), seen, [], None).changes

    assert (first.units, first.change.held) == (1.5, 1800.0)
    assert (second.units, second.change.before) == (-5 * 0.25, 9)


def test_the_shadow_is_compared_with_what_there_was_at_the_same_time():
    seen = [*log(4, 4, 4), *log(4, 4, 4, shadow=1, start=START + 3 * 900)]

    found = account(Billed("orders", price=1.0), seen, [], None)

    assert (found.shadow_hours, found.shadow, found.beside) == (0.5, 0.5, 2.0)


def ru_log():
    """Two hours: 4,000 RU/s with a quarter of an hour of 10,000 in the first; the use is told in the first."""
    seen = log(4000, 10_000, 4000, 4000, 4000, 4000, 4000, 4000, 4000)
    return [
        msgspec.structs.replace(each, metrics={"used": 300.0 + n}) if n < 4 else each
        for n, each in enumerate(seen)
    ]


def test_request_units_are_billed_at_the_highest_of_the_hour_and_autoscale_at_the_highest_in_use():
    found = account(Billed("db", REQUEST_UNITS, price=0.008, used="used"), ru_log(), [], None)

    assert [hour.units for hour in found.hours] == [100.0, 40.0]
    # In the first hour 303 RU/s were used: a tenth of 10,000 is billed. In the second nobody knows, and 4,000 count.
    assert [hour.autoscale for hour in found.hours] == [pytest.approx(15.0), pytest.approx(60.0)]
    assert found.offers == {MANUAL: 140.0, STATIC: 200.0, AUTOSCALE: pytest.approx(75.0)}
    assert "cheapest is autoscale up to 10,000 RU/s; manual, as scaled 1.87 times as much" in found.advice
    assert "in 1 of 2 hours the use is not known" in found.advice
    # Without the change the first hour had been billed at 4,000; going back saved nothing in it.
    assert [change.units for change in found.changes] == [pytest.approx(60.0), pytest.approx(-60.0 * 1)]


def test_of_an_account_that_others_use_the_price_is_by_quantity_and_autoscale_meters_are_dearer():
    shared = Billed("db", REQUEST_UNITS, resource=ACCOUNT.lower(), shared=True)
    charges = [
        Charge(ACCOUNT.lower(), DAY0, 0.8, 100.0, request_units=True),
        Charge(ACCOUNT.lower(), DAY0 + 1, 1.2, 100.0, request_units=True, autoscale=True),
        Charge(ACCOUNT.lower(), DAY0, 50.0, 7.0),  # storage
    ]

    found = account(shared, ru_log(), charges, DAY0 + 1)

    assert found.price.value == pytest.approx(0.008)
    assert found.charged is None
    assert found.notes == (METERED,)


@pytest.mark.parametrize(
    ("regions", "money"),
    [(("westeurope", "eastus"), 15.36), (("westeurope",) * 2, 7.68), (("westeurope", ""), 7.68)],
)
def test_each_region_of_an_account_that_others_use_bills_all_the_request_units_again(regions, money):
    shared = Billed("db", REQUEST_UNITS, resource=ACCOUNT.lower(), shared=True)
    charges = [
        *(
            Charge(ACCOUNT.lower(), DAY0, 7.68, 960.0, request_units=True, region=region)
            for region in regions
        ),
        Charge(ACCOUNT.lower(), DAY0, -1.0, request_units=True, region="brazilsouth"),  # nothing by quantity
        Charge(ACCOUNT.lower(), DAY0, 50.0, 7.0, region="brazilsouth"),  # storage
    ]

    found = account(shared, log(*[4000] * 97), charges, DAY0)

    assert found.money(found.units) == pytest.approx(money)


@pytest.mark.parametrize(
    ("text", "column"), [(FOCUS, "RegionId"), (CLASSIC, "ResourceLocation"), (CLASSIC, "resourceLocation")]
)
def test_the_region_of_a_charge_is_read_where_the_export_has_it(text, column):
    head, *rows = text.splitlines()
    told = "\n".join([f"{head},{column}", *(f"{row},West Europe" for row in rows)])

    assert [charge.region for charge in read_export("a.csv", text.encode(), WANTED, None)] == [""] * 3
    assert [charge.region for charge in read_export("a.csv", told.encode(), WANTED, None)] == [
        "westeurope"
    ] * 3


def test_a_charge_is_the_same_after_a_task_has_read_it():
    head, *rows = CLASSIC.splitlines()
    data = "\n".join([f"{head},ResourceLocation", *(f"{row},East US" for row in rows)]).encode()
    files = pa.RecordBatch.from_pylist([{"path": "a.csv", "content": data}])
    [made] = charges_in([files], WANTED, None, {"a.csv": "a.csv"})
    assert set(made.column("source").to_pylist()) == {"a.csv"}
    made = made.drop_columns(["source"])

    assert [Charge(**row) for row in made.to_pylist()] == read_export("a.csv", data, WANTED, None)


def test_charges_without_a_resource_are_of_no_target_not_even_of_one_whose_resource_nobody_says():
    billed = billed_targets(None, {}, Options({"orders": PLAN}, {"other": 0.2}, frozenset({"db"})))

    assert resources_of(billed) == {billed_id(PLAN)}
    assert [each.unit for each in billed.values()] == ["instance", "instance", REQUEST_UNITS]


@pytest.mark.parametrize(
    ("bill", "told"),
    [
        ([], "the export has no charge of"),
        ([0.0] * 3, "a reservation pays for it"),
        ([1.0], "no day is known whole"),
    ],
)
def test_without_a_price_there_is_no_money_and_why_is_told(bill, told):
    charges = [Charge("r", DAY0 + n, amount) for n, amount in enumerate(bill)]

    found = account(Billed("orders", resource="r"), log(*[2] * 200), charges, DAY0 + len(bill) - 1)

    assert found.price is None
    assert found.money(found.units) is None
    assert told in found.notes[0]


CONFIG = """
version = 1
[targets.orders]
scaler = "app_service_plan"
resource_id = "%ORDERS_PLAN%"
minimum = 1
maximum = 9
"""


def test_the_command_reports_money_against_static_and_shadow_and_fails_its_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORDERS_PLAN", PLAN)
    (tmp_path / "tidemark.toml").write_text(CONFIG)
    (tmp_path / "costs").mkdir()
    head, row = FOCUS.splitlines()[:2]
    rows = [row.replace("2026-01-01", f"2026-01-0{n}").replace("4.8", "7.2") for n in (1, 2, 3)]
    (tmp_path / "costs" / "part.csv").write_text("\n".join([head, *rows]))
    entries = [
        LogEntry(
            "orders",
            START + n * 900,
            LogKind.DECISION,
            "d",
            "",
            "",
            3 + (n == 50),
            3,
            shadow=ShadowSaid(2, 2, 2, "", ""),
        )
        for n in range(192)
    ]
    entries.append(LogEntry("unknown", START, LogKind.DECISION, "d", "", "", 1))
    (tmp_path / "log.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(entries))

    found = CliRunner().invoke(
        command_line(),
        ["cost", "--costs", "costs", "--log", "log.jsonl", "--allow", "unpriced=0"],
        env={"COLUMNS": "200"},
    )

    assert found.exit_code == 3, found.output
    assert "check failed: unpriced 1, allowed 0; report: cost-output/cost.html" in found.output
    assert "next: tidemark advise log.jsonl --target orders --price 0." in found.output
    (orders, other) = parquet.read_table("cost-output/targets.parquet").to_pylist()
    assert orders["money"] == pytest.approx(0.1 * (3 * 47.75 + 0.25), rel=0.01)
    assert orders["static_money"] == pytest.approx(0.1 * 4 * 47.75, rel=0.01)
    assert orders["shadow_money"] == pytest.approx(0.1 * 2 * 47.75, rel=0.01)
    assert (other["money"], other["price"]) == (None, None)
    assert len(parquet.read_table("cost-output/changes.parquet")) == 2
    assert "the shadow would save" in (tmp_path / "cost-output" / "cost.html").read_text()

    def refused(*_):
        raise OverflowError

    monkeypatch.setattr(page, "report_of", refused)
    found = CliRunner().invoke(
        command_line(), ["cost", "--costs", "costs", "--log", "log.jsonl", "--allow", "unpriced=0"]
    )
    assert found.exit_code == 3, found.output
    assert "report: cost-output" in found.output


@pytest.mark.parametrize(
    ("log", "more", "said"),
    [
        ("log.json", ["--output", "file"], "'file' is a file"),
        (
            "log.json",
            ["--output", "file/in-it"],
            "error: --output file/in-it cannot be written: Not a directory",
        ),
        ("log.json", ["--price", "order=0.2"], "error: --price names the target 'order'; known are orders"),
        ("log.json", ["--ru-target", "ru"], "error: --ru-target names the target 'ru'; known are orders"),
        ("none.json", [], "error: --log none.json has no capacity of a target; a scaling log is accepted"),
        (
            "log.json",
            ["--from", "2027-01-01"],
            "has no capacity of a target, from --from to --to; a scaling log",
        ),
    ],
)
def test_what_the_command_cannot_use_is_one_line(tmp_path, monkeypatch, log, more, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "costs.csv").write_text(FOCUS)
    (tmp_path / "file").touch()
    entry = LogEntry("orders", START, LogKind.DECISION, "d", "", "", 3)
    (tmp_path / "log.json").write_bytes(msgspec.json.encode([entry]))
    (tmp_path / "none.json").write_text("[]")

    found = CliRunner().invoke(
        command_line(), ["cost", "--costs", "costs.csv", "--log", log, *more], env={"COLUMNS": "200"}
    )

    assert found.exit_code in (1, 2)
    assert said in found.stderr


def test_a_day_with_more_refunds_than_charges_is_drawn_below_zero():
    seen = log(*[2] * 96, *[2] * 96)
    bill = [Charge(billed_id(PLAN), DAY0 + n, money, currency="EUR") for n, money in enumerate((9.6, -4.0))]

    figure = page._by_day(account(Billed("orders", resource=billed_id(PLAN)), seen, bill, DAY0 + 2))
    plots.show_few_points(figure)

    [axes] = figure.axes
    assert axes.get_ylim()[0] <= -4.0
    assert axes.get_ylabel() == "EUR a day"
    plots.drawn(figure)


def test_of_hours_of_the_day_that_the_log_does_not_know_nothing_is_drawn():
    """The log has two hours: the others were drawn as 0 RU/s."""
    figure = page._by_hour(account(Billed("db", REQUEST_UNITS, price=0.008, used="used"), ru_log(), [], None))

    [axes] = figure.axes
    manual = axes.lines[0]
    known = [hour for hour, value in zip(*manual.get_data(), strict=True) if value == value]
    assert known == [0, 1]
    assert list(manual.get_xdata()) == list(range(25))
    assert axes.get_ylabel() == "hours of 100 RU/s"
    plots.drawn(figure)
