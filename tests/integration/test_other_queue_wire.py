"""An app setting names another queue at the next start, with every part real: collectors, queue messages, the stored row."""

from uuid import uuid4

import pytest
from azure.storage.queue.aio import QueueServiceClient

from scaling.service.assembly import assemble
from tests.support.virtual_time import Clock

START = 1_700_000_000.0
POLICY = """
[targets.%TARGET%]
scaler = "advice"
initial = 5
minimum = 1
maximum = 10

[targets.%TARGET%.metrics.backlog]
collector = "storage_queue"
connection = "AzureWebJobsStorage"
queue = "%QUEUE%"
window = "5m"

[[targets.%TARGET%.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = 100
"""

pytestmark = pytest.mark.wire


async def test_the_next_start_with_another_queue_scales_nothing_in_by_what_the_former_one_held(
    azurite, tmp_path
):
    target, lines, clock = f"plan-{uuid4().hex[:8]}", [], Clock(START)
    (tmp_path / "tidemark.toml").write_text(POLICY.replace("%TARGET%", target), "utf-8")
    queues = [f"orders-{target}", f"bills-{target}"]
    async with QueueServiceClient.from_connection_string(azurite) as service:
        for queue in queues:
            await service.create_queue(queue)
        await service.get_queue_client(queues[1]).send_message("a bill")

    for queue, minutes in ((queues[0], 3), (queues[1], 3), (queues[1], 2)):
        app = assemble({"AzureWebJobsStorage": azurite, "QUEUE": queue}, root=tmp_path)
        app.clock = clock
        for _ in range(minutes):
            clock.now += 60.0
            for report in (await app.collect()).messages:
                outcome = await app.evaluate(report)
                lines += [*outcome.warnings, *outcome.lines]
        await app.aclose()

    said = [line for line in map(str, lines) if line.startswith(f"scaling {target}")]
    heads = [line.removeprefix(f"scaling {target}").split("; ")[0] for line in said]
    assert heads[:8] == [
        *(f" hold 5: collecting backlog, {minute} of 5 min" for minute in (1, 2, 3)),
        ": backlog measures something else since 2023-11-14 22:17:20Z, and is collected anew",
        *(f" hold 5: collecting backlog, {minute} of 5 min" for minute in (1, 2, 3, 4)),
    ]
    assert heads[8].startswith(" in 5 -> 4: maximum backlog 1 < 100")
