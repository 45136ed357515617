"""docs/publishing.md names the test of every requirement: each of them exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / "tests" / "conformance").glob("test_publisher_*.py"),
    *(ROOT / "tests" / "properties").glob("test_publisher_*.py"),
    *(ROOT / "tests" / "faults").glob("test_publisher_*.py"),
]


def test_every_test_that_the_table_of_requirements_names_exists():
    table = (ROOT / "docs" / "publishing.md").read_text().partition("## Requirements and their tests")[2]
    named = set(re.findall(r"`(test_\w+)`", table))
    defined = {name for file in FILES for name in re.findall(r"def (test_\w+)", file.read_text())}

    assert len(named) > 40
    assert named - defined == set()


def test_every_test_of_a_requirement_is_in_the_table():
    text = (ROOT / "docs" / "publishing.md").read_text()
    source = (ROOT / "tests" / "conformance" / "test_publisher_requirements.py").read_text()
    beyond = {  # what the proposal does not ask for
        "test_a_link_that_cannot_be_opened_for_now_is_tried_again",
        "test_an_event_or_a_set_larger_than_a_message_is_refused_before_anything_is_sent",
        "test_an_empty_batch_or_set_is_sent_without_effect",
        "test_a_busy_service_is_asked_again",
        "test_after_sets_in_one_frame_the_sdk_counts_as_after_its_own",
        "test_where_no_more_events_go_an_unknown_outcome_stays_unknown_and_no_other_becomes_it",
        "test_after_an_unknown_outcome_the_same_events_keep_their_numbers",
        "test_an_identity_that_the_options_fix_is_not_changed_after_an_unknown_outcome",
        "test_a_timeout_bounds_all_attempts",
        "test_a_closed_producer_says_so",
        "test_every_error_says_what_became_of_the_events",
        "test_what_was_lost_on_the_way_is_stored_once",
        "test_partitions_are_published_to_at_the_same_time",
        "test_the_blocking_producer_has_the_same_methods",
    }

    assert {name for name in re.findall(r"def (test_\w+)", source) if name not in text} == beyond
