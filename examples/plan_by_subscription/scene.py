"""1,200 messages at once: the plan grows, its workers complete each message once, and the plan shrinks again."""

from __future__ import annotations

import asyncio
import time

from azure.servicebus.aio import ServiceBusClient

from devstack.demo.orders.traffic import Fleet, Ledger, send_messages
from devstack.stack.supervisor import QUEUE_SUBSCRIPTION, TOPIC
from examples.stage import Stage, beside, until

MESSAGES = 1_200


async def play(stage: Stage) -> list[str]:
    stage.settings["ORDERS_PLAN_ID"] = plan_id = stage.stack.add_workload(capacity=1, start_delay=0.5)
    plan, ledger, stop = stage.stack.resource_manager.plan(plan_id), Ledger(), asyncio.Event()
    connection = stage.stack.service_bus.connection_string
    fleet = Fleet(
        connection,
        TOPIC,
        QUEUE_SUBSCRIPTION,
        ledger,
        ready=lambda: [instance.id for instance in plan.instances() if instance.ready_at <= time.time()],
        concurrency=16,
        processing=0.6,
    )

    async def story() -> None:
        client = ServiceBusClient.from_connection_string(connection)
        async with client, client.get_topic_sender(TOPIC) as sender:
            await send_messages(sender, ledger, MESSAGES)
        async with stage.functions():
            await until(lambda: ledger.left == 0 and len(plan.history) > 1 and plan.capacity == 1)

    await beside(fleet.follow(stop=stop), stop, story())
    await stage.tidemark("log", "--target", "plan-orders", "--changes")
    peak = max(size for _, size in plan.history)
    assert peak >= 3
    assert (ledger.done, ledger.duplicates) == (MESSAGES, 0)
    return [
        f"plan-orders: 1 -> {peak} -> {plan.capacity} instances",
        f"{ledger.done:,} of {MESSAGES:,} messages completed, none twice",
    ]
