"""A slice of consuming, within the time of a function."""

import asyncio

import pytest

from consumer.config import ConsumerConfig
from consumer.core.statistics import PipelineStatistics
from consumer.definition.model import Definition, HubDefinition
from consumer.running import hubs
from tests.support.virtual_time import virtual_time
from tidemark.foundation.errors import TidemarkError


@pytest.mark.parametrize("hangs", [False, True])
def test_a_slice_ends_in_time_whatever_hangs(monkeypatch, hangs):
    class Process:
        statistics, board = PipelineStatistics.of_nothing(), None

        def __init__(self, config, settings, **_others): ...

        async def run(self, stop):
            try:
                await (asyncio.Event() if hangs else stop).wait()
            finally:
                ended.append(asyncio.get_running_loop().time())
            return self.statistics

    async def main():
        began = asyncio.get_running_loop().time()
        definition = Definition((HubDefinition(ConsumerConfig("hub", shutdown=25.0), {}),))
        await hubs.run_slice(definition, seconds=45.0)
        return began

    ended = []
    monkeypatch.setattr(hubs, "ConsumerProcess", Process)
    with virtual_time() as run:
        if hangs:
            with pytest.raises(TidemarkError, match=r"did not end within 80 s .CONSUMER_SLICE"):
                run(main())
            assert ended == [1080.0]
        else:
            run(main())
            assert ended == [1045.0]
