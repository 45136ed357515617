"""`TORTURE=1` also runs the tests marked `torture`, which take minutes; without it they are deselected."""

import os

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "torture: takes minutes; runs with TORTURE=1 only (`make torture`)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if os.environ.get("TORTURE") == "1":
        return
    long = [item for item in items if item.get_closest_marker("torture")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("torture")]
