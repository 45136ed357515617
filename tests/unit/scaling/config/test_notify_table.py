"""`[notify]`: what is accepted, and what is said of anything else; app settings are named and never shown."""

import pytest

from scaling.config.notify_table import CHOSEN, Notify, Webhook
from scaling.config.policy_file import load_config
from scaling.notices.announcer import unusable
from scaling.service import registry
from tests.unit.scaling.config.test_budget_table import text
from tidemark.foundation.settings_reader import ConfigError

WHOLE = """
[notify]
held_after = "5m"
[notify.webhooks.ops]
url = "OPS_URL"
key = "OPS_KEY"
kinds = ["held", "poison"]
targets = ["plan-*"]
headers = { aeg-sas-key = "TOPIC_KEY" }
[notify.webhooks.old]
url = "OLD_URL"
format = "azure_autoscale"
[notify.webhooks.asked]
url = "ASKED_URL"
format = "cloudevents_binary"
handshake = true
"""


def load(notify, **settings):
    plan = text("").replace("[targets.t.budget]\n", "")
    return load_config(plan + notify, name="tidemark.toml", settings=settings, plug_ins=registry).notify


def test_without_a_table_nobody_is_told():
    assert load("") == Notify()


def test_webhooks_with_filters_and_without():
    notify = load(WHOLE)

    assert (notify.held_after, notify.missing_after) == (300.0, 900.0)
    assert notify.webhooks == {
        "ops": Webhook(
            "ops",
            "OPS_URL",
            "OPS_KEY",
            {"aeg-sas-key": "TOPIC_KEY"},
            kinds=frozenset({"held", "poison"}),
            targets=("plan-*",),
        ),
        "old": Webhook("old", "OLD_URL", format="azure_autoscale", kinds=frozenset({"scaled"})),
        "asked": Webhook("asked", "ASKED_URL", format="cloudevents_binary", handshake=True),
    }


@pytest.mark.parametrize(
    ("notify", "told"),
    [
        ("[notify]", "notify.webhooks: no webhook is configured"),
        ("[notify.webhooks.ops]", "notify.webhooks.ops.url: is missing"),
        ('[notify.webhooks.ops]\nurl = "https://a.example/hook"', "the name of an app setting is accepted"),
        ('[notify.webhooks.ops]\nurl = "U"\nkinds = []', "notify.webhooks.ops.kinds: found []"),
        (
            '[notify.webhooks.ops]\nurl = "U"\nkinds = ["scale"]',
            f"found 'scale'; accepted are {', '.join(CHOSEN)}",
        ),
        (
            '[notify.webhooks.ops]\nurl = "U"\nformat = "azure_autoscale"\nkinds = ["held"]',
            "accepted are scaled",
        ),
        ('[notify.webhooks.ops]\nurl = "U"\ntargets = "plan"', "a list of texts is accepted"),
        (
            '[notify.webhooks.ops]\nurl = "U"\nheaders = { Host = "H" }',
            "the header 'Host', which cannot be set",
        ),
        (
            '[notify.webhooks.ops]\nurl = "U"\nheaders = { "a b" = "H" }',
            "the header 'a b', which cannot be set",
        ),
        (
            '[notify.webhooks.ops]\nurl = "U"\nheaders = { CE-id = "H" }',
            "the header 'CE-id', which cannot be set",
        ),
        ('[notify.webhooks.ops]\nurl = "U"\nhandshake = 1', "notify.webhooks.ops.handshake: found 1"),
        ('[notify.webhooks.ops]\nurl = "U"\nkinks = ["held"]', "did you mean 'kinds'?"),
        ('[notify]\nheld_after = 5\n[notify.webhooks.ops]\nurl = "U"', "notify.held_after: found 5"),
    ],
)
def test_what_is_not_accepted_is_named(notify, told):
    with pytest.raises(ConfigError) as caught:
        load(notify)

    assert told in str(caught.value)


def test_the_app_settings_of_webhooks_are_looked_at_and_not_shown():
    settings = {"OPS_URL": "http://ops.example/c2VjcmV0", "OPS_KEY": "c2VjcmV0"}

    told = [str(problem) for problem in unusable(load(WHOLE), settings)]

    assert told[0].startswith("notify.webhooks.ops: app setting 'TOPIC_KEY' is not set")
    assert told[1].startswith("notify.webhooks.ops: app setting OPS_URL: 'ops.example' is not asked over TLS")
    assert told[3] == "notify.webhooks.asked: app setting 'ASKED_URL' is not set"
    assert told[2] == "notify.webhooks.old: app setting 'OLD_URL' is not set"
    assert "c2VjcmV0" not in repr(told)
