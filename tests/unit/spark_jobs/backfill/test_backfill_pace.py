"""From a share of request units to records per second."""

from spark_jobs.backfill.budget.pace import KNOWN, SAMPLE, SAMPLES, Pace


def test_while_no_charge_is_known_one_record_per_second_is_written():
    assert Pace().rate(1_000.0) == 1.0


def test_the_rate_grows_step_by_step_while_few_charges_are_known():
    pace = Pace()
    pace.rate(1_000.0)
    pace.observe(1, 5.0)

    assert [pace.rate(1_000.0) for _ in range(5)] == [4.0, 16.0, 64.0, 200.0, 200.0]


def test_a_charge_that_others_have_seen_is_taken_at_once():
    assert Pace(hint=5.0).rate(1_000.0) == 200.0


def test_the_dearest_of_the_latest_samples_counts():
    pace = Pace(hint=1.0)
    for charge in (5.0, 20.0, 5.0):
        pace.observe(SAMPLE, SAMPLE * charge)

    assert pace.per_record == 20.0
    for _ in range(SAMPLES):
        pace.observe(SAMPLE, SAMPLE * 5.0)
    assert pace.per_record == 5.0


def test_few_records_wait_for_more_before_they_count_as_a_sample():
    pace = Pace()
    pace.observe(1, 5.0)
    pace.observe(SAMPLE - 1, (SAMPLE - 1) * 10.0)

    assert pace.per_record == 5.0
    pace.observe(1, 10.0)
    assert pace.per_record == 10.0


def test_rates_are_whole_from_one_on_and_fractions_below():
    pace = Pace(hint=6.0)
    for _ in range(KNOWN):
        pace.observe(SAMPLE, SAMPLE * 6.0)

    assert pace.rate(20.0) == 3.0
    assert pace.rate(3.0) == 0.5
