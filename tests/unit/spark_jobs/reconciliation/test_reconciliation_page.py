"""The reconciliation's page: what it shows of a check that passed or failed."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import matplotlib.dates as mdates
import pytest
from matplotlib.colors import Normalize

from consumer.model import Checkpoint
from spark_jobs.reconciliation.job import Settings, _page
from spark_jobs.reconciliation.page import Findings, _grid, _heat, build, yet_to_come
from spark_jobs.reconciliation.schemas import Identity, Status
from tidemark.analysis import plots

T0 = datetime(2026, 11, 20, 10)  # as Spark gives times of a UTC session


def hour(partition, place, events=1000, **counts):
    row = {"partition": partition, "hour": T0 + timedelta(hours=place), "events": events, "duplicates": 0}
    return {**row, **{status.value: 0 for status in Status}, **counts}


def findings(**more):
    given = {
        "hub": "flights",
        "source": "capture files in capture/",
        "identity": Identity.POSITION,
        "counts": {Status.WRITTEN: 4000},
        "copies": 0,
        "hours": [hour(str(partition), place, written=1000) for partition in range(2) for place in range(2)],
        "unsettled": [],
        "duplicates": [],
        "duplicates_total": 0,
        "gaps": [],
        "gaps_total": 0,
        "missing": 0,
        "checkpoints": {"0": Checkpoint("0", 1999, "")},
        "failed": False,
    }
    return Findings(**{**given, **more})


def lost(number, body='<script>alert("x")</script>'):
    return {
        "partition": "0",
        "sequence_number": number,
        "enqueued_at": T0,
        "status": "lost",
        "document_id": body,
        "rejection": None,
        "file": f"/capture/ns/flights/{number % 2}.avro",
    }


def a_bad_day(seed=3):
    """Sixteen partitions, three days; an hour was lost in some of them, and a file of another is missing."""
    rng = random.Random(seed)
    hours = []
    for partition in range(16):
        for place in range(72):
            gone = rng.randrange(1, 300) if place in {30, 31} and partition in {3, 4, 11} else 0
            count = 800 + rng.randrange(400)
            hours.append(hour(str(partition), place, count, written=count - gone, lost=gone))
    missing = sum(row["lost"] for row in hours)
    events = sum(row["events"] for row in hours)
    gap = {
        "partition": "7",
        "first": 9000,
        "last": 9299,
        "missing": 300,
        "settled": 0,
        "kind": "between files",
        "enqueued_after": T0,
        "enqueued_before": T0 + timedelta(minutes=15),
    }
    return findings(
        counts={Status.WRITTEN: events - missing, Status.LOST: missing},
        hours=hours,
        unsettled=[lost(n) for n in range(200)],
        gaps=[gap],
        gaps_total=1,
        missing=300,
        failed=True,
    )


@pytest.mark.usefixtures("without_pictures")
def test_a_passed_check_says_so_and_shows_no_findings():
    page = build(findings()).html()

    assert "Every event that is due is in Cosmos DB or kept as a dead letter." in page
    assert "<dd>passed</dd>" in page
    assert "Not settled</h2>" not in page
    assert "Not settled though due" not in page


@pytest.mark.usefixtures("without_pictures")
def test_what_is_parked_passes_and_is_named():
    gone = {Status.DROPPED: "left out on purpose", Status.REMOVED: "of a document whose time to live is over"}
    for status, said in gone.items():
        page = build(findings(counts={Status.WRITTEN: 90, status: 10})).html()
        assert f"is in Cosmos DB, kept as a dead letter, or {said}." in page
    page = build(findings(counts={Status.WRITTEN: 90, Status.PARKED: 10})).html()

    assert "kept as a dead letter, but for 10 parked events, which the consumer tries again." in page
    assert "<dd>90</dd>" in page


def test_a_failed_check_names_the_events_where_they_are_and_how_many_more_there_are():
    found = a_bad_day()
    page = build(found).html()
    total = found.counts[Status.LOST]

    assert "<dd>failed</dd>" in page
    assert f"{total:,} events are due and not settled; 300 sequence numbers are nowhere." in page
    assert f"The first 200 of {total:,}; the table" in page
    assert "9000 to 9299" in page
    assert "Files are in /capture/ns/flights/." in page
    assert "<td>1.avro</td>" in page
    assert "<script>alert" not in page  # ids are the senders' text
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], ": 1,000 in an hour of a partition."),
        ([hour("2", 1, 1200)], ": 1,000 to 1,200 in an hour of a partition, or none."),
        ([hour("0", 99)], ": 1,000 to 2,000 in 2 hours of a partition, or none."),
    ],
)
@pytest.mark.usefixtures("without_pictures")
def test_the_heat_map_says_from_how_many_to_how_many_for_one_colour_says_neither(more, told):
    page = build(findings(hours=[*findings().hours, *more])).html()

    assert f"Events by the hour they were enqueued in, UTC{told}" in page


def test_a_phone_gets_no_numbers_and_times_that_run_into_each_other():
    rows = [hour(str(partition), place, 2100) for partition in range(8) for place in range(12)]
    figure = _heat(_grid(rows, lambda row: row["events"]), "viridis", Normalize(0))
    axes, bar = figure.axes

    assert len(axes.texts) == 96
    plots.fit_to_phone(figure)

    figure.draw_without_rendering()
    assert figure.get_figwidth() == plots.NARROW
    assert not any(text.get_visible() for text in axes.texts)
    low, high = axes.get_xlim()
    assert (mdates.num2date(low), mdates.num2date(high)) == (
        T0.replace(tzinfo=UTC),
        T0.replace(tzinfo=UTC) + timedelta(hours=12),
    )
    shown = [
        label.get_window_extent()
        for label, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
        if low <= at <= high
    ]
    assert len(shown) >= 3
    assert all(before.x1 < after.x0 for before, after in pairwise(shown))
    assert bar.get_window_extent().x1 < figure.bbox.x1
    plots.plt.close(figure)


def test_no_event_at_all_is_told_as_that():
    page = build(findings(counts={}, hours=[], checkpoints=None)).html()

    assert "There is no event in what was read." in page
    assert "no events" in page


@pytest.mark.usefixtures("without_pictures")
def test_how_exact_the_answer_is_follows_from_the_consumers_ids():
    exact, guessed = (build(findings(identity=each)).html() for each in (Identity.META, Identity.BODY))

    assert "an earlier event of the same id is superseded" in exact
    assert "CONSUMER_META=true makes the answer exact" in guessed


@pytest.mark.parametrize(
    ("newest", "until", "told"),
    [
        (
            -90,
            None,
            "came 1 h 30 min before this run. Either the hub was quiet since then, or Capture could not write",
        ),
        (-7, None, "came 7 min before this run. Capture writes a file when its window is over"),
        (1, None, "came 0 s before this run"),  # Event Hubs' clock is ahead of ours
        (-7, 10, "came 7 min before this run"),
        (-90, -59, "it is not yet 2026-11-20 13:01:00Z, 1 h (--capture-lag) after it"),
        (None, -59, "it is not yet 2026-11-20 13:01:00Z"),
        (-90, -60, ""),
        (None, None, ""),
    ],
)
def test_events_whose_capture_file_may_still_come_are_told(newest, until, told):
    now = datetime(2026, 11, 20, 13, tzinfo=UTC)
    newest, until = (None if each is None else now + timedelta(minutes=each) for each in (newest, until))

    said = yet_to_come(newest, now=now, until=until, lag=timedelta(hours=1))

    assert told in said
    assert bool(told) == bool(said)


@pytest.mark.usefixtures("without_pictures")
def test_the_page_says_what_may_still_come():
    assert "came 7 min before this run" in build(findings(yet_to_come="came 7 min before this run")).html()


@pytest.mark.usefixtures("without_pictures")
def test_what_is_removed_is_no_settled_event_for_nobody_knows_whether_it_was_written():
    page = build(findings(counts={Status.WRITTEN: 60, Status.REMOVED: 40})).html()

    assert "<dt>settled</dt><dd>60</dd>" in page
    assert "<dt>removed</dt><dd>40</dd>" in page


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, ""),
        ({"hub": "orders", "sink": "totals"}, " --hub orders --sink totals"),
        (
            {
                "since": datetime(2026, 11, 20, tzinfo=UTC),
                "until": datetime(2026, 11, 21, 6, tzinfo=UTC),
                "capture_lag": timedelta(days=30),
            },
            " --from 2026-11-20T00:00:00+00:00 --to 2026-11-21T06:00:00+00:00 --capture-lag 2592000s",
        ),
        ({"quarantine": "bad files"}, " --quarantine 'bad files'"),
    ],
)
@pytest.mark.usefixtures("without_pictures")
def test_the_next_command_writes_what_is_missing_from_the_same_events_to_the_same_sink(given, options):
    """Of a hub that was created anew it would be refused without the time, and of a file without hub and sink."""
    settings = Settings(consumer={}, capture="capture/", output="out", **given)
    gone = findings(counts={Status.WRITTEN: 3999, Status.LOST: 1}, unsettled=[lost(0)], failed=True)
    [(_, command)] = _page(gone, settings).next_steps

    told = f"tidemark spark backfill --capture capture/{options} --only-missing out/unsettled --mode upsert --ru-per-second 400"
    assert command == told
