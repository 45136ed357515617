"""What the tasks of a backfill tell, added up."""

from spark_jobs.backfill.budget.progress import Counts, Progress
from spark_jobs.backfill.view import rates


def test_counts_of_all_attempts_add_up_and_progress_is_the_latest_attempts():
    progress = Progress()
    progress.record("0", "first", Counts(received=10, written=8, attempts=8, reasons={"json": 1}), 0.5)
    progress.record(
        "0", "second", Counts(received=4, skipped=3, attempts=1, written=1, reasons={"json": 1, "id": 2}), 1.0
    )
    progress.record("1", "first", Counts(received=5, written=5, attempts=5), 1.5)

    snapshot = progress.history[-1]
    assert (snapshot.total.written, snapshot.total.skipped) == (14, 3)
    assert snapshot.total.reasons == {"json": 2, "id": 2}
    assert snapshot.partitions == {"0": 4, "1": 5}


def test_a_word_told_twice_or_late_changes_nothing():
    progress = Progress()
    progress.record("0", "a", Counts(received=10, attempts=10, written=9), 0.5)
    progress.record("0", "a", Counts(received=10, attempts=10, written=9), 0.6)
    progress.record("0", "a", Counts(received=10, attempts=4, written=4), 0.7)

    assert progress.history[-1].total.written == 9


def test_the_history_has_one_picture_per_second_and_ends_with_the_latest():
    progress = Progress(every=1.0)
    for step in range(40):
        progress.record("0", "a", Counts(received=step, written=step), step * 0.25)

    times = [snapshot.at for snapshot in progress.history]
    assert times == [float(second) for second in range(10)] + [9.75]
    assert progress.history[-1].total.written == 39


def test_of_a_long_job_fewer_pictures_are_kept_and_still_from_its_beginning_to_its_end():
    progress = Progress(every=1.0)
    for second in range(5_000):
        progress.record("0", "a", Counts(received=second, written=second), float(second))

    times = [snapshot.at for snapshot in progress.history]
    assert 1_000 <= len(times) <= 2_000
    assert times[0] == 0.0
    assert times == sorted(times)
    assert progress.history[-1].total.written == 4_999


def test_rates_are_of_the_time_between_two_pictures():
    progress = Progress(every=1.0)
    progress.record("0", "a", Counts(attempts=100, written=100, request_units=500.0), 2.0)

    assert rates(*progress.history) == "50 records/s, 250 RU/s, 0.0 % throttled"
    assert rates(progress.history[0], progress.history[0]) == "starting"


def test_the_charge_per_record_is_unknown_until_one_is_written():
    assert Counts().per_record is None
    assert Counts(written=4, written_units=20.0).per_record == 5.0
