"""How many examples a costly property draws."""

import os

from hypothesis import settings

TORTURE = os.environ.get("TORTURE") == "1"


def examples(count: int) -> settings:
    """`count` in `make test`, which are the same in every run, and forty times as many new ones in `make torture`."""
    return settings(max_examples=count * 40 if TORTURE else count)
