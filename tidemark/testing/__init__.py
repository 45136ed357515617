"""Suites of tests for what users write themselves: run them on your own sink with pytest."""

import pytest

pytest.register_assert_rewrite("tidemark.testing.sink_target", "tidemark.testing.sinks")

from tidemark.testing.sink_target import SinkTarget, event, flight, write  # noqa: E402 - rewritten when it is imported
from tidemark.testing.sinks import SinkContract  # noqa: E402 - the same

__all__ = ["SinkContract", "SinkTarget", "event", "flight", "write"]
