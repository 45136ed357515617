"""An imported policy orders what the peer orders, on the same counts, within what its notes say is different."""

from random import Random

import pytest

from tests.support.scaling.imports import QUEUE, made_of, profile, rule, scaled_object, setting, trigger
from tidemark.analysis.simulation.driving import BACKLOG, Shipped
from tidemark.analysis.simulation.peers import AzureMonitor, Keda
from tidemark.analysis.simulation.world import Seen


def orders(policy, counts, begin):
    """What a policy of either kind asks for, each time carried out at once."""
    total, found = begin, []
    for step, count in enumerate(counts):
        seen = Seen(float(policy.interval * step), count, count, total, total, 0.0, 0.0)
        total = min(max(policy.see(seen), 1), 40)
        found.append(total)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_scaled_object_orders_what_keda_orders(seed):
    random = Random(seed)
    counts, level = [50.0] * 25, 50.0  # until windows are full: ten replicas are right
    for _ in range(400):
        level = random.choice([20, 45, 60, 110, 190, 330, 700]) if random.random() < 0.05 else level
        counts.append(float(round(level * random.choice([1.0, 1.05]))))
    made = made_of(
        scaled_object(trigger(), minReplicaCount=1, maxReplicaCount=40), COLLECT_SCHEDULE="*/15 * * * * *"
    )
    policy = made[1]["worker"]

    expected = orders(Keda(5.0), counts, 10)
    assert orders(Shipped(policy, {"backlog": BACKLOG}, begin=0.0), counts, 10) == expected
    assert len({*expected}) > 4


@pytest.mark.parametrize("seed", range(4))
def test_an_autoscale_setting_orders_what_azure_monitor_orders(seed):
    """A load that rises and falls once: a scale-in that delays a scale-out is a difference that the notes name."""
    random = Random(seed)
    queue = {"metricName": "MessageCount", "metricResourceUri": QUEUE}
    rules = [rule("Increase", 100, **queue), rule("Decrease", 60, **queue)]
    made = made_of(setting(profile("default", "1", "40", rules)))
    policy = made[1]["orders"]
    rising = [float(110 + 3 * minute * random.randint(1, 3)) for minute in range(60)]
    counts = [110.0] * 15 + sorted(rising) + sorted(rising, reverse=True) + [0.0] * 60

    expected = orders(AzureMonitor(100, 60), counts, 2)
    assert orders(Shipped(policy, {"message_count": BACKLOG}, begin=0.0), counts, 2)[15:] == expected[15:]
    assert len({*expected}) > 4
    assert any("cooldown of both directions" in note for note in made[0].notes["orders"])
