"""A target that is observed every 15 s, as the rule `service_level` sees it, and the rule on its own."""

from scaling.rules.service_level import learning
from scaling.rules.service_level.estimates import Objective
from scaling.rules.service_level.learning import Observation

NOW = 1_799_625_600.0  # a Monday, 00:00 UTC
STEP = 15.0
ONE_PER_CENT = Objective(wait=60.0, late=0.01)


def observation(at, *, rate=80.0, backlog=None, current=10, ready=None, service=10.0, held=16.0, **changes):
    """Messages come at `rate` and are served as they come, unless a backlog is given."""
    backlog = rate * held / service if backlog is None else backlog
    fields = {
        "at": at,
        "interval": STEP,
        "backlog": backlog,
        "incoming": rate * STEP,
        "outgoing": rate * STEP,
        "current": current,
        "ready": current if ready is None else ready,
        "most": 100,
    }
    return Observation(**(fields | changes))


def learned(rates, *, start=NOW, objective=ONE_PER_CENT, memory=None, **changes):
    """The memory after one observation per rate."""
    for index, rate in enumerate(rates):
        memory = learning.learn(memory, observation(start + STEP * index, rate=rate, **changes), objective)
    return memory
