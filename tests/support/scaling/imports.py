"""Documents of other autoscalers, and what becomes of them."""

from scaling.analysis.lint import lint
from scaling.config.checks import Severity
from scaling.config.policy_file import load_config
from scaling.service import registry
from tidemark.commands.importing.command import import_objects
from tidemark.commands.importing.common.imported import written

GROUP = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers"
PLAN = f"{GROUP}/Microsoft.Web/serverfarms/plan-orders"
QUEUE = f"{GROUP}/Microsoft.ServiceBus/namespaces/sb-orders/queues/orders"


def made_of(*objects, resource_id="", linted=True, **settings):
    """The file, and its policies by target: it loads, and lint (which takes long at a high maximum) finds no error in it."""
    found, refused = import_objects(list(objects), "given.json", resource_id)
    made = written(found, "given.json")
    values = {name: _value(what) for name, what in made.settings.items()}
    config = load_config(made.text, name="t.toml", settings={**values, **settings}, plug_ins=registry)
    policies = config.policies.values() if linted else ()
    told = [*config.findings, *(each for policy in policies for each in lint(policy))]
    assert [each.text for each in told if each.severity is Severity.ERROR] == []
    return made, config.policies, refused


def _value(what):
    """What a person would put into an app setting."""
    known = {"the address": "https://x.test", "the resource id": PLAN, "the full id": PLAN}
    return next((value for words, value in known.items() if what.startswith(words)), what)


def rule(direction="Increase", threshold=70, operator=None, *, action=None, **trigger):
    """A rule of Azure Monitor: the processor of a plan, unless said otherwise."""
    out = direction == "Increase"
    return {
        "metricTrigger": {
            "metricName": "CpuPercentage", "metricResourceUri": PLAN, "timeGrain": "PT1M", "statistic": "Average",
            "timeWindow": "PT10M", "timeAggregation": "Average", "threshold": threshold,
            "operator": operator or ("GreaterThan" if out else "LessThan"), **trigger,
        },
        "scaleAction": {"direction": direction, "type": "ChangeCount", "value": "1", "cooldown": "PT5M", **(action or {})},
    }  # fmt: skip


def profile(name="default", minimum="1", maximum="10", rules=None, **more):
    capacity = {"minimum": minimum, "maximum": maximum, "default": minimum}
    return {"name": name, "capacity": capacity, "rules": [rule(), rule("Decrease", 30)] if rules is None else rules, **more}  # fmt: skip


def setting(*profiles, **more):
    """As `az monitor autoscale show` prints one."""
    body = {"enabled": True, "targetResourceUri": PLAN, "profiles": list(profiles) or [profile()], **more}
    return {"type": "Microsoft.Insights/autoscaleSettings", "name": "orders", **body}


def trigger(kind="azure-servicebus", **more):
    metadata = {"queueName": "orders", "namespace": "sb-orders", "messageCount": "5"}
    return {"type": kind, "metadata": metadata, **more}


def scaled_object(*triggers, **spec):
    """As `kubectl get scaledobject -o json` prints one."""
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "worker", "namespace": "shop"},
        "spec": {
            "scaleTargetRef": {"name": "worker"},
            "triggers": list(triggers) or [trigger()],
            "maxReplicaCount": 10,
            **spec,
        },
    }
