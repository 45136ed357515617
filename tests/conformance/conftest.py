"""Fixtures of several contracts."""

import pytest


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.wire)])
def backend(request):
    """None for memory, else a connection string; asked for outside the loop, where Azurite is started."""
    return None if request.param == "memory" else request.getfixturevalue("azurite")


SHORT = (
    "test_what_is_answered_as_written_is_stored",
    "test_a_process_that_is_killed_after_a_write_doubles_nothing_when_it_starts_again",
    "test_a_target_that_does_not_answer_is_a_retry_by_the_deadline_and_never_a_rejection",
    "test_a_consumer_whose_partition_another_one_took_doubles_and_loses_nothing",
)
"""Of a suite that is slow on a target, the tests that run every time; the others run with TORTURE=1."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if getattr(getattr(item, "cls", None), "is_slow", False) and item.originalname not in SHORT:
            item.add_marker(pytest.mark.torture)
