"""Reading the log: however many look at however much, there are connections left for what is decided meanwhile."""

import asyncio

from scaling.storage.decision_log import READS_AT_ONCE, TableDecisionLog


class Busy:
    """A table of two hundred targets that counts how many requests it has at the same time."""

    created, now, most = 0, 0, 0

    async def rows(self, query, *, select=None):
        return [{"RowKey": f"t{index:03}"} for index in range(200)]

    async def stream(self, query, *, select, page):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return
        yield


async def test_readers_leave_connections_to_those_who_decide():
    log = TableDecisionLog({"Storage": "UseDevelopmentStorage=true"}, "Storage")
    log._table = table = Busy()

    await asyncio.gather(log.read(), *(log.read("plan", limit=1) for _ in range(300)))

    assert table.most == READS_AT_ONCE
