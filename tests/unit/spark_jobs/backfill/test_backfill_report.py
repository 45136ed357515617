"""The report of a backfill, and its lines."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from consumer.config import ConsumerConfig
from consumer.definition.model import HubDefinition
from spark_jobs.backfill.budget.progress import Counts, Snapshot
from spark_jobs.backfill.job import Settings, _check_options, _page
from spark_jobs.backfill.report import Backfilled, PartitionPlan, _without_short_step, report_of
from spark_jobs.backfill.run import BackfillSettings, settled_rows
from spark_jobs.backfill.transforms import EVERYTHING
from tidemark.analysis.errors import JobError
from tidemark.analysis.limits import check_sum
from tidemark.analysis.report import Report

AT = datetime(2026, 11, 21, 8, tzinfo=UTC)
PLAN = (PartitionPlan("0", 120, 5, 124, AT, AT), PartitionPlan("1", 30, 0, 29, AT, AT))


def backfilled(history, partitions, **changes):
    return Backfilled(
        "flights", "db/flights", "create", "request_units", 500.0, PLAN, partitions, history, **changes
    )


def test_the_report_tells_what_was_written_what_existed_and_why_events_became_dead_letters():
    first = Counts(
        received=120,
        written=117,
        existed=7,
        dead_letters=3,
        attempts=130,
        throttled=13,
        request_units=600.0,
        written_units=585.0,
        reasons={"json": 2, "id": 1},
    )
    second = Counts(received=30, skipped=30)
    history = [
        Snapshot(0.0, Counts(), {}),
        Snapshot(1.5, first, {"0": 120}),
        Snapshot(2.0, first + second, {"0": 120, "1": 30}),
    ]

    done = backfilled(history, {"0": first, "1": second}, not_captured=4)

    assert done.lines == [
        (
            "117 written (7 existed and stay as they were), 3 dead letters, 30 settled before; 600 RU in 2.0 s, 10.0 %"
            " throttled"
        ),
        "4 of the missing events are in no capture file",
    ]
    page = report_of(done).html()
    assert page.count("<svg") == 3
    for told in ("flights into db/flights, mode create", "5.00", "<td>json</td>", "4 of the missing events"):
        assert told in page


def figures_of(monkeypatch, done):
    """Each figure's axes as they were drawn, by the figure's name."""
    drawn = {}
    take = Report.figure

    def figure(self, figure, *, caption, name):
        drawn[name] = figure.axes
        take(self, figure, caption=caption, name=name)

    monkeypatch.setattr(Report, "figure", figure)
    page = report_of(done).html()
    return drawn, page


def test_figures_begin_at_the_start_and_say_which_partition_was_settled_when(monkeypatch):
    counts = Counts(received=150, written=150, attempts=150, request_units=750.0, written_units=750.0)
    half = Counts(received=60, written=60, attempts=60, request_units=300.0, written_units=300.0)
    history = [
        Snapshot(0.0, Counts(), {}),
        Snapshot(10.0, half, {"0": 60}),
        Snapshot(20.0, half, {"0": 60}),
        Snapshot(30.0, counts, {"0": 120, "1": 30}),
    ]

    figures, _ = figures_of(monkeypatch, backfilled(history, {"0": half, "1": half}))

    rate, charge = figures["backfill-rate"]
    [settled] = figures["backfill-partitions"]
    assert rate.get_xlim() == charge.get_xlim() == settled.get_xlim() == (0.0, 30.0)
    spans = [
        [path.get_extents().intervalx.tolist() for path in bars.get_paths()] for bars in settled.collections
    ]
    assert spans == [[[0.0, 10.0], [20.0, 30.0]], [[20.0, 30.0]]]
    assert [label.get_text() for label in settled.get_yticklabels()] == ["0", "1"]


def test_where_no_record_was_written_no_empty_plot_of_its_charge_is_shown(monkeypatch):
    counts = Counts(received=150, dead_letters=150, attempts=150, request_units=0.0)
    history = [Snapshot(0.0, Counts(), {}), Snapshot(10.0, counts, {"0": 120, "1": 30})]

    figures, page = figures_of(monkeypatch, backfilled(history, {"0": counts}))

    [rate] = figures["backfill-rate"]
    assert rate.get_xlabel() == "seconds"
    assert "a second may show more than the budget); no record was written" in page


def test_a_record_that_costs_nothing_has_an_axis_too(monkeypatch):
    counts = Counts(received=150, written=150, attempts=150)
    history = [Snapshot(0.0, Counts(), {}), Snapshot(10.0, counts, {"0": 120, "1": 30})]

    figures, _ = figures_of(monkeypatch, backfilled(history, {"0": counts}))

    [_, charge] = figures["backfill-rate"]
    assert charge.get_ylim() == (0.0, 1.0)


def test_a_backfill_that_settled_nothing_has_no_empty_picture(monkeypatch):
    figures, _ = figures_of(monkeypatch, backfilled([Snapshot(0.0, Counts(), {})], {}))

    assert figures == {}


def test_what_existed_is_told_only_where_nothing_is_replaced():
    done = backfilled([Snapshot(0.0, Counts(), {})], {})

    assert ">Existed<" in report_of(done).html()
    assert ">Existed<" not in report_of(replace(done, mode="upsert")).html()


def test_a_moment_at_the_end_is_no_rate_of_its_own():
    counts = [Counts(written=n, attempts=n, request_units=float(n)) for n in (0, 400, 800, 850)]
    history = [Snapshot(at, each, {}) for at, each in zip((0.0, 1.0, 2.0, 2.1), counts, strict=True)]

    assert [snapshot.at for snapshot in _without_short_step(history)] == [0.0, 1.0, 2.1]
    assert _without_short_step(history[:3]) == history[:3]


def test_of_a_backfill_that_wrote_nothing_the_report_says_so():
    history = [Snapshot(0.0, Counts(), {})]

    page = report_of(backfilled(history, {"0": Counts(), "1": Counts()})).html()

    assert "Nothing was written." in page
    assert "unknown" in page  # the charge of a record


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"1": Counts(received=29, written=29)},
        {"1": Counts(received=30, unsettled=1, written=58, dead_letters=9)},
    ],
)
def test_an_event_that_no_task_settled_ends_the_job(second):
    """Of the first partition's events each became two documents, but for 3 dead letters and 40 that were dropped."""
    first = Counts(received=120, skipped=1, written=152, dead_letters=3, dropped=40)
    zero, one = settled_rows(PLAN, {"0": first, **second})

    check_sum(*zero)
    with pytest.raises(JobError, match=r"partition 1: 30 rows were read, .*what was written stays"):
        check_sum(*one)


def test_what_mode_create_leaves_out_is_reported_with_the_mode_that_writes_it():
    counts = Counts(received=5, written=2, left_out=3)
    done = backfilled([Snapshot(0.0, counts, {"0": 5})], {"0": counts})

    told = "3 patches, replacements and deletes left out: mode create changes no document, --mode upsert does"
    assert told in done.lines
    assert told in report_of(done).html()


def test_missing_events_outside_of_the_selection_are_not_said_to_be_in_no_file():
    done = backfilled([Snapshot(0.0, Counts(), {})], {}, not_captured=4, is_bounded=True)

    assert done.lines[-1].endswith("in no capture file, or not within --from, --to and --partitions")


def test_the_next_command_reads_the_same_files_of_the_same_sink():
    settings = Settings(
        capture="lake files/",
        selection=EVERYTHING,
        budget=BackfillSettings(records_per_second=1),
        target=HubDefinition(ConsumerConfig("orders"), {}),
        hub="orders",
        sink="totals",
        quarantine="bad",
    )
    done = backfilled([Snapshot(0.0, Counts(), {})], {})
    [(_, command)] = _page(done, _check_options(settings)).next_steps

    told = "tidemark spark reconciliation --capture 'lake files/' --hub orders --sink totals --quarantine bad"
    assert command == told
