"""Fixtures of several contracts."""

import pytest


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.wire)])
def backend(request):
    """None for memory, else a connection string; asked for outside the loop, where Azurite is started."""
    return None if request.param == "memory" else request.getfixturevalue("azurite")
